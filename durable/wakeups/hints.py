"""Hints: "there may be work for this queue". Truth is the task table; a lost hint costs at most a probe interval.

A hint goes out after the commit that made the work (docs/concurrency.md 17). Inside a serving process it wakes a
parked poll at once; other processes hear of it through the listeners that `durable.wakeups.remote` provides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from django.db import transaction

from durable.models import Task
from durable.states import TaskStatus


class QueueKey(NamedTuple):
    """What a hint is about."""

    namespace: str
    task_queue: str
    kind: str


Receiver = Callable[[QueueKey], None]

_receivers: list[Receiver] = []


def subscribe(receiver: Receiver) -> Callable[[], None]:
    """Have `receiver` called for every hint of this process, in the thread that committed; returns how to stop that."""
    _receivers.append(receiver)
    return partial(_receivers.remove, receiver)


def publish(key: QueueKey) -> None:
    """Tell everybody now. For the end of a transaction that was rolled back; others use `hint_after_commit`."""
    for receiver in tuple(_receivers):
        receiver(key)


_locked_ready = threading.local()


def note_locked(task: Task) -> None:
    """This transaction locks a task: if it is ready, claims skip it until the end, which is then hinted at."""
    if task.status == TaskStatus.READY and task.due:
        _locked_ready.__dict__.setdefault("keys", set()).add(QueueKey(task.namespace, task.task_queue, task.kind))


def publish_locked() -> None:
    """Hint at the ready tasks that the transaction that has just ended had locked."""
    for key in _locked_ready.__dict__.pop("keys", ()):
        publish(key)


def hint_after_commit(task: Task) -> None:
    """Hint at the task's queue once the current transaction has committed; a rollback drops it."""
    key = QueueKey(task.namespace, task.task_queue, task.kind)
    transaction.on_commit(partial(publish, key), robust=True)
