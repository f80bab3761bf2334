"""The not-recorded receipt, row by row of docs/protocol/worker-protocol.md 12.4, through the real routes.

Every case also holds row N11, on a database where every table has rows: nothing at all was recorded.
"""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest

from durable.changes import RunChangedError
from durable.models import Run
from durable.operations import checkpoint_workflow_task as checkpointing
from durable.refusals import Refusal
from tests import factories as make
from tests.client import ApiClient, Response
from tests.protocol.closings import CLOSINGS, close_row, closed_claim, leased_task, lose, pass_deadline
from tests.protocol.reports import A_TIME, REPORTS, send, send_report
from tests.snapshot import nothing_recorded

PAYLOAD = "sensitive-payload-marker"


def run_closed_body(lease: make.Lease, how: str, **other: Any) -> dict[str, Any]:
    """The exact body, without the envelope, of a report about a claim whose run closed."""
    return {
        "error": "Workflow run is already closed.",
        "reason": "run_closed",
        "can_continue": False,
        "run_closed_at": A_TIME,
        "lease_owner": None,
        "lease_expires_at": None,
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
        "recorded": False,
        "run_id": lease.body["run_id"],
        **CLOSINGS[how],
        **other,
    }


def not_leased_body(lease: make.Lease, **other: Any) -> dict[str, Any]:
    """The exact body, without the envelope, of a report about a claim that is over while its run is open."""
    return {
        "error": "Workflow task is not currently leased.",
        "reason": "task_not_leased",
        "task_status": "completed",
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
        "recorded": False,
        "run_id": lease.body["run_id"],
        **other,
    }


def refused(api: ApiClient, lease: make.Lease, report: str, **fields: Any) -> Response:
    """Send a report that must be refused and must leave no trace."""
    with nothing_recorded():
        response = send_report(api, lease, report, **fields)
    assert response.status == 409
    return response


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("how", CLOSINGS)
def test_n1_proves_that_nothing_was_recorded_after_the_run_closed(populated: ApiClient, how: str, report: str) -> None:
    lease = closed_claim(populated, how)

    response = refused(populated, lease, report)

    assert response.plain == run_closed_body(lease, how)


@pytest.mark.parametrize("report", REPORTS)
def test_n1_closes_a_run_past_its_deadline_and_then_answers_run_closed(populated: ApiClient, report: str) -> None:
    lease = leased_task(run_timeout_seconds=60)
    pass_deadline(lease)

    response = send_report(populated, lease, report)

    assert response.status == 409
    assert response.plain == run_closed_body(lease, "timed_out")
    assert make.event_types(lease.body["run_id"])[2:] == ["WorkflowTimedOut"]


@pytest.mark.parametrize("report", REPORTS)
def test_n2_proves_it_for_a_completed_task_on_an_open_run(populated: ApiClient, report: str) -> None:
    lease = leased_task()
    make.complete(lease, make.schedule())
    # A changed completion of the very claim would be conflicting_completion, so this one names another epoch.
    attempt = 2 if report == "complete" else 1

    response = refused(populated, lease, report, workflow_task_attempt=attempt)

    assert response.plain == not_leased_body(lease, workflow_task_attempt=attempt)


def test_n2_proves_it_to_another_owner_of_a_completed_task(populated: ApiClient) -> None:
    lease = leased_task()
    make.complete(lease, make.schedule())

    response = refused(populated, lease, "complete", lease_owner="w-2")

    assert response.plain == not_leased_body(lease)


@pytest.mark.parametrize("report", REPORTS)
def test_n2_proves_it_for_a_waiting_task_on_an_open_run(populated: ApiClient, report: str) -> None:
    lease = leased_task()
    make.report_waiting(lease)

    response = refused(populated, lease, report)

    assert response.plain == not_leased_body(lease)


@pytest.mark.parametrize("report", REPORTS)
def test_n2_proves_it_for_a_failed_task_on_an_open_run(populated: ApiClient, report: str) -> None:
    lease = leased_task()
    make.report_failure(lease)

    response = refused(populated, lease, report)

    assert response.plain == not_leased_body(lease, task_status="failed")


@pytest.mark.parametrize("report", REPORTS)
def test_n2_proves_it_for_a_task_that_was_offered_again(populated: ApiClient, report: str) -> None:
    lease = leased_task()
    lose(lease)

    response = refused(populated, lease, report)

    assert response.plain == not_leased_body(lease, task_status="ready")


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("how", CLOSINGS)
def test_n3_proves_it_for_a_leased_task_on_a_closed_run(populated: ApiClient, how: str, report: str) -> None:
    lease = leased_task()
    close_row(lease, how)

    response = refused(populated, lease, report)

    still_leased = {
        "task_status": "leased",
        "lease_owner": "w-1",
        "lease_expires_at": lease.body["lease_expires_at"],
    }
    assert response.plain == run_closed_body(lease, how, **still_leased)


def close_after_guard(monkeypatch: pytest.MonkeyPatch, lease: make.Lease, how: str) -> list[str]:
    """Close the run's row once the checkpoint's guard has passed, in the same transaction; a list notes that it did."""
    guard, passed = checkpointing.check_live, []

    def check_and_close(report: Any, locked: Any) -> None:
        guard(report, locked)
        passed.append(locked.run.status)
        close_row(lease, how)

    monkeypatch.setattr(checkpointing, "check_live", check_and_close)
    return passed


def let_the_step_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint's own step returns its refusal; from now on it raises it."""
    step = checkpointing.record_checkpoint

    def raising(*arguments: Any) -> Any:
        outcome = step(*arguments)
        if isinstance(outcome, Refusal):
            raise outcome
        return outcome

    monkeypatch.setattr(checkpointing, "record_checkpoint", raising)


@pytest.mark.parametrize("says", ["answer", "error"])
@pytest.mark.parametrize("how", CLOSINGS)
def test_n4_proves_it_when_the_checkpoint_itself_finds_the_run_closed(
    populated: ApiClient, monkeypatch: pytest.MonkeyPatch, how: str, says: str
) -> None:
    lease = leased_task()
    passed = close_after_guard(monkeypatch, lease, how)
    if says == "error":
        let_the_step_raise(monkeypatch)

    response = refused(populated, lease, "checkpoint")

    still_leased = {
        "task_status": "leased",
        "lease_owner": "w-1",
        "lease_expires_at": lease.body["lease_expires_at"],
    }
    assert passed == ["pending"]
    assert response.plain == run_closed_body(lease, how, **still_leased)


def test_n4_is_a_fault_when_a_locked_run_changed_otherwise(
    populated: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = leased_task()
    monkeypatch.setattr(checkpointing.RunChanges, "save", mock.Mock(side_effect=RunChangedError))

    with nothing_recorded():
        response = send_report(populated, lease, "checkpoint")

    assert (response.status, response.body["reason"]) == (500, "server_error")


@pytest.mark.parametrize("report", REPORTS)
def test_n5_leaves_an_attempt_mismatch_without_a_receipt(populated: ApiClient, report: str) -> None:
    lease = leased_task()

    response = refused(populated, lease, report, workflow_task_attempt=2)

    assert response.plain == {
        "error": "Workflow task is leased under another attempt.",
        "reason": "workflow_task_attempt_mismatch",
        "current_attempt": 1,
        "task_id": lease.task_id,
        "workflow_task_attempt": 2,
    }


@pytest.mark.parametrize("report", REPORTS)
def test_n5_leaves_an_owner_mismatch_without_a_receipt(populated: ApiClient, report: str) -> None:
    lease = leased_task()

    response = refused(populated, lease, report, lease_owner="w-2")

    assert response.plain == {
        "error": "Workflow task is leased by another worker.",
        "reason": "lease_owner_mismatch",
        "lease_owner": "w-1",
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
    }


@pytest.mark.parametrize("report", REPORTS)
def test_n5_leaves_an_expired_lease_without_a_receipt(populated: ApiClient, report: str) -> None:
    lease = leased_task()
    make.expire_lease(lease.task_id)

    response = refused(populated, lease, report)

    assert response.plain == {
        "error": "Workflow task lease has expired.",
        "reason": "lease_expired",
        "task_status": "leased",
        "lease_owner": "w-1",
        "lease_expires_at": A_TIME,
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
    }


@pytest.mark.parametrize("report", REPORTS)
def test_n7_leaves_an_unknown_task_without_a_receipt(populated: ApiClient, report: str) -> None:
    lease = make.Lease({**leased_task().body, "task_id": "01NOSUCHTASK"}, [])

    with nothing_recorded():
        response = send_report(populated, lease, report)

    assert response.status == 404
    assert response.plain == {
        "error": "There is no such task in this namespace.",
        "reason": "task_not_found",
        "task_id": "01NOSUCHTASK",
        "workflow_task_attempt": 1,
    }


def test_n7_leaves_a_conflicting_completion_without_a_receipt(populated: ApiClient) -> None:
    lease = leased_task()
    make.complete(lease, make.schedule())

    response = refused(populated, lease, "complete")

    assert response.plain == {
        "error": "Another report was recorded for this claim already.",
        "reason": "conflicting_completion",
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
    }


def test_n7_leaves_a_conflicting_checkpoint_without_a_receipt(populated: ApiClient) -> None:
    lease = leased_task()
    make.checkpoint(lease, make.schedule("another"))

    response = refused(populated, lease, "checkpoint")

    assert response.plain == {
        "error": "Another report was recorded for this claim already.",
        "reason": "conflicting_completion",
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
    }


@pytest.mark.parametrize("verb", ["complete", "cancellation-scopes/checkpoint"])
def test_n7_leaves_an_invalid_command_without_a_receipt(populated: ApiClient, verb: str) -> None:
    lease = leased_task()

    with nothing_recorded():
        named = {"checkpoint_id": "c-1", "start_sequence": 1, "commands": [{"type": "no_such_command"}]}
        response = send(populated, lease, verb, **named)

    assert response.status == 422
    errors = {"commands.0.type": ["This command type is not supported."]}
    assert response.plain == {
        "message": "The request is not valid.",
        "reason": "validation_failed",
        "errors": errors,
        "validation_errors": errors,
    }


@pytest.mark.parametrize("report", REPORTS)
def test_n9_answers_an_attempt_sent_as_text_with_a_number(populated: ApiClient, report: str) -> None:
    lease = leased_task()
    make.report_waiting(lease)

    response = refused(populated, lease, report, workflow_task_attempt="1")

    assert response.body["workflow_task_attempt"] == 1
    assert isinstance(response.body["workflow_task_attempt"], int)


@pytest.mark.parametrize("attempt", [0, -1, "0", "1.5", "one", 1.0, True, None, "", [1], 2**31])
def test_n9_refuses_an_attempt_that_is_not_a_positive_whole_number(api: ApiClient, attempt: Any) -> None:
    lease = leased_task()

    with nothing_recorded():
        response = send_report(api, lease, "complete", workflow_task_attempt=attempt)

    assert response.status == 422
    assert list(response.body["errors"]) == ["workflow_task_attempt"]


@pytest.mark.parametrize("report", REPORTS)
def test_n13_shows_no_payload_in_a_receipt(populated: ApiClient, report: str) -> None:
    lease = leased_task(arguments={"codec": "avro", "blob": f"{PAYLOAD}-input"})
    make.complete(lease, make.schedule(arguments={"codec": "avro", "blob": f"{PAYLOAD}-command"}))
    content = {
        "commands": [{"type": "complete_workflow", "result": {"codec": "avro", "blob": PAYLOAD}}],
        "failure": {"message": PAYLOAD, "type": PAYLOAD, "stack_trace": PAYLOAD},
        "workflow_task_attempt": 2,
    }

    response = refused(populated, lease, report, **content)

    assert PAYLOAD.encode() not in response.raw


@pytest.mark.parametrize("report", ["complete", "checkpoint"])
@pytest.mark.parametrize("how", CLOSINGS)
def test_n17_says_what_a_heartbeat_says_of_a_closed_run(populated: ApiClient, how: str, report: str) -> None:
    lease = closed_claim(populated, how)
    heartbeat = send(populated, lease, "heartbeat").body

    receipt = refused(populated, lease, report).body

    assert {key: value for key, value in receipt.items() if key not in ("recorded", "run_id")} == heartbeat


@pytest.mark.parametrize("report", ["fail", "checkpoint"])
@pytest.mark.parametrize("how", CLOSINGS)
def test_n17_says_what_a_heartbeat_says_of_a_leased_task_on_a_closed_run(
    populated: ApiClient, how: str, report: str
) -> None:
    lease = leased_task()
    close_row(lease, how)
    heartbeat = send(populated, lease, "heartbeat").body

    receipt = refused(populated, lease, report).body

    assert {key: value for key, value in receipt.items() if key not in ("recorded", "run_id")} == heartbeat


@pytest.mark.parametrize("report", ["waiting", "checkpoint"])
def test_n17_says_what_a_heartbeat_says_of_a_finished_task(populated: ApiClient, report: str) -> None:
    lease = leased_task()
    make.report_waiting(lease)
    heartbeat = send(populated, lease, "heartbeat").body

    receipt = refused(populated, lease, report).body

    assert {key: value for key, value in receipt.items() if key not in ("recorded", "run_id")} == heartbeat


@pytest.mark.parametrize("report", REPORTS)
def test_n18_answers_attempt_seven_on_a_finished_attempt_one(populated: ApiClient, report: str) -> None:
    lease = leased_task()
    make.complete(lease, make.schedule())

    response = refused(populated, lease, report, workflow_task_attempt=7)

    assert response.plain == not_leased_body(lease, workflow_task_attempt=7)


def test_says_when_the_run_closed(populated: ApiClient) -> None:
    lease = closed_claim(populated, "cancelled")
    closed_at = Run.objects.get(id=lease.body["run_id"]).closed_at

    response = refused(populated, lease, "complete")

    assert json.loads(response.raw)["run_closed_at"] == closed_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
