"""Carried polls: what a completion claims for its worker (docs/protocol/carried-polls.md; rows C1 to C5, C16, C17)."""

from __future__ import annotations

import pytest

from durable.models import Task
from durable.states import TaskKind, TaskStatus
from tests import factories as make
from tests.client import ApiClient
from tests.protocol.carrying import carried, complete_carrying, leases_of, poll_receipt
from tests.protocol.reports import poll, send


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

    answer = complete_carrying(api, lease, make.schedule(), activity_poll=carried("a-1"), workflow_poll=carried("w-1"))

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


@pytest.mark.parametrize("kind", ["activity", "workflow"])
def test_delivers_inline_exactly_what_the_poll_returns(api: ApiClient, lease: make.Lease, kind: str) -> None:
    make.start("next")
    commands = [make.schedule()] if kind == "activity" else [make.finish()]

    answer = complete_carrying(api, lease, *commands, **{f"{kind}_poll": carried(deliver="inline")})

    member = answer.body[f"{kind}_poll"]
    assert set(member) == {"leased", "poll_status", "server_time", "task"}
    fetched = poll(api, kind, poll_request_id="carried-1")
    assert {"leased": True, **fetched.plain, "server_time": member["server_time"]} == member
