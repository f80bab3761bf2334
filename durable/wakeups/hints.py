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
    """Tell everybody now. For what no transaction of this thread made ready; others use `hint_after_commit`."""
    for receiver in tuple(_receivers):
        receiver(key)


# The queues of ready tasks that this thread's transaction holds locked; claims of others skip those meanwhile.
_locked_ready = threading.local()


def _locked_queues() -> list[QueueKey]:
    queues: list[QueueKey] = _locked_ready.__dict__.setdefault("queues", [])
    return queues


def note_locked(task: Task) -> None:
    """This transaction locks a task: if it is ready, claims skip it until the end, which is then hinted at."""
    if task.status == TaskStatus.READY and task.due:
        _locked_queues().append(_queue_of(task))


def hint_unless_committed(key: QueueKey) -> None:
    """This transaction locks a ready task to lease it: hinted at if that comes to nothing, by a savepoint or at all."""
    queues = _locked_queues()
    queues.append(key)
    # Django drops the callback with the savepoint, or the transaction, that it was made in.
    transaction.on_commit(partial(queues.remove, key))


def publish_locked() -> None:
    """Hint at the ready tasks that the transaction that has just ended had locked."""
    for key in set(_locked_ready.__dict__.pop("queues", ())):
        publish(key)


def hint_after_commit(task: Task) -> None:
    """Hint at the task's queue once the current transaction has committed; a rollback drops it.

    Not if the task has been leased by then: what a completion's carried poll takes is nobody else's business.
    """
    transaction.on_commit(partial(_publish_ready, task), robust=True)


def _publish_ready(task: Task) -> None:
    if task.status == TaskStatus.READY:
        publish(_queue_of(task))


def _queue_of(task: Task) -> QueueKey:
    return QueueKey(task.namespace, task.task_queue, task.kind)
