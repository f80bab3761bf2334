"""How runs and events look on the control plane (docs/protocol/control-plane.md 6 and 7)."""

from __future__ import annotations

from typing import Any

from durable import avro, conf
from durable.history.times import stamp
from durable.models import Run
from durable.queries import RunDescription, RunHistory
from durable.sql.history import StoredEvent
from durable.states import is_terminal, status_bucket


def run_item(run: Run) -> dict[str, Any]:
    """A run in a list."""
    return {
        "workflow_id": run.workflow_id,
        "run_id": run.id,
        "run_number": run.run_number,
        "namespace": run.namespace,
        "workflow_type": run.workflow_type,
        "business_key": run.business_key,
        "status": run.status,
        "status_bucket": status_bucket(run.status),
        "is_terminal": is_terminal(run.status),
        "closed_reason": run.closed_reason,
        "task_queue": run.task_queue,
        "compatibility": run.build_id or None,
        "payload_codec": "avro",
        "started_at": stamp(run.started_at or run.created_at),
        "closed_at": stamp(run.closed_at),
        "last_progress_at": stamp(run.last_progress_at),
        "search_attributes": run.search_attributes or {},
    }


def run_body(description: RunDescription) -> dict[str, Any]:
    """A described run."""
    run = description.run
    wait_kind, wait_reason = _wait(description)
    is_open = not is_terminal(run.status)
    commands_open = is_open and description.is_current
    return {
        **run_item(run),
        "memo": run.memo or {},
        "run_count": description.run_count,
        "is_current_run": description.is_current,
        "execution_timeout_seconds": run.execution_timeout_seconds,
        "run_timeout_seconds": run.run_timeout_seconds,
        "execution_deadline_at": stamp(run.execution_deadline_at),
        "run_deadline_at": stamp(run.run_deadline_at),
        "input": _preview(description.input),
        "output": _preview(description.output),
        "input_envelope": description.input,
        "output_envelope": description.output,
        "wait_kind": wait_kind,
        "wait_reason": wait_reason,
        "blocked_reason": run.blocked_reason or None,
        "actions": {
            "can_signal": False,
            "can_query": False,
            "can_update": False,
            "can_cancel": commands_open,
            "can_terminate": commands_open,
            "can_repair": commands_open,
            "can_archive": False,
        },
    }


def _wait(description: RunDescription) -> tuple[str | None, str | None]:
    """What an open run waits for, for people."""
    run = description.run
    if is_terminal(run.status) or description.is_running:
        return None, None
    if run.blocked_at is not None:
        return None, f"Blocked by a workflow task failure: {run.blocked_reason}"
    if run.open_task_id is not None:
        return None, f"A workflow task waits for a worker on {run.task_queue}."
    if run.pending_activity_count:
        return "activity", f"Waiting for {run.pending_activity_count} activities."
    if run.pending_timer_count:
        return "timer", f"Waiting for {run.pending_timer_count} timers."
    return None, "Nothing can wake this run; repair gives it a workflow task."


def _preview(payload: dict[str, Any] | None) -> Any:
    """The decoded value, or null where it has no exact JSON form; the envelope always stands beside it."""
    blob = (payload or {}).get("blob")
    if not isinstance(blob, str) or len(blob) > conf.current().max_payload_bytes:
        return None
    try:
        return avro.decode_value(blob)
    except avro.UndecodableError:
        return None


def event_body(event: StoredEvent, history: RunHistory) -> dict[str, Any]:
    """An event on the control plane; the principal is who gave the command that caused it."""
    command = history.principals.get(event.workflow_command_id or "")
    principal = None
    if command is not None:
        principal = {"type": command.principal_type, "id": command.principal_id, "label": command.principal_id}
    return {
        "sequence": event.sequence,
        "event_type": event.event_type,
        "timestamp": stamp(event.recorded_at),
        "principal": principal,
        "payload": event.payload,
    }
