"""Completions that carry polls, built by hand, and what is compared afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from django.apps import apps
from django.db import connection, models

from durable import carried_polls, ids, metrics
from durable.carried_polls import CarriedPoll, CarriedResult
from durable.models import ActivityAttempt, PollReceipt, Task
from durable.operations import register_worker
from durable.states import TaskKind, TaskStatus
from tests import factories as make
from tests.client import ApiClient, Response
from tests.conftest import clean_database
from tests.protocol.reports import is_workflow, send, without

# By the kind of task that is completed and the kind of poll that its completion carries.
CAPABILITIES = {
    ("workflow", "activity"): "workflow_task_completion_activity_poll",
    ("workflow", "workflow"): "workflow_task_completion_workflow_poll",
    ("activity", "workflow"): "activity_completion_workflow_poll",
}
CARRIAGES = list(CAPABILITIES)
EACH_CARRIAGE = pytest.mark.parametrize(
    ("completed", "kind"), CARRIAGES, ids=[f"{kind}-on-{completed}" for completed, kind in CARRIAGES]
)


def carried(poll_request_id: Any = "carried-1", **fields: Any) -> dict[str, Any]:
    """The body of a carried poll of worker w-1."""
    return without(
        {"worker_id": "w-1", "task_queue": make.QUEUE, "poll_request_id": poll_request_id, "timeout_seconds": 30}
        | fields
    )


# -- before ------------------------------------------------------------------------------------------------------------


def holding(kind: str, workflow_id: str = "held") -> make.Lease:
    """Worker w-1 is registered and holds a task of the kind."""
    make.register()
    make.start(workflow_id)
    lease = make.lease_workflow()
    if kind == "workflow":
        return lease
    make.complete(lease, make.schedule())
    return make.lease_activity()


def offer(kind: str, workflow_id: str = "next") -> None:
    """One more task of the kind is ready for w-1, of a run of its own; none of its other kind is."""
    make.start(workflow_id)
    if kind == "activity":
        make.complete(make.lease_workflow(), make.schedule())


# -- the completion ----------------------------------------------------------------------------------------------------


def complete_carrying(api: ApiClient, lease: make.Lease, *commands: dict[str, Any], **polls: Any) -> Response:
    """Complete a task with `activity_poll` and `workflow_poll` as given; a workflow task's run ends by default."""
    if is_workflow(lease):
        return send(api, lease, "complete", commands=list(commands) or [make.finish("done")], **polls)
    return send(api, lease, "complete", result=make.envelope(1), **polls)


def members(answer: Response) -> dict[str, Any]:
    """What a recorded completion's answer says of carried polls."""
    assert (answer.status, answer.body["recorded"]) == (200, True), answer.plain
    return {key: answer.body[key] for key in ("activity_poll", "workflow_poll") if key in answer.body}


# -- after -------------------------------------------------------------------------------------------------------------


def leases_of(worker_id: str, kind: TaskKind) -> list[Task]:
    """The tasks of one kind that a worker holds now."""
    return list(Task.objects.filter(status=TaskStatus.LEASED, lease_owner=worker_id, kind=kind))


def all_leases() -> list[str]:
    """The tasks that anybody holds now."""
    return list(Task.objects.filter(status=TaskStatus.LEASED).values_list("id", flat=True))


def poll_receipt(poll_request_id: str) -> PollReceipt | None:
    return PollReceipt.objects.filter(poll_request_id=poll_request_id).first()


def running_attempts(worker_id: str) -> int:
    return ActivityAttempt.objects.filter(lease_owner=worker_id, status="running").count()


def ready_attempts(workflow_id: str = "next") -> list[tuple[str, int]]:
    """Status and attempt count of the open tasks of a run."""
    open_tasks = Task.objects.filter(workflow_id=workflow_id, closed_at=None)
    return list(open_tasks.values_list("status", "attempt_count"))


def outcomes() -> dict[tuple[str, str, str], int]:
    """How many carried polls this process has counted, by capability, outcome and reason."""
    return {
        (sample.labels["capability"], sample.labels["outcome"], sample.labels["reason"]): int(sample.value)
        for family in metrics.CARRIED_POLLS.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    }


@contextmanager
def counted_outcomes() -> Iterator[list[tuple[str, str, str]]]:
    """What is counted inside the block, sorted; filled in at its end."""
    before = outcomes()
    counted: list[tuple[str, str, str]] = []
    yield counted
    for key, number in sorted(outcomes().items()):
        counted.extend([key] * (number - before.get(key, 0)))


# -- the same again ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Effects:
    """Everything a completion did: its answer, envelope included, and every row of every table afterwards."""

    status: int
    body: dict[str, Any]
    rows: dict[str, list[Any]]


@contextmanager
def _counted_ids() -> Iterator[None]:
    """Ids and registration tokens are the same ones in every block, in the same order."""
    frozen = SimpleNamespace(time_ns=lambda: 10**18)
    tokens = itertools.count()
    counted = SimpleNamespace(token_hex=lambda size: f"{next(tokens):0{2 * size}}")
    last = ids._last
    with mock.patch.object(ids, "time", frozen), mock.patch.object(register_worker, "secrets", counted):
        ids._last = (2**47) << 80
        yield
    ids._last = last


def _stored_rows() -> dict[str, list[Any]]:
    """Every row of every table, but for keys that the database counts up."""
    found: dict[str, list[Any]] = {}
    for model in apps.get_models(include_auto_created=True):
        names = [field.attname for field in model._meta.concrete_fields if not isinstance(field, models.AutoField)]
        found[model._meta.db_table] = sorted(model._base_manager.values_list(*names), key=repr)
    return found


def effects_of(scene: Callable[[], make.Lease], complete: Callable[[make.Lease], Response]) -> Effects:
    """What one completion does in a scene set up on an empty database. Needs the `clock` in hand: two such completions
    are equal, byte for byte, unless what is sent makes a difference."""
    clean_database()
    with _counted_ids():
        answer = complete(scene())
    return Effects(answer.status, answer.body, _stored_rows())


# -- faults ------------------------------------------------------------------------------------------------------------


@contextmanager
def around_each_claim(statement: Callable[..., Any]) -> Iterator[None]:
    """`statement(execute, sql, params, many, context)` stands in for each statement that a carried claim executes,
    savepoint included."""
    original = carried_polls._claim

    def claim(poll: CarriedPoll) -> CarriedResult:
        with connection.execute_wrapper(statement):
            return original(poll)

    with mock.patch.object(carried_polls, "_claim", claim):
        yield


@contextmanager
def claim_failing_at(number: int, error: Exception) -> Iterator[list[str]]:
    """The carried claim's statement of this number (from 1) raises instead of being executed. Yields what was executed
    or failed."""
    heard: list[str] = []

    def execute(proceed: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        heard.append(sql)
        if len(heard) == number:
            raise error
        return proceed(sql, params, many, context)

    with around_each_claim(execute):
        yield heard


@contextmanager
def claim_statements() -> Iterator[list[str]]:
    """What carried claims execute inside the block."""
    with claim_failing_at(0, AssertionError()) as heard:
        yield heard
