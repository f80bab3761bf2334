"""`record_local_activity`: what it must say, and what it becomes (docs/protocol/history.md 5.2)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durable.models import ActivityAttempt, ActivityExecution, HistoryEvent, Run, Task
from tests import factories as make
from tests.client import ApiClient
from tests.invariants import check_invariants
from tests.protocol.reports import ABSENT, AN_ID, without
from tests.protocol.test_commands import LOCAL, accepted, refused

ATTEMPT = LOCAL["attempts"][0]
FAILED_TRY = {
    "attempt_id": "a-1",
    "attempt_number": 1,
    "outcome": "failed",
    "duration_ms": 20,
    "message": "boom",
    "exception_type": "ValueError",
    "retry_reason": "failure",
    "backoff_seconds": 2,
}
LAST_TRY = {"attempt_id": "a-2", "attempt_number": 2, "outcome": "completed", "duration_ms": 30}
POLICY = {"max_attempts": 3, "backoff_seconds": [2, 4]}
RETRIED = {**LOCAL, "retry_policy": POLICY, "attempts": [FAILED_TRY, LAST_TRY]}


def local(**fields: Any) -> dict[str, Any]:
    return without({**LOCAL, **fields})


def failed(outcome: str = "failed", **fields: Any) -> dict[str, Any]:
    attempt = {**ATTEMPT, "outcome": outcome}
    return local(result=ABSENT, outcome=outcome, message="boom", attempts=[attempt], **fields)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("activity_type", value) for value in (ABSENT, None, "", 7)],
        *[("execution_mode", value) for value in (ABSENT, None, "remote", "", 7)],
        *[("outcome", value) for value in (ABSENT, None, "done", 7)],
        *[("result", value) for value in (ABSENT, None, "x", {"codec": "json", "blob": "x"})],
        *[("attempts", value) for value in (ABSENT, None, [], {}, "x", [ATTEMPT] * 2)],
        ("timeout_kind", "schedule_to_start"),
        ("parallel_group_path", [{}]),
        *[(name, 0) for name in ("start_to_close_timeout", "schedule_to_close_timeout", "heartbeat_timeout")],
    ],
)
def test_refuses_a_field_that_is_wrong(api: ApiClient, field: str, value: Any) -> None:
    errors = refused(api, local(**{field: value}))

    assert f"commands.0.{field}" in errors


@pytest.mark.parametrize("outcome", ["failed", "timed_out", "cancelled"])
@pytest.mark.parametrize(
    ("field", "value"), [("message", ABSENT), ("message", 7), ("result", make.envelope(1)), ("non_retryable", "yes")]
)
def test_refuses_an_outcome_that_is_told_wrongly(api: ApiClient, outcome: str, field: str, value: Any) -> None:
    kind = {"timeout_kind": "heartbeat"} if outcome == "timed_out" else {}

    errors = refused(api, without({**failed(outcome, **kind), field: value}))

    assert f"commands.0.{field}" in errors


def test_wants_to_know_which_time_out_it_was(api: ApiClient) -> None:
    assert "commands.0.timeout_kind" in refused(api, failed("timed_out"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("attempt_id", value) for value in (ABSENT, None, "", 7, "x" * 256)],
        *[("attempt_number", value) for value in (ABSENT, None, 0, 2, "x", 1.5)],
        *[("outcome", value) for value in (ABSENT, None, "failed", "done")],
        *[("duration_ms", value) for value in (ABSENT, None, -1, "x", 1.5, True)],
        *[("heartbeats", value) for value in ("x", {}, [7], [{}], [{"elapsed_ms": -1}], [{"elapsed_ms": "1"}])],
        ("heartbeats", [{"elapsed_ms": 5}, {"elapsed_ms": 4}]),
        ("heartbeats", [{"elapsed_ms": number} for number in range(1001)]),
        ("retry_reason", "failure"),
        ("backoff_seconds", 1),
    ],
)
def test_refuses_an_attempt_whose_field_is_wrong(api: ApiClient, field: str, value: Any) -> None:
    errors = refused(api, local(attempts=[without({**ATTEMPT, field: value})]))

    paths = {f"commands.0.attempts.0.{field}", "commands.0.attempts", "commands.0.attempts.0.retry_reason"}
    assert set(errors) <= paths
    assert errors


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("outcome", value) for value in ("completed", "cancelled")],
        *[("retry_reason", value) for value in (ABSENT, None, "because")],
        *[("backoff_seconds", value) for value in (ABSENT, None, 3, -1, "x")],
    ],
)
def test_refuses_an_earlier_attempt_whose_field_is_wrong(api: ApiClient, field: str, value: Any) -> None:
    errors = refused(api, {**RETRIED, "attempts": [without({**FAILED_TRY, field: value}), LAST_TRY]})

    assert list(errors) == [f"commands.0.attempts.0.{field}"]


def test_refuses_attempts_with_one_id(api: ApiClient) -> None:
    attempts = [FAILED_TRY, {**LAST_TRY, "attempt_id": "a-1"}]

    assert list(refused(api, {**RETRIED, "attempts": attempts})) == ["commands.0.attempts"]


def test_refuses_more_attempts_than_the_policy_has(api: ApiClient) -> None:
    errors = refused(api, {**RETRIED, "retry_policy": {"max_attempts": 1}})

    assert errors == {"commands.0.attempts": ["This must be a list of 1 to 1 attempts."]}


# -- what it becomes ---------------------------------------------------------------------------------------------------


def events_of(run_id: str) -> list[HistoryEvent]:
    return list(HistoryEvent.objects.filter(run_id=run_id, sequence__gt=2).order_by("sequence"))


def test_records_the_whole_activity_in_one_transaction(api: ApiClient) -> None:
    beats = [{"elapsed_ms": 5, "details": {"row": 1}}, {"elapsed_ms": 10}]
    attempts = [FAILED_TRY, {**LAST_TRY, "heartbeats": beats}]

    response = accepted(api, {**RETRIED, "attempts": attempts})

    events = events_of(response.body["run_id"])
    assert [event.event_type for event in events] == [
        "ActivityScheduled", "ActivityStarted", "ActivityRetryScheduled", "ActivityStarted",
        "ActivityHeartbeatRecorded", "ActivityHeartbeatRecorded", "ActivityCompleted",
    ]  # fmt: skip
    assert len({event.recorded_at for event in events}) == 1
    for event in events:
        assert event.payload["execution_mode"] == "local"
        assert event.payload["local_activity"] is True
        assert event.payload["sequence"] == 1
        assert event.payload["workflow_task_id"] == response.body["task_id"] == event.workflow_task_id
    assert [event.payload.get("worker_attempt_id") for event in events[1:]] == ["a-1", "a-1", *["a-2"] * 4]
    assert events[-1].payload["result"] == LOCAL["result"]
    assert events[2].payload["retry_backoff_seconds"] == 2
    assert response.body["created_task_ids"] == []
    check_invariants_of_open_run(response.body["run_id"])


def check_invariants_of_open_run(run_id: str) -> None:
    """The batch left the run without anything that could wake it; the next command would. All else must hold."""
    Run.objects.filter(id=run_id).update(blocked_at=Run.objects.get(id=run_id).created_at)
    check_invariants()


def test_gives_attempts_ids_of_its_own_and_no_task(api: ApiClient) -> None:
    response = accepted(api, RETRIED)

    attempts = ActivityAttempt.objects.order_by("attempt_number")
    assert [(attempt.status, attempt.id == AN_ID) for attempt in attempts] == [("failed", True), ("completed", True)]
    assert not Task.objects.filter(kind="activity").exists()
    execution = ActivityExecution.objects.get()
    assert (execution.is_local, execution.status, execution.attempt_count) == (True, "completed", 2)
    assert Run.objects.get(id=response.body["run_id"]).pending_activity_count == 0


def test_counts_the_times_of_attempts_back_from_the_commit(api: ApiClient) -> None:
    response = accepted(api, RETRIED)

    first, second = ActivityAttempt.objects.order_by("attempt_number")
    committed = events_of(response.body["run_id"])[0].recorded_at
    assert second.closed_at == committed
    assert second.started_at == committed - timedelta(milliseconds=30)
    assert first.closed_at == second.started_at - timedelta(seconds=2)
    assert first.started_at == first.closed_at - timedelta(milliseconds=20)


@pytest.mark.parametrize(
    ("command", "event_type", "category", "status"),
    [
        (failed("failed", exception_type="ValueError"), "ActivityFailed", "activity", "failed"),
        (failed("timed_out", timeout_kind="heartbeat"), "ActivityTimedOut", "timeout", "failed"),
        (failed("cancelled"), "ActivityCancelled", "cancelled", "cancelled"),
    ],
)
def test_records_how_it_ended(
    api: ApiClient, command: dict[str, Any], event_type: str, category: str, status: str
) -> None:
    response = accepted(api, command)

    last = events_of(response.body["run_id"])[-1]
    assert (last.event_type, last.payload["failure_category"], last.payload["message"]) == (
        event_type,
        category,
        "boom",
    )
    assert last.payload["failure_id"] == AN_ID
    assert last.payload.get("timeout_kind") == command.get("timeout_kind")
    assert ActivityExecution.objects.get().status == status


def test_lets_the_code_go_on_in_the_same_batch(api: ApiClient) -> None:
    response = accepted(api, LOCAL, make.schedule("next"), {**LOCAL, "activity_type": "third"}, make.finish("done"))

    steps = [event.payload.get("sequence") for event in events_of(response.body["run_id"])]
    assert steps == [1, 1, 1, 2, 3, 3, 3, None]
    assert response.body["run_status"] == "completed"
    check_invariants()


@pytest.mark.parametrize("reason", ["failure", "timeout", "cold_replay"])
def test_takes_every_reason_to_retry(api: ApiClient, reason: str) -> None:
    accepted(api, {**RETRIED, "attempts": [{**FAILED_TRY, "retry_reason": reason}, LAST_TRY]})

    event = HistoryEvent.objects.get(event_type="ActivityRetryScheduled")
    assert event.payload["retry_reason"] == reason


def test_takes_a_hundred_attempts(api: ApiClient) -> None:
    policy = {"max_attempts": 100}
    tries = [
        {**FAILED_TRY, "attempt_id": f"a-{number}", "attempt_number": number, "backoff_seconds": 0}
        for number in range(1, 100)
    ]
    last = {**LAST_TRY, "attempt_id": "a-100", "attempt_number": 100}

    accepted(api, {**RETRIED, "retry_policy": policy, "attempts": [*tries, last]})

    assert ActivityAttempt.objects.count() == 100


def test_refuses_more_than_a_hundred_attempts(api: ApiClient) -> None:
    tries = [{**FAILED_TRY, "attempt_id": f"a-{n}", "attempt_number": n, "backoff_seconds": 0} for n in range(1, 101)]
    last = {**LAST_TRY, "attempt_id": "a-101", "attempt_number": 101}

    errors = refused(api, {**RETRIED, "retry_policy": {"max_attempts": 200}, "attempts": [*tries, last]})

    assert errors == {"commands.0.attempts": ["This must be a list of 1 to 100 attempts."]}
