"""Event constructors: one function an event type (docs/protocol/history.md 8). Pure: they shape payloads, nothing else.

Every event of a step repeats the step number under `sequence`, and the step's parallel block: replay merges a step's
events by them. No other counter may ever stand under that key.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from durable.history.times import stamp
from durable.models import ActivityAttempt, ActivityExecution, Run, Timer

Payload = dict[str, Any]

CODEC = "avro"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event that is not yet numbered. `terminal_step` names the step it ends, if it ends one."""

    event_type: str
    payload: Payload
    terminal_step: int | None = None
    workflow_task_id: str | None = None
    workflow_command_id: str | None = None


# -- run lifecycle -----------------------------------------------------------------------------------------------------


def start_accepted(run: Run, command_id: str) -> NewEvent:
    payload = {
        "workflow_command_id": command_id,
        "workflow_instance_id": run.workflow_id,
        "workflow_run_id": run.id,
        "workflow_type": run.workflow_type,
        "business_key": run.business_key,
        "search_attributes": run.search_attributes,
        "outcome": "started_new",
    }
    return NewEvent(event_type="StartAccepted", payload=payload, workflow_command_id=command_id)


def workflow_started(run: Run, command_id: str, arguments: Payload) -> NewEvent:
    """The run's input is stored here and only here; workers and clients get it from this event."""
    contract = run.command_contract or {}
    payload = {
        "workflow_type": run.workflow_type,
        "workflow_instance_id": run.workflow_id,
        "workflow_run_id": run.id,
        "workflow_command_id": command_id,
        "business_key": run.business_key,
        "memo": run.memo,
        "search_attributes": run.search_attributes,
        "execution_timeout_seconds": run.execution_timeout_seconds,
        "run_timeout_seconds": run.run_timeout_seconds,
        "execution_deadline_at": stamp(run.execution_deadline_at),
        "run_deadline_at": stamp(run.run_deadline_at),
        "arguments": arguments,
        "payload_codec": CODEC,
        **contract,
    }
    return NewEvent(event_type="WorkflowStarted", payload=payload, workflow_command_id=command_id)


def workflow_completed(output: Payload | None, task_id: str) -> NewEvent:
    payload = {"output": output, "payload_codec": CODEC}
    return NewEvent(event_type="WorkflowCompleted", payload=payload, workflow_task_id=task_id)


def workflow_failed(payload: Payload, task_id: str | None) -> NewEvent:
    return NewEvent(event_type="WorkflowFailed", payload=payload, workflow_task_id=task_id)


def workflow_timed_out(run: Run, *, failure_id: str, timeout_kind: str) -> NewEvent:
    payload = {
        "failure_id": failure_id,
        "timeout_kind": timeout_kind,
        "failure_category": "timeout",
        "message": f"Workflow {timeout_kind.replace('_', ' ')} expired.",
        "exception_class": "WorkflowTimedOut",
        "closed_reason": "timed_out",
        "execution_deadline_at": stamp(run.execution_deadline_at),
        "run_deadline_at": stamp(run.run_deadline_at),
    }
    return NewEvent(event_type="WorkflowTimedOut", payload=payload)


def stop_requested(run: Run, *, command_type: str, command_id: str, reason: str | None) -> NewEvent:
    """`CancelRequested` or `TerminateRequested`."""
    payload = {
        "workflow_command_id": command_id,
        "workflow_instance_id": run.workflow_id,
        "workflow_run_id": run.id,
        "command_type": command_type,
        "reason": reason,
    }
    return NewEvent(event_type=f"{command_type.title()}Requested", payload=payload, workflow_command_id=command_id)


def workflow_stopped(run: Run, *, closed_reason: str, command_id: str, failure_id: str, reason: str | None) -> NewEvent:
    """`WorkflowCancelled` or `WorkflowTerminated`; `closed_reason` is `cancelled` or `terminated`."""
    sentence = f"Workflow {closed_reason}"
    payload = {
        "workflow_command_id": command_id,
        "workflow_instance_id": run.workflow_id,
        "workflow_run_id": run.id,
        "failure_id": failure_id,
        "failure_category": closed_reason,
        "closed_reason": closed_reason,
        "exception_class": f"Workflow{closed_reason.title()}",
        "message": f"{sentence}: {reason}" if reason else f"{sentence}.",
        "reason": reason,
    }
    return NewEvent(event_type=f"Workflow{closed_reason.title()}", payload=payload, workflow_command_id=command_id)


def repair_requested(run: Run, *, command_id: str) -> NewEvent:
    payload = {
        "workflow_command_id": command_id,
        "workflow_instance_id": run.workflow_id,
        "workflow_run_id": run.id,
        "command_type": "repair",
    }
    return NewEvent(event_type="RepairRequested", payload=payload, workflow_command_id=command_id)


# -- activities --------------------------------------------------------------------------------------------------------


def _activity(execution: ActivityExecution, **more: Any) -> Payload:
    return {
        "activity_execution_id": execution.id,
        "activity_type": execution.activity_type,
        "sequence": execution.step_number,
        **more,
        **(execution.event_fields or {}),
    }


def activity_scheduled(execution: ActivityExecution, *, arguments: Payload, deadlines: Payload | None) -> NewEvent:
    """Holds the arguments; the claim of the activity's task reads them from here."""
    snapshot = {
        "id": execution.id,
        "idempotency_key": execution.id,
        "sequence": execution.step_number,
        "type": execution.activity_type,
        "status": "pending",
        "attempt_count": 0,
        "queue": execution.task_queue,
        "payload_codec": CODEC,
        "arguments": arguments,
        "retry_policy": execution.retry_policy,
        "deadlines": deadlines,
    }
    return NewEvent(event_type="ActivityScheduled", payload=_activity(execution, activity=snapshot))


def activity_started(execution: ActivityExecution, attempt: ActivityAttempt) -> NewEvent:
    """Appended with the attempt's outcome, whatever ends it, with the time of the claim (docs/design.md, rule 3)."""
    more = {
        "activity_attempt_id": attempt.id,
        "attempt_number": attempt.attempt_number,
        "lease_expires_at": stamp(attempt.lease_expires_at),
        "activity_attempt": {
            "id": attempt.id,
            "activity_execution_id": execution.id,
            "workflow_task_id": attempt.task_id,
            "attempt_number": attempt.attempt_number,
            "status": "running",
            "lease_owner": attempt.lease_owner,
            "started_at": stamp(attempt.started_at),
            "lease_expires_at": stamp(attempt.lease_expires_at),
        },
    }
    return NewEvent(event_type="ActivityStarted", payload=_activity(execution, **more))


def activity_heartbeat(
    execution: ActivityExecution, attempt: ActivityAttempt, *, heartbeat_at: datetime | None, progress: Any
) -> NewEvent:
    more = {
        "activity_attempt_id": attempt.id,
        "attempt_number": attempt.attempt_number,
        "heartbeat_at": stamp(heartbeat_at),
        "lease_expires_at": stamp(attempt.lease_expires_at),
        "progress": progress,
    }
    return NewEvent(event_type="ActivityHeartbeatRecorded", payload=_activity(execution, **more))


def activity_retry_scheduled(
    execution: ActivityExecution,
    attempt_id: str | None,
    *,
    attempt_number: int,
    retry_reason: str,
    backoff_seconds: int,
    max_attempts: int,
    failure: Payload,
    retry_task_id: str | None = None,
    retry_of_task_id: str | None = None,
    retry_available_at: datetime | None = None,
) -> NewEvent:
    """`retry_reason` is `failure` or `timeout`; `failure` holds the failure's own fields, or the time-out's kind."""
    more = {
        "activity_attempt_id": attempt_id,
        "retry_task_id": retry_task_id,
        "retry_of_task_id": retry_of_task_id,
        "retry_available_at": stamp(retry_available_at),
        "retry_backoff_seconds": backoff_seconds,
        "retry_after_attempt_id": attempt_id,
        "retry_after_attempt": attempt_number,
        "retry_reason": retry_reason,
        "max_attempts": max_attempts,
        "retry_policy": execution.retry_policy,
        **failure,
    }
    return NewEvent(event_type="ActivityRetryScheduled", payload=_activity(execution, **more))


def activity_completed(execution: ActivityExecution, attempt: ActivityAttempt, result: Payload | None) -> NewEvent:
    more = {
        "activity_attempt_id": attempt.id,
        "attempt_number": attempt.attempt_number,
        "result": result,
        "payload_codec": CODEC,
    }
    return NewEvent(
        event_type="ActivityCompleted", payload=_activity(execution, **more), terminal_step=execution.step_number
    )


def activity_ended(
    event_type: str, execution: ActivityExecution, attempt: ActivityAttempt | None, details: Payload
) -> NewEvent:
    """`ActivityFailed`, `ActivityTimedOut` or `ActivityCancelled`; workflow code sees one failure for all three."""
    more = {
        "activity_attempt_id": attempt.id if attempt else None,
        "attempt_number": attempt.attempt_number if attempt else execution.attempt_count,
        **details,
    }
    return NewEvent(event_type=event_type, payload=_activity(execution, **more), terminal_step=execution.step_number)


def held_back(execution: ActivityExecution, attempt: ActivityAttempt | None) -> list[NewEvent]:
    """What a claim and its heartbeats could not write: the start of an attempt and its last progress."""
    if attempt is None:
        return []
    events = [activity_started(execution, attempt)]
    if attempt.progress is not None:
        events.append(
            activity_heartbeat(execution, attempt, heartbeat_at=attempt.last_heartbeat_at, progress=attempt.progress)
        )
    return events


# -- timers ------------------------------------------------------------------------------------------------------------


def _timer(event_type: str, timer: Timer, **more: Any) -> NewEvent:
    payload = {
        "timer_id": timer.id,
        "sequence": timer.step_number,
        "delay_seconds": timer.delay_seconds,
        "fire_at": stamp(timer.fire_at),
        **more,
        **(timer.event_fields or {}),
    }
    terminal_step = None if event_type == "TimerScheduled" else timer.step_number
    return NewEvent(event_type=event_type, payload=payload, terminal_step=terminal_step)


def timer_scheduled(timer: Timer) -> NewEvent:
    return _timer("TimerScheduled", timer)


def timer_fired(timer: Timer, fired_at: datetime) -> NewEvent:
    return _timer("TimerFired", timer, fired_at=stamp(fired_at))


def timer_cancelled(timer: Timer, cancelled_at: datetime) -> NewEvent:
    """Only where a run is stopped from outside; replay does not read it."""
    return _timer("TimerCancelled", timer, cancelled_at=stamp(cancelled_at))


# -- recorded values ---------------------------------------------------------------------------------------------------


def side_effect_recorded(step_number: int, result: str) -> NewEvent:
    """The value is kept exactly as it was sent: base64 of an Avro frame."""
    payload = {"sequence": step_number, "result": result, "payload_codec": CODEC}
    return NewEvent(event_type="SideEffectRecorded", payload=payload, terminal_step=step_number)


def version_marker_recorded(step_number: int, marker: Payload) -> NewEvent:
    """`marker` holds change_id, version, min_supported and max_supported."""
    payload = {"sequence": step_number, **marker}
    return NewEvent(event_type="VersionMarkerRecorded", payload=payload, terminal_step=step_number)
