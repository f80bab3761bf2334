"""`record_local_activity`: an activity that ran inside the workflow task, recorded whole (history.md 5.2 and 9.4).

The worker retried it with its own clock, so the moments in the payloads are counted back from the commit; no task and
no lease ever existed. If the workflow task is lost the activity runs again: at least once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from durable.commands.activities import EMPTY_LIST, read_time_outs
from durable.commands.batch import Batch
from durable.commands.fields import Fields, envelope_bytes
from durable.commands.registry import CommandType, register
from durable.commands.retry import Policy, backoff_seconds, max_attempts, read_policy
from durable.history import events
from durable.history.events import NewEvent
from durable.ids import new_id
from durable.models import ActivityAttempt, ActivityExecution
from durable.states import ActivityStatus, AttemptStatus

OUTCOMES = ("completed", "failed", "timed_out", "cancelled")
TIMEOUT_KINDS = ("start_to_close", "schedule_to_close", "heartbeat")
RETRY_REASONS = ("failure", "timeout", "cold_replay")
MOST_ATTEMPTS = 100
MOST_HEARTBEATS = 1000
MOST_MS = 315_360_000_000  # ten years: moments counted back from it are still moments

_ATTEMPT_STATUS = {
    "completed": AttemptStatus.COMPLETED,
    "failed": AttemptStatus.FAILED,
    "timed_out": AttemptStatus.EXPIRED,
    "cancelled": AttemptStatus.CANCELLED,
}
_TERMINAL_EVENTS = {
    "failed": "ActivityFailed",
    "timed_out": "ActivityTimedOut",
    "cancelled": "ActivityCancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAttempt:
    """One try as the worker reports it; durations in milliseconds."""

    attempt_id: str
    outcome: str
    duration_ms: int
    heartbeats: list[dict[str, Any]]
    failure: dict[str, Any]
    retry_reason: str | None
    backoff_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLocalActivity:
    """A validated `record_local_activity`."""

    activity_type: str
    arguments: dict[str, Any]
    outcome: str
    result: dict[str, Any] | None
    failure: dict[str, Any]
    attempts: list[LocalAttempt]
    policy: Policy | None


def _validate(fields: Fields) -> RecordLocalActivity | None:
    activity_type = fields.name("activity_type", required=True)
    fields.choice("execution_mode", ("local",), required=True)
    outcome = fields.choice("outcome", OUTCOMES, required=True)
    policy = read_policy(fields, read_time_outs(fields))
    if fields.raw.get("parallel_group_path") is not None:
        fields.fault("parallel_group_path", "Local activities cannot stand in a list group.")
    if outcome is None:
        return None
    arguments = fields.envelope("arguments") or EMPTY_LIST
    result = fields.envelope("result", required=outcome == "completed")
    failure = _read_failure(fields, outcome)
    attempts = _read_attempts(fields, outcome, policy)
    if outcome != "completed" and fields.raw.get("result") is not None:
        fields.fault("result", "Only a completed activity has a result.")
    if activity_type is None:
        return None
    return RecordLocalActivity(
        activity_type=activity_type,
        arguments=arguments,
        outcome=outcome,
        result=result,
        failure=failure,
        attempts=attempts,
        policy=policy,
    )


def _read_failure(fields: Fields, outcome: str) -> dict[str, Any]:
    """The failure fields of the command or of one attempt; empty when it completed."""
    kind = fields.choice("timeout_kind", TIMEOUT_KINDS, required=outcome == "timed_out")
    if outcome == "completed":
        return {}
    failure: dict[str, Any] = {
        "message": fields.message(required=True),
        "exception_type": fields.text("exception_type", longest=1000),
        "non_retryable": fields.flag("non_retryable"),
    }
    return {**failure, "timeout_kind": kind} if outcome == "timed_out" else failure


def _read_attempts(fields: Fields, outcome: str, policy: Policy | None) -> list[LocalAttempt]:
    raw = fields.raw.get("attempts")
    most = min(MOST_ATTEMPTS, max_attempts(policy))
    if not isinstance(raw, list) or not 1 <= len(raw) <= most:
        fields.fault("attempts", f"This must be a list of 1 to {most} attempts.")
        return []
    attempts = []
    for number, element in enumerate(raw, 1):
        path = f"{fields.path}.attempts.{number - 1}"
        if not isinstance(element, dict):
            fields.errors.setdefault(path, []).append("This must be an object.")
            continue
        entry = Fields(element, path, fields.errors)
        attempts.append(_read_attempt(entry, number, is_last=number == len(raw), outcome=outcome, policy=policy))
    if len({attempt.attempt_id for attempt in attempts}) != len(attempts):
        fields.fault("attempts", "attempt_id must be unique within the list.")
    if sum(len(attempt.heartbeats) for attempt in attempts) > MOST_HEARTBEATS:
        fields.fault("attempts", f"At most {MOST_HEARTBEATS} heartbeats may be reported.")
    return attempts


def _read_attempt(entry: Fields, number: int, *, is_last: bool, outcome: str, policy: Policy | None) -> LocalAttempt:
    if entry.whole("attempt_number", least=1, required=True) not in (number, None):
        entry.fault("attempt_number", f"This must be {number}: attempts stand in order.")
    ended = entry.choice("outcome", OUTCOMES, required=True) or outcome
    reason = entry.choice("retry_reason", RETRY_REASONS, required=not is_last)
    backoff = entry.whole("backoff_seconds", least=0, required=not is_last)
    if is_last:
        if ended != outcome:
            entry.fault("outcome", "The last attempt must have the command's outcome.")
        if reason is not None or backoff is not None:
            entry.fault("retry_reason", "The last attempt is not retried.")
    else:
        if ended not in ("failed", "timed_out"):
            entry.fault("outcome", "An attempt that was retried must have failed or timed out.")
        if backoff is not None and reason != "cold_replay" and backoff != backoff_seconds(policy, number):
            entry.fault("backoff_seconds", f"The retry policy says {backoff_seconds(policy, number)}.")
    return LocalAttempt(
        attempt_id=entry.text("attempt_id", required=True) or "",
        outcome=ended,
        duration_ms=entry.whole("duration_ms", least=0, most=MOST_MS, required=True) or 0,
        heartbeats=_read_heartbeats(entry),
        failure=_attempt_failure(entry, ended),
        retry_reason=reason,
        backoff_seconds=backoff or 0,
    )


def _attempt_failure(entry: Fields, outcome: str) -> dict[str, Any]:
    if outcome == "completed":
        return {}
    failure: dict[str, Any] = {
        "message": entry.message(),
        "exception_type": entry.text("exception_type", longest=1000),
        "non_retryable": entry.flag("non_retryable"),
    }
    kind = entry.choice("timeout_kind", TIMEOUT_KINDS)
    return {**failure, "timeout_kind": kind} if outcome == "timed_out" else failure


def _read_heartbeats(entry: Fields) -> list[dict[str, Any]]:
    raw = entry.raw.get("heartbeats")
    if raw is None:
        return []
    if not isinstance(raw, list) or not all(isinstance(beat, dict) for beat in raw):
        entry.fault("heartbeats", "This must be a list of objects.")
        return []
    elapsed = [beat.get("elapsed_ms") for beat in raw]
    if not all(type(ms) is int and 0 <= ms <= MOST_MS for ms in elapsed) or elapsed != sorted(elapsed):
        entry.fault("heartbeats", "elapsed_ms must be whole milliseconds, at most ten years, that never decrease.")
        return []
    return list(raw)


# -- apply -------------------------------------------------------------------------------------------------------------


def _apply(batch: Batch, command: RecordLocalActivity) -> None:
    changes, run, now = batch.changes, batch.changes.run, batch.changes.now
    batch.check_payload(envelope_bytes(command.arguments))
    batch.check_payload(envelope_bytes(command.result))
    started = now - timedelta(
        milliseconds=sum(attempt.duration_ms + attempt.backoff_seconds * 1000 for attempt in command.attempts)
    )
    execution = ActivityExecution(
        id=new_id(),
        namespace=run.namespace,
        run_id=run.id,
        step_number=changes.take_step_number(),
        activity_type=command.activity_type,
        task_queue=run.task_queue,
        status=ActivityStatus.COMPLETED if command.outcome == "completed" else _closed_status(command.outcome),
        is_local=True,
        attempt_count=len(command.attempts),
        retry_policy=command.policy,
        event_fields={"execution_mode": "local", "local_activity": True, "workflow_task_id": batch.task.id},
        scheduled_at=started,
        scheduled_sequence=run.last_history_sequence + 1,
        closed_at=now,
    )
    changes.append(_of_task(batch, events.activity_scheduled(execution, arguments=command.arguments, deadlines=None)))
    for number, attempt in enumerate(command.attempts, 1):
        started = _record_attempt(batch, execution, command, attempt, number, started)
    execution.outcome_sequence = run.last_history_sequence
    changes.executions.append(execution)


def _closed_status(outcome: str) -> ActivityStatus:
    return ActivityStatus.CANCELLED if outcome == "cancelled" else ActivityStatus.FAILED


def _record_attempt(
    batch: Batch,
    execution: ActivityExecution,
    command: RecordLocalActivity,
    local: LocalAttempt,
    number: int,
    started_at: datetime,
) -> datetime:
    """Append one attempt's events; returns when the next one began."""
    changes = batch.changes
    ended_at = started_at + timedelta(milliseconds=local.duration_ms)
    attempt = ActivityAttempt(
        id=new_id(),
        namespace=changes.run.namespace,
        activity_execution_id=execution.id,
        run_id=changes.run.id,
        attempt_number=number,
        status=_ATTEMPT_STATUS[local.outcome],
        lease_owner=batch.task.lease_owner or "",
        started_at=started_at,
        closed_at=ended_at,
    )

    def append(event: NewEvent) -> int:
        event.payload["worker_attempt_id"] = local.attempt_id
        return changes.append(_of_task(batch, event))

    append(events.activity_started(execution, attempt))
    for beat in local.heartbeats:
        at = started_at + timedelta(milliseconds=beat["elapsed_ms"])
        append(events.activity_heartbeat(execution, attempt, heartbeat_at=at, progress=beat.get("details")))
    changes.attempts.append(attempt)
    if number < len(command.attempts):
        append(
            events.activity_retry_scheduled(
                execution,
                attempt.id,
                attempt_number=number,
                retry_reason=local.retry_reason or "failure",
                backoff_seconds=local.backoff_seconds,
                max_attempts=max_attempts(command.policy),
                failure=local.failure,
            )
        )
        return ended_at + timedelta(seconds=local.backoff_seconds)
    if command.outcome == "completed":
        append(events.activity_completed(execution, attempt, command.result))
        return ended_at
    payload = {
        "failure_id": new_id(),
        "failure_category": {"timed_out": "timeout", "cancelled": "cancelled"}.get(command.outcome, "activity"),
        "exception": {"type": command.failure["exception_type"], "message": command.failure["message"]},
        **command.failure,
    }
    sequence = append(events.activity_ended(_TERMINAL_EVENTS[command.outcome], execution, attempt, payload))
    changes.add_failure(source_kind="activity_execution", source_id=execution.id, sequence=sequence, payload=payload)
    return ended_at


def _of_task(batch: Batch, event: NewEvent) -> NewEvent:
    return NewEvent(
        event_type=event.event_type,
        payload=event.payload,
        terminal_step=event.terminal_step,
        workflow_task_id=batch.task.id,
    )


register(
    CommandType(
        name="record_local_activity",
        validate=_validate,
        apply=_apply,
        owns=frozenset(
            {
                "retry_policy", "start_to_close_timeout", "schedule_to_start_timeout", "schedule_to_close_timeout",
                "heartbeat_timeout", "non_retryable",
            }
        ),
    )
)  # fmt: skip
