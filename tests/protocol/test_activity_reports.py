"""Completions and failures of activities: effects, retries, the guard in its order (worker-protocol.md 8.2 and 8.3)."""

from __future__ import annotations

from typing import Any

import pytest

from durable.models import ActivityAttempt, ActivityExecution, Failure, HistoryEvent, Run, Task
from tests import factories as make
from tests.client import ApiClient, Response
from tests.invariants import check_invariants
from tests.protocol.closings import close_row, leased_task, lose
from tests.protocol.reports import A_TIME, ABSENT, AN_ID, send
from tests.snapshot import nothing_recorded

RESULT = make.envelope({"total": 7})
REPORTS: dict[str, tuple[str, dict[str, Any]]] = {
    "complete": ("complete", {"result": RESULT}),
    "fail": ("fail", {"failure": {"message": "boom"}}),
    "renew": ("renew-lease", {}),
}


def leased_activity(workflow_id: str = "order-1", **command: Any) -> make.Lease:
    make.complete(leased_task(workflow_id), make.schedule(**command))
    return make.lease_activity("w-1")


def last_event() -> HistoryEvent:
    return HistoryEvent.objects.order_by("-sequence")[0]


# -- effects -----------------------------------------------------------------------------------------------------------


def test_records_a_result(api: ApiClient) -> None:
    lease = leased_activity()

    response = send(api, lease, "complete", result=RESULT)

    task = Task.objects.get(id=lease.task_id)
    execution = ActivityExecution.objects.get()
    assert response.status == 200
    assert (task.status, task.lease_owner, execution.status) == ("completed", None, "completed")
    assert ActivityAttempt.objects.get().status == "completed"
    started, completed = HistoryEvent.objects.order_by("sequence")[3:]
    assert started.event_type == "ActivityStarted"
    assert started.payload["activity_attempt"]["lease_owner"] == "w-1"
    assert completed.payload == {
        "activity_execution_id": execution.id,
        "activity_type": "step",
        "sequence": 1,
        "activity_attempt_id": lease.body["activity_attempt_id"],
        "attempt_number": 1,
        "result": RESULT,
        "payload_codec": "avro",
    }
    assert make.lease_workflow().task_id == response.body["next_task_id"]
    check_invariants()


@pytest.mark.parametrize("result", [ABSENT, None])
def test_records_the_absence_of_a_result(api: ApiClient, result: Any) -> None:
    assert send(api, leased_activity(), "complete", result=result).status == 200

    assert last_event().payload["result"] is None


@pytest.mark.parametrize("result", ["x", 7, [], {}, {"codec": "json", "blob": "e30="}, {"codec": "avro"}, True])
def test_refuses_a_result_that_is_no_envelope(api: ApiClient, result: Any) -> None:
    lease = leased_activity()

    with nothing_recorded():
        response = send(api, lease, "complete", result=result)

    assert (response.status, list(response.body["errors"])) == (422, ["result"])


def test_names_no_next_task_while_a_workflow_task_is_open(api: ApiClient) -> None:
    make.complete(leased_task(), make.schedule(), make.schedule())
    first, second = make.lease_activity(), make.lease_activity()
    send(api, first, "complete", result=RESULT)

    assert send(api, second, "complete", result=RESULT).body["next_task_id"] is None


# -- failures and retries ----------------------------------------------------------------------------------------------

FAILURE: dict[str, Any] = {
    "message": "gateway down", "type": "ConnectionError", "class": "builtins.ConnectionError", "code": 5,
    "stack_trace": "line 1\nline 2", "details": {"codec": "avro", "blob": "wwHioz3/VYAiNwwA"}, "kind": "application",
    "diagnostics": {"host": "a"},
}  # fmt: skip


def test_schedules_a_retry_with_the_whole_failure(api: ApiClient) -> None:
    lease = leased_activity(retry_policy={"max_attempts": 3, "backoff_seconds": [0]})

    response = send(api, lease, "fail", failure=FAILURE)

    retry = make.lease_activity()
    assert response.body["next_task_id"] == retry.task_id
    event = HistoryEvent.objects.get(event_type="ActivityRetryScheduled")
    expected = {
        "retry_task_id": retry.task_id,
        "retry_of_task_id": lease.task_id,
        "retry_available_at": A_TIME,
        "retry_backoff_seconds": 0,
        "retry_after_attempt_id": lease.body["activity_attempt_id"],
        "retry_after_attempt": 1,
        "retry_reason": "failure",
        "max_attempts": 3,
        "exception_type": "ConnectionError",
        "exception_class": "builtins.ConnectionError",
        "message": "gateway down",
        "code": 5,
        "exception": {
            **{name: FAILURE[name] for name in FAILURE},
            "details_payload_codec": "avro",
            "non_retryable": False,
        },
    }
    assert expected.items() <= event.payload.items()
    assert retry.body["attempt_number"] == 2
    assert not Task.objects.filter(kind="workflow", status="ready").exists()
    check_invariants()


def test_fails_the_step_after_the_last_attempt(api: ApiClient) -> None:
    lease = leased_activity(retry_policy={"max_attempts": 2})
    send(api, lease, "fail", failure=FAILURE)
    last = make.lease_activity()

    response = send(api, last, "fail", failure=FAILURE)

    assert make.lease_workflow().task_id == response.body["next_task_id"]
    event = last_event()
    assert event.event_type == "ActivityFailed"
    expected = {
        "activity_attempt_id": last.body["activity_attempt_id"],
        "attempt_number": 2,
        "failure_id": AN_ID,
        "failure_category": "activity",
        "non_retryable": False,
        "exception_type": "ConnectionError",
        "message": "gateway down",
        "code": 5,
    }
    assert expected.items() <= event.payload.items()
    assert Failure.objects.get().id == event.payload["failure_id"]
    assert [attempt.status for attempt in ActivityAttempt.objects.all()] == ["failed", "failed"]
    assert Task.objects.filter(kind="activity", status="completed").count() == 2
    check_invariants()


@pytest.mark.parametrize(
    ("policy", "failure", "is_final"),
    [
        (None, {}, True),
        ({"max_attempts": 2}, {}, False),
        ({"max_attempts": 2}, {"non_retryable": False}, False),
        ({"max_attempts": 2}, {"non_retryable": True}, True),
        ({"max_attempts": 2, "non_retryable_error_types": ["ValueError"]}, {"type": "ValueError"}, True),
        ({"max_attempts": 2, "non_retryable_error_types": ["app.Bad"]}, {"class": "app.Bad"}, True),
        ({"max_attempts": 2, "non_retryable_error_types": ["ValueError"]}, {"type": "valueerror"}, False),
        ({"max_attempts": 2, "non_retryable_error_types": ["Value"]}, {"type": "ValueError"}, False),
        ({"max_attempts": 2, "non_retryable_error_types": [""]}, {}, False),
    ],
)
def test_decides_whether_another_attempt_follows(
    api: ApiClient, policy: dict[str, Any] | None, failure: dict[str, Any], is_final: bool
) -> None:
    lease = leased_activity(retry_policy=policy)

    send(api, lease, "fail", failure={"message": "boom", **failure})

    assert last_event().event_type == ("ActivityFailed" if is_final else "ActivityRetryScheduled")


def test_backs_off_as_the_policy_says(api: ApiClient) -> None:
    lease = leased_activity(retry_policy={"max_attempts": 5, "backoff_seconds": [0, 7, 3]})
    seconds = []
    for _ in range(4):
        task = Task.objects.get(id=send(api, lease, "fail", failure=FAILURE).body["next_task_id"])
        seconds.append(round((task.available_at - task.created_at).total_seconds()))
        Task.objects.filter(id=task.id).update(available_at=task.created_at, due=True, due_at=None)
        lease = make.lease_activity()

    assert seconds == [0, 7, 3, 3]


def test_calls_a_cancelled_attempt_cancelled(api: ApiClient) -> None:
    send(api, leased_activity(), "fail", failure={"message": "stopped", "cancelled": True, "non_retryable": True})

    assert last_event().payload["failure_category"] == "cancelled"


@pytest.mark.parametrize(
    "failure",
    [
        ABSENT, None, "boom", [], {}, {"message": None}, {"message": 7},
        *[{"message": "x", name: value} for name in ("type", "class", "stack_trace", "kind", "timeout_type")
          for value in (7, [], True)],
        *[{"message": "x", "code": value} for value in ("x", [], 1.5)],
        *[{"message": "x", name: value} for name in ("non_retryable", "cancelled") for value in ("true", 1, [])],
    ],
)  # fmt: skip
def test_refuses_a_failure_of_the_wrong_form(api: ApiClient, failure: Any) -> None:
    lease = leased_activity()

    with nothing_recorded():
        response = send(api, lease, "fail", failure=failure)

    assert (response.status, response.body["reason"]) == (422, "validation_failed")
    assert {path.split(".")[0] for path in response.body["errors"]} == {"failure"}


@pytest.mark.parametrize("message", ["", " ", "x" * 62_000])
def test_takes_every_text_for_a_message(api: ApiClient, message: str) -> None:
    assert send(api, leased_activity(), "fail", failure={"message": message}).status == 200

    assert last_event().payload["message"] == message


@pytest.mark.parametrize("details", [{"codec": "avro", "blob": "x"}, "text", [1], None, 7, {"free": True}])
def test_passes_details_through(api: ApiClient, details: Any) -> None:
    send(api, leased_activity(), "fail", failure={"message": "x", "details": details})

    assert last_event().payload["exception"].get("details") == details


# -- the guard, in its order -------------------------------------------------------------------------------------------


def refused(api: ApiClient, lease: make.Lease, report: str, **fields: Any) -> Response:
    verb, content = REPORTS[report]
    with nothing_recorded():
        return send(api, lease, verb, **{**content, **fields})


@pytest.mark.parametrize("report", REPORTS)
def test_guards_in_the_documented_order(populated: ApiClient, report: str) -> None:
    """Everything is wrong at first; each step puts one thing right, and the next reason shows."""
    lease, other = leased_activity("order-1"), leased_activity("order-2")
    unknown = make.Lease({**lease.body, "task_id": "01UNKNOWN"}, [])
    foreign = {"activity_attempt_id": other.body["activity_attempt_id"], "lease_owner": "w-2"}
    close_row(lease, "cancelled")
    ActivityAttempt.objects.filter(id=lease.body["activity_attempt_id"]).update(status="expired")
    make.expire_lease(lease.task_id)

    found = [refused(populated, unknown, report, **foreign).body["reason"]]
    found.append(refused(populated, lease, report, activity_attempt_id="01NOBODY").body["reason"])
    found.append(refused(populated, lease, report, **foreign).body["reason"])
    found.append(refused(populated, lease, report, lease_owner="w-2").body["reason"])
    found.append(refused(populated, lease, report).body["reason"])
    Run.objects.filter(id=lease.body["run_id"]).update(status="waiting", closed_reason=None, closed_at=None)
    found.append(refused(populated, lease, report).body["reason"])
    ActivityAttempt.objects.filter(id=lease.body["activity_attempt_id"]).update(status="running")
    found.append(refused(populated, lease, report).body["reason"])

    assert found == [
        "task_not_found", "attempt_not_found", "task_mismatch", "lease_owner_mismatch", "run_cancelled",
        "stale_attempt", "lease_expired",
    ]  # fmt: skip


@pytest.mark.parametrize("report", REPORTS)
def test_refuses_an_attempt_whose_lease_was_lost(populated: ApiClient, report: str) -> None:
    lease = leased_activity()
    lose(lease)

    response = refused(populated, lease, report)

    assert response.status == 409
    assert response.plain == {
        "error": "The attempt is not the current one any more.",
        "reason": "stale_attempt",
        "outcome": "ignored",
        "recorded": False,
        "task_id": lease.task_id,
        "activity_attempt_id": lease.body["activity_attempt_id"],
    }


@pytest.mark.parametrize("report", REPORTS)
def test_refuses_a_task_that_is_not_leased(populated: ApiClient, report: str) -> None:
    lease = leased_activity()
    # No operation leaves a running attempt on a task that nobody holds; the rows are set directly.
    unleased = {"status": "ready", "lease_owner": None, "leased_at": None, "lease_expires_at": None}
    Task.objects.filter(id=lease.task_id).update(**unleased)

    response = refused(populated, lease, report)

    assert response.status == 409
    assert response.plain == {
        "error": "Activity task is not currently leased.",
        "reason": "task_not_leased",
        "task_status": "ready",
        "task_id": lease.task_id,
        "activity_attempt_id": lease.body["activity_attempt_id"],
    }


@pytest.mark.parametrize("report", REPORTS)
def test_refuses_an_expired_lease(populated: ApiClient, report: str) -> None:
    lease = leased_activity()
    make.expire_lease(lease.task_id)

    response = refused(populated, lease, report)

    assert response.status == 409
    assert response.plain == {
        "error": "Activity task lease has expired.",
        "reason": "lease_expired",
        "task_status": "leased",
        "lease_owner": "w-1",
        "lease_expires_at": A_TIME,
        "task_id": lease.task_id,
        "activity_attempt_id": lease.body["activity_attempt_id"],
    }


@pytest.mark.parametrize("report", REPORTS)
def test_refuses_an_activity_of_a_run_that_ended_by_itself(populated: ApiClient, report: str) -> None:
    make.complete(leased_task(), make.schedule(), make.schedule())
    first, second = make.lease_activity(), make.lease_activity()
    make.complete_step(first)
    make.complete(make.lease_workflow(), make.finish())

    response = refused(populated, second, report)

    assert response.status == 409
    assert response.plain == {
        "error": "Workflow run is already closed.",
        "reason": "run_closed",
        "outcome": "ignored",
        "recorded": False,
        "cancel_requested": False,
        "can_continue": False,
        "run_status": "completed",
        "run_closed_reason": "completed",
        "run_closed_at": A_TIME,
        "activity_status": "cancelled",
        "attempt_status": "cancelled",
        "task_status": "cancelled",
        "lease_owner": None,
        "lease_expires_at": None,
        "task_id": second.task_id,
        "activity_attempt_id": second.body["activity_attempt_id"],
    }


def test_takes_a_workflow_task_for_no_activity(populated: ApiClient) -> None:
    lease = leased_task()
    body = {"activity_attempt_id": "01X", "lease_owner": "w-1", "result": RESULT}

    with nothing_recorded():
        response = populated.post(f"/api/worker/activity-tasks/{lease.task_id}/complete", body)

    assert (response.status, response.body["reason"]) == (404, "task_not_found")
