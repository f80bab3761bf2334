"""A poll that finds nothing writes nothing, whatever there is that it may not have."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from durable.models import Task
from tests import factories as make
from tests.budgets.statements import Statements
from tests.client import ApiClient
from tests.parking import park_polls
from tests.protocol.reports import poll
from tests.snapshot import nothing_recorded


def nothing_at_all() -> None:
    """An empty database but for the worker."""


def work_for_later() -> None:
    make.start()
    make.complete(make.lease_workflow(), make.schedule())
    later = timezone.now() + timedelta(hours=1)
    Task.objects.filter(status="ready").update(due=False, due_at=later, available_at=later)


def work_of_other_types() -> None:
    make.register("w-other", supported_workflow_types=["other"], supported_activity_types=["other"])
    for workflow_type in ("other", "another"):
        make.start(workflow_type=workflow_type)
    make.complete(make.lease_workflow("w-other"), make.schedule("other"))


def work_on_another_queue() -> None:
    make.register("w-other", task_queue="elsewhere")
    for _ in range(2):
        make.start(task_queue="elsewhere")
    make.complete(make.lease_workflow("w-other", task_queue="elsewhere"), make.schedule())


def work_for_another_build() -> None:
    make.start(build_id="build-2")


def work_that_others_hold() -> None:
    make.register("w-other")
    for _ in range(2):
        make.start()
    make.complete(make.lease_workflow("w-other"), make.schedule())
    make.lease_activity("w-other")
    make.lease_workflow("w-other")


def leases_that_ran_out() -> None:
    work_that_others_hold()
    for task_id in Task.objects.filter(status="leased").values_list("id", flat=True):
        make.expire_lease(task_id)


def a_run_past_its_deadline() -> None:
    make.start(run_timeout_seconds=60)
    Task.objects.update(run_deadline_at=timezone.now() - timedelta(seconds=1))


SITUATIONS: list[Callable[[], None]] = [
    nothing_at_all, work_for_later, work_of_other_types, work_on_another_queue, work_for_another_build,
    work_that_others_hold, leases_that_ran_out, a_run_past_its_deadline,
]  # fmt: skip


@pytest.mark.parametrize("kind", ["workflow", "activity"])
@pytest.mark.parametrize("prepare", SITUATIONS, ids=lambda situation: situation.__name__)
def test_writes_nothing_for_an_empty_poll(
    api: ApiClient, statements: Statements, prepare: Callable[[], None], kind: str
) -> None:
    prepare()

    with nothing_recorded(), statements.during() as cost:
        answer = poll(api, kind, poll_request_id="p-1")

    assert answer.body["poll_status"] == "empty", answer.body
    assert [statement.verb for statement in cost.statements] == ["SELECT", "SELECT"], str(cost)


@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_writes_nothing_while_polls_arrive_park_and_leave(api: ApiClient, statements: Statements, kind: str) -> None:
    with nothing_recorded(), statements.during() as cost:
        waiting = park_polls(api, 3, kind)
        for one in waiting:
            one.cancel()

    assert cost.writes == [], str(cost)


def test_remembers_no_emptiness(api: ApiClient) -> None:
    first = poll(api, "workflow", poll_request_id="p-1")
    make.start()

    second = poll(api, "workflow", poll_request_id="p-1")

    assert [first.body["poll_status"], second.body["poll_status"]] == ["empty", "leased"]
