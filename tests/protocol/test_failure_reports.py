"""Failure reports about workflow tasks: waiting, ordinary, and those that block the run (worker-protocol.md 7.6)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durable.models import ActivityExecution, Run, Task, WorkflowCommand
from durable.operations.fail_workflow_task import TaskFailure
from durable.operations.make_task_due import make_task_due
from tests import factories as make
from tests.client import ApiClient, Response
from tests.invariants import check_invariants
from tests.protocol.closings import leased_task, lose
from tests.protocol.reports import ABSENT, AN_ID, WAITING, send, without
from tests.snapshot import nothing_recorded


def failed(api: ApiClient, lease: make.Lease, message: str = "boom", **fields: Any) -> Response:
    return send(api, lease, "fail", failure={"message": message, **fields})


def answer(lease: make.Lease, **other: Any) -> dict[str, Any]:
    return {
        "task_id": lease.task_id,
        "workflow_task_attempt": lease.body["workflow_task_attempt"],
        "outcome": "failed",
        "recorded": True,
        "reason": None,
        "next_task_id": None,
        **other,
    }


def run_of(lease: make.Lease) -> Run:
    return Run.objects.get(id=lease.body["run_id"])


# -- waiting -----------------------------------------------------------------------------------------------------------

WAITING_FOR_HISTORY = "waiting_for_history"


@pytest.mark.parametrize(
    "failure",
    [
        WAITING,
        {"message": "x", "type": "WorkflowTaskWaitingForHistory"},
        {"message": "x", "type": "  workflowtaskWAITINGforhistory\n"},
        {"message": "Workflow task waiting for scheduled history."},
        {"message": "WORKFLOW TASK WAITING FOR SCHEDULED HISTORY: and more", "type": "Other"},
        {"message": "replay failed", "type": "WorkflowTaskWaitingForHistory"},
    ],
)
def test_takes_a_waiting_report_for_no_failure(api: ApiClient, failure: dict[str, Any]) -> None:
    lease = leased_task()
    make.complete(lease, make.schedule())
    make.complete_step(make.lease_activity())
    waiting = make.lease_workflow()

    response = send(api, waiting, "fail", failure=failure)

    assert (response.status, response.plain) == (200, answer(waiting, outcome=WAITING_FOR_HISTORY))
    task = Task.objects.get(id=waiting.task_id)
    assert (task.status, task.last_error) == ("completed", None)
    run = run_of(waiting)
    assert (run.status, run.blocked_at, run.open_task_id) == ("waiting", None, None)
    assert make.event_types(run.id)[-1] == "ActivityCompleted"


def test_makes_the_next_task_when_a_waiting_claim_missed_something(api: ApiClient) -> None:
    lease = leased_task()
    make.complete(lease, make.schedule(), *make.schedule_list(2, base=2))
    activities = [make.lease_activity() for _ in range(3)]
    activities.sort(key=lambda one: ActivityExecution.objects.get(id=one.body["activity_execution_id"]).step_number)
    make.complete_step(activities[0])
    waiting = make.lease_workflow()
    make.complete_step(activities[1])
    make.complete_step(activities[2])

    response = send(api, waiting, "fail", failure=WAITING)

    assert response.plain == answer(waiting, outcome=WAITING_FOR_HISTORY, next_task_id=AN_ID)
    following = make.lease_workflow()
    assert following.task_id == response.body["next_task_id"]
    assert following.body["workflow_task_attempt"] == 1
    check_invariants()


def test_counts_no_attempt_or_failure_for_a_waiting_report(api: ApiClient) -> None:
    first = leased_task()
    make.complete(first, make.schedule())
    make.complete_step(make.lease_activity())
    send(api, make.lease_workflow(), "fail", failure=WAITING)

    run = run_of(first)
    assert run.blocked_reason == ""
    assert not Task.objects.filter(run_id=run.id, failure_count__gt=0).exists()


# -- ordinary failures -------------------------------------------------------------------------------------------------


def test_gives_an_ordinary_failure_another_task_at_once(api: ApiClient) -> None:
    lease = leased_task()

    response = failed(api, lease, type="ValueError", reason="nothing known", stack_trace="line 1", sequence=3)

    assert (response.status, response.plain) == (200, answer(lease, next_task_id=AN_ID))
    task = Task.objects.get(id=lease.task_id)
    assert task.status == "failed"
    assert task.last_error == {
        "message": "boom",
        "type": "ValueError",
        "reason": "nothing known",
        "stack_trace": "line 1",
        "sequence": 3,
    }
    following = make.lease_workflow()
    assert following.task_id == response.body["next_task_id"]
    assert following.body["workflow_task_attempt"] == 2
    assert make.event_types(lease.body["run_id"]) == ["StartAccepted", "WorkflowStarted"]
    check_invariants()


def test_backs_off_from_the_second_failure_on(api: ApiClient) -> None:
    lease = leased_task()
    delays = []
    for attempt in range(1, 9):
        assert lease.body["workflow_task_attempt"] == attempt
        next_task_id = failed(api, lease).body["next_task_id"]
        task = Task.objects.get(id=next_task_id)
        delays.append(round((task.available_at - task.created_at).total_seconds()))
        assert task.due == (delays[-1] == 0)
        Task.objects.filter(id=next_task_id).update(available_at=task.created_at, due_at=task.created_at)
        make_task_due(next_task_id)
        lease = make.lease_workflow()

    assert delays == [0, 2, 4, 8, 16, 32, 60, 60]


def test_offers_a_backed_off_task_to_nobody_before_its_time(api: ApiClient) -> None:
    lease = leased_task()
    failed(api, lease)
    failed(api, make.lease_workflow())

    with pytest.raises(AssertionError, match="nothing was leased"):
        make.lease_workflow()


def test_begins_to_count_failures_anew_after_a_completion(api: ApiClient) -> None:
    failed(api, leased_task())
    make.complete(make.lease_workflow(), make.schedule())
    make.complete_step(make.lease_activity())
    lease = make.lease_workflow()

    assert lease.body["workflow_task_attempt"] == 1
    next_task = Task.objects.get(id=failed(api, lease).body["next_task_id"])
    assert next_task.available_at - next_task.created_at == timedelta(0)


def test_counts_a_lost_lease_as_an_attempt_but_as_no_failure(api: ApiClient) -> None:
    lose(leased_task())
    lease = make.lease_workflow("w-2")

    next_task = Task.objects.get(id=failed(api, lease).body["next_task_id"])

    assert (next_task.attempt_count, next_task.failure_count) == (2, 1)
    assert next_task.due


def test_carries_queue_priority_and_build_to_the_next_task(api: ApiClient) -> None:
    make.register("w-1", build_id="b-1")
    make.start("order-1", priority=2, build_id="b-1")
    lease = make.lease_workflow()

    following = Task.objects.get(id=failed(api, lease).body["next_task_id"])

    assert (following.task_queue, following.priority, following.build_id, following.type) == (
        make.QUEUE, 2, "b-1", "five",
    )  # fmt: skip


def test_records_nothing_for_a_repeated_failure(populated: ApiClient) -> None:
    lease = leased_task()
    failed(populated, lease)

    with nothing_recorded():
        response = failed(populated, lease)

    assert (response.status, response.body["reason"], response.body["recorded"]) == (409, "task_not_leased", False)


@pytest.mark.parametrize(
    "failure",
    [
        ABSENT, None, "boom", [], {}, {"message": None}, {"message": ""}, {"message": "  "}, {"message": 7},
        {"message": ["x"]}, *[{"message": "x", name: value} for name in ("type", "reason", "stack_trace")
                              for value in (7, [], {}, True)],
        *[{"message": "x", "sequence": value} for value in (0, -1, "x", 1.5, True)],
    ],
)  # fmt: skip
def test_refuses_a_failure_of_the_wrong_form_and_keeps_the_lease(api: ApiClient, failure: Any) -> None:
    lease = leased_task()

    with nothing_recorded():
        response = send(api, lease, "fail", failure=failure)

    assert (response.status, response.body["reason"]) == (422, "validation_failed")
    assert all(path.split(".")[0] == "failure" for path in response.body["errors"])
    assert send(api, lease, "complete", commands=[make.finish()]).status == 200


@pytest.mark.parametrize("field", ["type", "reason", "stack_trace", "sequence"])
def test_takes_null_for_what_is_not_known(api: ApiClient, field: str) -> None:
    assert failed(api, leased_task(), **{field: None}).status == 200


# -- replay failures block the run -------------------------------------------------------------------------------------

REASONS = [
    "activity_type_mismatch", "activity_execution_identity_mismatch", "child_workflow_identity_mismatch",
    "condition_wait_key_mismatch", "condition_wait_x", "continue_as_new_sequence_missing",
    "duplicate_memo_upsert_record", "duplicate_version_marker", "duplicate_version_marker_record",
    "durable_command_sequence_gap", "memo_entries_mismatch", "parallel_group_path_mismatch",
    "recorded_command_missing", "recorded_commands_unconsumed", "recorded_continue_as_new_unconsumed",
    "search_attribute_mismatch", "side_effect_result_missing", "signal_wait_mismatch", "timer_delay_mismatch",
    "timer_history_field_missing", "unsupported_payload_codec", "version_range_mismatch", "workflow_nondeterministic",
]  # fmt: skip
OTHER_REASONS = [
    "activity_type", "activity_mismatch", "child_workflow_mismatch", "condition_wait_", "condition_waits",
    "duplicate_version", "memo_", "timer_mismatch", "timer_delay", "nondeterministic", "versions", "boom",
    "x workflow_nondeterministic", "workflow_nondeterministic!", "application_error", "",
]  # fmt: skip
TEXTS = [
    "nondetermin", "non-determin", "determinism", "replay error", "replay failed", "history shape",
    "history mismatch", "invalidargument", "servererror", "unexpected history", "validationexception",
    "cannot decode workflow start input", "cannot replay workflow history", "unsupported payload codec",
    "unsupported_payload_codec", "workflow task completion failed after commands were produced",
    "no workflow registered",
]  # fmt: skip


def blocks(message: str, **fields: Any) -> bool:
    return TaskFailure(message=message, **fields).blocks_run()


@pytest.mark.parametrize("reason", REASONS)
def test_knows_a_replay_failure_by_its_reason(reason: str) -> None:
    assert blocks("x", reason=reason)
    assert blocks("x", reason=f" \t{reason.upper()}\r\n")


@pytest.mark.parametrize("reason", OTHER_REASONS)
def test_knows_no_replay_failure_by_another_reason(reason: str) -> None:
    assert not blocks("x", reason=reason)


@pytest.mark.parametrize("text", TEXTS)
def test_knows_a_replay_failure_by_its_text(text: str) -> None:
    assert blocks(f"it says: {text}.")
    assert blocks(text.upper())
    assert blocks("x", type=f"some{text}type")


def test_knows_a_text_across_type_and_message() -> None:
    assert blocks("failed", type="Replay")
    assert not blocks("ailed", type="replay f")


def test_reads_so_much_of_a_text_and_no_more() -> None:
    assert blocks("ü" * 2000 + "replay failed")
    assert not blocks("ü" * 2048 + "replay failed")
    assert blocks("x", type="é" * 249 + "replay failed")
    assert not blocks("x", type="é" * 255 + "replay failed")


@pytest.mark.parametrize("message", ["boom", "the server said no", "deter", "history", "replaying"])
def test_takes_everything_else_for_an_ordinary_failure(message: str) -> None:
    assert not blocks(message)


@pytest.mark.parametrize(
    ("failure", "shown"),
    [
        ({"message": "x", "reason": "activity_type_mismatch"}, "activity_type_mismatch"),
        ({"message": "No workflow registered for five"}, "No workflow registered for five"),
        ({"message": "replay failed: " + "x" * 5000}, ("replay failed: " + "x" * 5000)[:1000]),
    ],
)
def test_blocks_the_run_without_a_retry(api: ApiClient, failure: dict[str, Any], shown: str) -> None:
    lease = leased_task()

    response = send(api, lease, "fail", failure=failure)

    assert (response.status, response.plain) == (200, answer(lease))
    run = run_of(lease)
    assert (run.status, run.open_task_id, run.blocked_reason) == ("waiting", None, shown)
    assert run.blocked_at is not None
    assert Task.objects.get(id=lease.task_id).status == "failed"
    assert api.get("/api/workflows/order-1").body["blocked_reason"] == shown
    with pytest.raises(AssertionError, match="nothing was leased"):
        make.lease_workflow()
    check_invariants()


def blocked(api: ApiClient) -> make.Lease:
    """A run that waits for one activity and is blocked."""
    make.complete(leased_task(), make.schedule(), *make.schedule_list(2, base=2))
    held = [make.lease_activity() for _ in range(3)]
    held.sort(key=lambda one: ActivityExecution.objects.get(id=one.body["activity_execution_id"]).step_number)
    make.complete_step(held[0])
    assert failed(api, make.lease_workflow(), "replay failed").status == 200
    make.complete_step(held[1])
    return held[2]


def test_gives_a_blocked_run_a_task_when_it_is_repaired(api: ApiClient) -> None:
    blocked(api)

    response = api.post("/api/workflows/order-1/repair", {"request_id": "r-1"})

    assert (response.status, response.body["outcome"]) == (200, "repair_dispatched")
    run = Run.objects.get()
    assert (run.blocked_at, run.blocked_reason) == (None, "")
    lease = make.lease_workflow()
    assert (lease.body["workflow_task_attempt"], lease.history[-1].event_type) == (1, "RepairRequested")
    assert WorkflowCommand.objects.get(command_type="repair").outcome == "repair_dispatched"
    check_invariants()


def test_gives_a_blocked_run_a_task_when_something_wakes_it(api: ApiClient) -> None:
    last = blocked(api)
    assert Run.objects.get().open_task_id is None

    response = send(api, last, "complete", result=make.envelope(1))

    assert response.body["next_task_id"] == make.lease_workflow().task_id
    assert (Run.objects.get().blocked_at, Run.objects.get().blocked_reason) == (None, "")
    check_invariants()


@pytest.mark.parametrize("verb", ["cancel", "terminate"])
def test_closes_a_blocked_run(api: ApiClient, verb: str) -> None:
    blocked(api)

    assert api.post(f"/api/workflows/order-1/{verb}").status == 200

    assert (Run.objects.get().blocked_at, Run.objects.get().blocked_reason) == (None, "")
    check_invariants()


def test_blocks_a_run_although_something_happened_meanwhile(api: ApiClient) -> None:
    make.complete(leased_task(), make.schedule(), make.schedule())
    first, second = make.lease_activity(), make.lease_activity()
    make.complete_step(first)
    lease = make.lease_workflow()
    make.complete_step(second)

    response = failed(api, lease, "replay failed")

    assert response.body["next_task_id"] is None
    assert Run.objects.get().open_task_id is None


def test_repairs_nothing_that_is_not_stuck(api: ApiClient) -> None:
    make.complete(leased_task(), make.schedule())

    response = api.post("/api/workflows/order-1/repair")

    assert (response.status, response.body["outcome"]) == (200, "repair_not_needed")
    assert Task.objects.filter(kind="workflow").count() == 1


def test_leaves_a_live_lease_alone_when_it_repairs(api: ApiClient) -> None:
    lease = leased_task()
    before = Task.objects.filter(id=lease.task_id).values().get()

    response = api.post("/api/workflows/order-1/repair")

    assert response.body["outcome"] == "repair_not_needed"
    assert Task.objects.filter(id=lease.task_id).values().get() == before
    assert Task.objects.count() == 1


def test_takes_a_report_without_unknown_fields_apart(api: ApiClient) -> None:
    response = send(api, leased_task(), "fail", failure=without({"message": "x", "details": {"a": 1}}), more=[1])

    assert response.body["outcome"] == "failed"
