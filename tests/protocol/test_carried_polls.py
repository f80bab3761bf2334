"""Carried polls: what a completion claims for its worker (docs/protocol/carried-polls.md; rows C1 to C5, C15 to C17).

Counterfactuals, run once by hand: `test_c3_…` fails if the workflow claim always runs, and `test_c15_…` if the key is
sent as false instead of left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from durable import metrics
from durable.models import ActivityAttempt, Task, WorkerRegistration
from durable.states import TaskKind, TaskStatus
from tests import factories as make
from tests.client import ApiClient
from tests.conftest import clean_database
from tests.protocol.carrying import (
    carried,
    claim_statements,
    complete_carrying,
    holding,
    leases_of,
    members,
    offer,
    poll_receipt,
    running_attempts,
)
from tests.protocol.reports import ABSENT, send


@pytest.fixture
def lease(database: None) -> make.Lease:
    """A workflow task leased by w-1, of a run that nothing else waits beside."""
    make.register()
    make.start()
    return make.lease_workflow()


def test_c1_leases_a_ready_workflow_task_for_a_workflow_completion(api: ApiClient, lease: make.Lease) -> None:
    make.start("next")

    answer = complete_carrying(api, lease, workflow_poll=carried())

    assert (answer.status, answer.body["recorded"]) == (200, True)
    assert answer.body["workflow_poll"] == {"leased": True}
    assert "activity_poll" not in answer.body
    [task] = leases_of("w-1", TaskKind.WORKFLOW)
    assert (task.workflow_id, task.attempt_count) == ("next", 1)
    receipt = poll_receipt("carried-1")
    assert receipt is not None
    assert (receipt.task_id, receipt.attempt_number) == (task.id, 1)


def test_c2_remembers_nothing_of_an_empty_queue(api: ApiClient, lease: make.Lease) -> None:
    answer = complete_carrying(api, lease, workflow_poll=carried())

    assert answer.body["workflow_poll"] == {"leased": False}
    assert leases_of("w-1", TaskKind.WORKFLOW) == []
    assert poll_receipt("carried-1") is None


def test_c3_goes_for_the_activity_first_and_leaves_the_workflow_queue_alone(api: ApiClient, lease: make.Lease) -> None:
    make.start("next")

    polls = {"activity_poll": carried("a-1"), "workflow_poll": carried("w-1")}
    with claim_statements() as executed:
        answer = complete_carrying(api, lease, make.schedule(), **polls)

    # One savepoint: there was no second claim, not even a look.
    assert sum(statement.startswith("SAVEPOINT") for statement in executed) == 1
    assert answer.body["activity_poll"] == {"leased": True}
    assert "workflow_poll" not in answer.body
    ready = Task.objects.get(workflow_id="next")
    assert (ready.status, ready.attempt_count) == (TaskStatus.READY, 0)
    assert poll_receipt("w-1") is None


def test_c4_claims_a_workflow_task_once_no_activity_was_ready(api: ApiClient, lease: make.Lease) -> None:
    make.start("next")

    answer = complete_carrying(api, lease, activity_poll=carried("a-1"), workflow_poll=carried("w-1"))

    assert (answer.body["activity_poll"], answer.body["workflow_poll"]) == ({"leased": False}, {"leased": True})
    assert leases_of("w-1", TaskKind.ACTIVITY) == []
    assert poll_receipt("a-1") is None


def test_c16_leases_the_workflow_task_that_the_result_made_ready(api: ApiClient, lease: make.Lease) -> None:
    make.complete(lease, make.schedule())
    step = make.lease_activity()

    answer = send(api, step, "complete", result=make.envelope(1), workflow_poll=carried())

    assert answer.body["workflow_poll"] == {"leased": True}
    [task] = leases_of("w-1", TaskKind.WORKFLOW)
    assert task.id == answer.body["next_task_id"]


@pytest.mark.parametrize("deliver", [None, "inline"])
def test_c17_leases_the_activity_that_the_completion_scheduled(
    api: ApiClient, lease: make.Lease, deliver: str | None
) -> None:
    answer = complete_carrying(api, lease, *make.schedule_list(2), activity_poll=carried(deliver=deliver))

    assert answer.body["activity_poll"]["leased"] is True
    [task] = leases_of("w-1", TaskKind.ACTIVITY)
    assert task.id == answer.body["created_task_ids"][0]
    [attempt] = ActivityAttempt.objects.all()
    assert (attempt.task_id, attempt.attempt_number, attempt.status) == (task.id, 1, "running")
    assert attempt.started_at == task.leased_at
    # What the attempt started is told with its outcome.
    assert make.event_types(lease.body["run_id"])[-2:] == ["ActivityScheduled"] * 2


def test_c17_begins_the_attempt_in_the_completions_own_transaction(api: ApiClient, lease: make.Lease) -> None:
    commits = metrics.COMMITS._value.get()

    complete_carrying(api, lease, make.schedule(), activity_poll=carried())

    assert running_attempts("w-1") == 1
    assert metrics.COMMITS._value.get() == commits + 1


def test_c17_leases_nothing_that_was_scheduled_for_another_queue(api: ApiClient, lease: make.Lease) -> None:
    answer = complete_carrying(api, lease, make.schedule(queue="elsewhere"), activity_poll=carried())

    assert answer.body["activity_poll"] == {"leased": False}
    assert running_attempts("w-1") == 0


def test_c16_is_fenced_by_the_attempts_owner(api: ApiClient, lease: make.Lease) -> None:
    make.complete(lease, make.schedule())
    make.register("w-2")
    step = make.lease_activity("w-2")

    answer = send(api, step, "complete", result=make.envelope(1), workflow_poll=carried())

    assert (answer.status, answer.body["recorded"]) == (200, True)
    assert "workflow_poll" not in answer.body
    assert Task.objects.get(id=answer.body["next_task_id"]).attempt_count == 0


# -- every combination -------------------------------------------------------------------------------------------------

POLLS: dict[str, Callable[[str], Any]] = {
    "absent": lambda poll_id: ABSENT,
    "own": carried,
    "invalid": lambda poll_id: carried(poll_id, timeout_seconds=61),
    "foreign": lambda poll_id: carried(poll_id, worker_id="w-2"),
}
REGISTRATIONS: dict[str, Callable[[], object]] = {
    "fresh": lambda: None,
    "stale": lambda: WorkerRegistration.objects.filter(worker_id="w-1").update(
        last_heartbeat_at=timezone.now() - timedelta(days=1)
    ),
    "draining": lambda: WorkerRegistration.objects.filter(worker_id="w-1").update(is_draining=True),
    "wrong queue": lambda: make.register(task_queue="elsewhere"),
}


def expected(activity: str, workflow: str, ready: tuple[bool, bool], registration: str) -> dict[str, Any]:
    """The members of the answer, by the rules alone."""
    if "foreign" in (activity, workflow) or registration != "fresh":
        return {}
    if activity == "own":
        found: dict[str, Any] = {"activity_poll": {"leased": ready[0]}}
        if workflow == "own" and not ready[0]:
            found["workflow_poll"] = {"leased": ready[1]}
        return found
    return {"workflow_poll": {"leased": ready[1]}} if workflow == "own" else {}


@pytest.mark.parametrize("registration", REGISTRATIONS)
@pytest.mark.parametrize("activity", POLLS)
def test_c5_never_grants_both_kinds(api: ApiClient, registration: str, activity: str) -> None:
    for workflow, *ready in itertools.product(POLLS, (False, True), (False, True)):
        clean_database()
        make.register("w-2")
        lease = holding("workflow")
        for kind, is_ready in zip(("activity", "workflow"), ready, strict=True):
            if is_ready:
                offer(kind, f"next-{kind}")
        REGISTRATIONS[registration]()

        polls = {"activity_poll": POLLS[activity]("a-1"), "workflow_poll": POLLS[workflow]("w-1")}
        answer = complete_carrying(api, lease, **polls)

        case = (workflow, ready)
        assert members(answer) == expected(activity, workflow, (ready[0], ready[1]), registration), case
        granted = [kind for kind in TaskKind if leases_of("w-1", kind)]
        assert len(granted) <= 1, case
        assert granted == [TaskKind(key[:-5]) for key, member in members(answer).items() if member["leased"]], case
        assert [poll_receipt("a-1") is not None, poll_receipt("w-1") is not None] == [
            TaskKind.ACTIVITY in granted, TaskKind.WORKFLOW in granted,
        ], case  # fmt: skip
        assert not any(leases_of("w-2", kind) for kind in TaskKind), case
