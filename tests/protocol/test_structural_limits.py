"""Structural limits: the run fails where everybody sees it, or the request is refused (docs/protocol/history.md 14)."""

from __future__ import annotations

from typing import Any

import pytest

from durable import conf
from durable.models import ActivityExecution, CompletionReceipt, Failure, HistoryEvent, Run, Task
from tests import factories as make
from tests.client import ApiClient, Response
from tests.invariants import check_invariants
from tests.protocol.closings import leased_task
from tests.protocol.reports import AN_ID, send
from tests.snapshot import nothing_recorded


def blob(size: int) -> dict[str, Any]:
    return {"codec": "avro", "blob": "x" * size}


def completed(api: ApiClient, *commands: dict[str, Any]) -> tuple[make.Lease, Response]:
    lease = leased_task()
    return lease, send(api, lease, "complete", commands=list(commands))


def failed_over(run_id: str, kind: str, value: int, configured: int) -> None:
    """The run failed, by one event that names the limit, and nothing else of the batch is left."""
    run = Run.objects.get(id=run_id)
    assert (run.status, run.closed_reason) == ("failed", "failed")
    event = HistoryEvent.objects.get(run_id=run_id, sequence=run.last_history_sequence)
    message = f"Structural limit {kind} exceeded: {value} is more than {configured}."
    assert event.event_type == "WorkflowFailed"
    assert event.payload == {
        "failure_id": AN_ID,
        "failure_category": "structural_limit",
        "source_kind": "workflow_run",
        "source_id": run_id,
        "non_retryable": True,
        "exception_type": "StructuralLimitExceeded",
        "exception_class": "StructuralLimitExceeded",
        "message": message,
        "structural_limit_kind": kind,
        "structural_limit_value": value,
        "structural_limit_configured": configured,
    }
    failure = Failure.objects.get(run_id=run_id)
    assert (failure.failure_category, failure.message) == ("structural_limit", message)
    check_invariants()


# -- the run fails visibly ---------------------------------------------------------------------------------------------


def test_fails_the_run_over_pending_activities(api: ApiClient, override_durable: Any) -> None:
    override_durable(PENDING_ACTIVITY_COUNT=3)

    lease, response = completed(api, *[make.schedule()] * 4)

    assert (response.status, response.body["run_status"], response.body["recorded"]) == (200, "failed", True)
    assert response.body["created_task_ids"] == []
    failed_over(lease.body["run_id"], "pending_activity_count", 4, 3)
    assert make.event_types(lease.body["run_id"]) == ["StartAccepted", "WorkflowStarted", "WorkflowFailed"]
    assert not ActivityExecution.objects.exists()


def test_counts_activities_of_earlier_batches(api: ApiClient, override_durable: Any) -> None:
    override_durable(PENDING_ACTIVITY_COUNT=2)
    completed(api, make.schedule(), make.schedule())
    held = make.lease_activity()
    make.complete_step(make.lease_activity())
    lease = make.lease_workflow()

    response = send(api, lease, "complete", commands=[make.schedule(), make.schedule()])

    assert response.body["run_status"] == "failed"
    failed_over(lease.body["run_id"], "pending_activity_count", 3, 2)
    assert {task.status for task in Task.objects.filter(kind="activity")} == {"completed", "cancelled"}
    late = send(api, held, "complete", result=make.envelope(1))
    assert (late.status, late.body["reason"]) == (409, "run_closed")


def test_allows_as_many_activities_as_the_limit(api: ApiClient, override_durable: Any) -> None:
    override_durable(PENDING_ACTIVITY_COUNT=3)

    _, response = completed(api, *[make.schedule()] * 3)

    assert response.body["run_status"] == "waiting"


@pytest.mark.parametrize(
    "command",
    [
        make.schedule(arguments=blob(101)),
        {"type": "complete_workflow", "result": blob(101)},
        {
            "type": "record_local_activity", "activity_type": "step", "execution_mode": "local", "outcome": "completed",
            "arguments": blob(1), "result": blob(101),
            "attempts": [{"attempt_id": "a", "attempt_number": 1, "outcome": "completed", "duration_ms": 1}],
        },
        {
            "type": "record_local_activity", "activity_type": "step", "execution_mode": "local", "outcome": "completed",
            "arguments": blob(101), "result": blob(1),
            "attempts": [{"attempt_id": "a", "attempt_number": 1, "outcome": "completed", "duration_ms": 1}],
        },
    ],
)  # fmt: skip
def test_fails_the_run_over_a_payload(api: ApiClient, override_durable: Any, command: dict[str, Any]) -> None:
    override_durable(PAYLOAD_SIZE_BYTES=100)

    lease, response = completed(api, make.schedule(), command)

    assert (response.status, response.body["run_status"]) == (200, "failed")
    failed_over(lease.body["run_id"], "payload_size_bytes", 101, 100)


def test_allows_a_payload_of_exactly_the_limit(api: ApiClient, override_durable: Any) -> None:
    override_durable(PAYLOAD_SIZE_BYTES=100)

    _, response = completed(api, make.schedule(arguments=blob(100)))

    assert response.body["run_status"] == "waiting"


def test_fails_the_run_over_the_events_of_one_transaction(api: ApiClient, override_durable: Any) -> None:
    override_durable(HISTORY_TRANSACTION_SIZE=3)

    lease, response = completed(api, *[make.schedule()] * 4)

    assert (response.status, response.body["run_status"]) == (200, "failed")
    failed_over(lease.body["run_id"], "history_transaction_size", 4, 3)


def test_answers_the_repeat_of_a_completion_that_failed_the_run(api: ApiClient, override_durable: Any) -> None:
    override_durable(PAYLOAD_SIZE_BYTES=100)
    command = make.schedule(arguments=blob(101))
    lease, _ = completed(api, command)

    with nothing_recorded():
        response = send(api, lease, "complete", commands=[command])

    assert (response.status, response.body["reason"], response.body["run_status"]) == (
        200, "already_completed", "failed",
    )  # fmt: skip


@pytest.mark.parametrize(
    "limit", ["PENDING_ACTIVITY_COUNT", "PAYLOAD_SIZE_BYTES", "HISTORY_TRANSACTION_SIZE", "COMMAND_BATCH_SIZE"]
)
def test_switches_a_limit_off_with_zero(api: ApiClient, override_durable: Any, limit: str) -> None:
    override_durable(**{limit: 0})

    _, response = completed(api, *[make.schedule()] * 5)

    assert response.body["run_status"] == "waiting"


def test_has_the_documented_defaults() -> None:
    settings = conf.DurableSettings()

    assert (settings.pending_activity_count, settings.command_batch_size) == (2000, 1000)
    assert (settings.payload_size_bytes, settings.history_transaction_size) == (1_572_864, 5000)
    assert (settings.history_page_size, settings.history_page_size_max) == (500, 1000)
    assert (settings.history_page_bytes, settings.max_payload_bytes) == (4 * 1024 * 1024, 2 * 1024 * 1024)
    assert settings.max_body_bytes == 3 * 1024 * 1024


# -- the request is refused --------------------------------------------------------------------------------------------


def test_refuses_more_commands_than_a_batch_may_have(api: ApiClient, override_durable: Any) -> None:
    override_durable(COMMAND_BATCH_SIZE=3)
    lease = leased_task()

    with nothing_recorded():
        response = send(api, lease, "complete", commands=[{"type": "whatever"}] * 4)

    assert response.status == 422
    assert response.plain == {
        "message": "A batch may hold 3 commands; this one has 4.",
        "reason": "structural_limit_exceeded",
        "outcome": "rejected",
        "limit_kind": "command_batch_size",
        "current_value": 4,
        "configured_limit": 3,
    }
    assert Run.objects.get(workflow_id="order-1").status == "pending"
    assert send(api, lease, "complete", commands=[make.finish()]).status == 200


def test_takes_a_batch_of_a_thousand(api: ApiClient) -> None:
    _, response = completed(api, *make.schedule_list(1000))

    assert response.body["run_status"] == "waiting"
    assert len(response.body["created_task_ids"]) == 1000


def test_refuses_an_input_over_the_payload_limit(api: ApiClient, override_durable: Any) -> None:
    override_durable(PAYLOAD_SIZE_BYTES=100)

    with nothing_recorded():
        response = api.post("/api/workflows", {"workflow_type": "five", "input": blob(101)})

    assert response.status == 422
    assert response.body["errors"] == {"input": ["The payload has 101 encoded bytes; at most 100 are allowed."]}


def test_refuses_a_list_of_arguments_that_becomes_too_large(api: ApiClient, override_durable: Any) -> None:
    override_durable(PAYLOAD_SIZE_BYTES=100)

    with nothing_recorded():
        response = api.post("/api/workflows", {"workflow_type": "five", "input": ["x" * 200]})

    assert (response.status, list(response.body["errors"])) == (422, ["input"])


# -- an activity's result ----------------------------------------------------------------------------------------------


def test_records_an_oversized_result_as_a_failure_of_the_activity(api: ApiClient, override_durable: Any) -> None:
    override_durable(PAYLOAD_SIZE_BYTES=100)
    make.complete(leased_task(), make.schedule(retry_policy={"max_attempts": 5}))
    lease = make.lease_activity()

    response = send(api, lease, "complete", result=blob(101))

    assert response.status == 200
    assert response.plain == {
        "task_id": lease.task_id,
        "activity_attempt_id": lease.body["activity_attempt_id"],
        "outcome": "completed",
        "recorded": True,
        "reason": None,
        "next_task_id": AN_ID,
    }
    event = HistoryEvent.objects.get(event_type="ActivityFailed")
    limits = {
        "failure_category": "structural_limit",
        "non_retryable": True,
        "structural_limit_kind": "payload_size_bytes",
        "structural_limit_value": 101,
        "structural_limit_configured": 100,
        "message": "The activity's result has 101 encoded bytes; at most 100 are allowed.",
        "attempt_number": 1,
    }
    assert limits.items() <= event.payload.items()
    assert Run.objects.get().status == "waiting"
    assert CompletionReceipt.objects.filter(kind="activity").count() == 1
    check_invariants()


def test_answers_the_repeat_of_an_oversized_result(api: ApiClient, override_durable: Any) -> None:
    override_durable(PAYLOAD_SIZE_BYTES=100)
    make.complete(leased_task(), make.schedule())
    lease = make.lease_activity()
    send(api, lease, "complete", result=blob(101))

    with nothing_recorded():
        response = send(api, lease, "complete", result=blob(101))

    assert (response.status, response.body["reason"]) == (200, "already_completed")


def test_shows_the_failure_to_the_workflow(api: ApiClient, override_durable: Any) -> None:
    override_durable(PAYLOAD_SIZE_BYTES=100)
    make.complete(leased_task(), make.schedule())
    send(api, make.lease_activity(), "complete", result=blob(101))

    history = make.lease_workflow().history

    assert [event.event_type for event in history[-3:]] == ["ActivityScheduled", "ActivityStarted", "ActivityFailed"]
