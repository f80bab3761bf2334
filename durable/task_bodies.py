"""What a leased task looks like to its worker: one builder for claim, replay and carried claim.

Fields and what the published SDK checks of them: docs/protocol/worker-protocol.md 7.1 and 8.1.
"""

from __future__ import annotations

import json
from typing import Any

from durable.history.pages import HistoryPage
from durable.history.times import stamp
from durable.models import Run, Task
from durable.sql.claiming import TaskFacts
from durable.sql.history import StoredEvent
from durable.states import TaskKind

CODEC = "avro"

# Resume context that workers may read to skip a replay; the SDK does not, and null is always right.
_NO_RESUME_CONTEXT: dict[str, None] = dict.fromkeys(
    (
        "connection", "workflow_wait_kind", "open_wait_id", "resume_source_kind", "resume_source_id",
        "workflow_signal_id", "signal_name", "signal_wait_id", "activity_execution_id", "activity_attempt_id",
        "activity_type", "child_call_id", "child_workflow_run_id", "workflow_sequence", "workflow_event_type",
        "timer_id", "condition_wait_id", "condition_key", "condition_definition_fingerprint",
        "workflow_update_id", "workflow_command_id",
    )
)  # fmt: skip


class UnreadableTaskError(Exception):
    """A stored row that a task's body needs is missing or cannot be read: a fault, never an empty answer."""


def task_body(facts: TaskFacts) -> dict[str, Any]:
    """The task as its poll returns it, without history; a stored row that cannot be read is a fault."""
    return _workflow_body(facts) if facts.task.kind == TaskKind.WORKFLOW else _activity_body(facts)


def _workflow_body(facts: TaskFacts) -> dict[str, Any]:
    task, run = facts.task, facts.run
    return {
        "task_id": task.id,
        "task_kind": "workflow",
        "workflow_task_attempt": task.attempt_count,
        "workflow_id": run.workflow_id,
        "run_id": run.id,
        "workflow_type": run.workflow_type,
        "namespace": task.namespace,
        "task_queue": task.task_queue,
        "payload_codec": CODEC,
        "arguments": _stored_input(facts)["arguments"],
        "lease_owner": task.lease_owner,
        "lease_expires_at": stamp(task.lease_expires_at),
        "total_history_events": task.visible_sequence,
        "last_history_sequence": task.visible_sequence,
        "run_status": run.status,
        "compatibility": task.build_id or None,
        "cancel_requested": False,
        "sticky_replay_mode": "cold_replay",
        **_NO_RESUME_CONTEXT,
    }


def _activity_body(facts: TaskFacts) -> dict[str, Any]:
    task, run, execution, attempt = facts.task, facts.run, facts.execution, facts.attempt
    if execution is None or attempt is None:
        raise UnreadableTaskError(f"activity task {task.id} has no execution or attempt")
    body = {
        "task_id": task.id,
        "task_kind": "activity",
        "activity_attempt_id": attempt.id,
        "activity_execution_id": execution.id,
        "activity_type": execution.activity_type,
        "attempt_number": task.attempt_count,
        "idempotency_key": execution.id,
        "workflow_id": run.workflow_id,
        "run_id": run.id,
        "workflow_type": run.workflow_type,
        "namespace": task.namespace,
        "task_queue": task.task_queue,
        "payload_codec": CODEC,
        "arguments": _stored_input(facts)["activity"]["arguments"],
        "lease_owner": task.lease_owner,
        "lease_expires_at": stamp(task.lease_expires_at),
        "connection": None,
    }
    if execution.retry_policy is not None:
        body["retry_policy"] = execution.retry_policy
    # A null here is invalid on the wire: the key is left out when there is nothing to say.
    if deadlines := activity_deadlines(task, run):
        body["deadlines"] = deadlines
    return body


def activity_deadlines(task: Task, run: Run) -> dict[str, str]:
    """The deadlines that bound a running attempt, by the names the wire gives them."""
    moments = {
        "start_to_close": task.start_to_close_at,
        "schedule_to_close": task.schedule_to_close_at,
        "heartbeat": task.heartbeat_at,
        "run": run.run_deadline_at,
        "execution": run.execution_deadline_at,
    }
    return {name: stamp(moment) for name, moment in moments.items() if moment is not None}


def _stored_input(facts: TaskFacts) -> dict[str, Any]:
    if facts.input_payload is None:
        raise UnreadableTaskError(f"the input event of task {facts.task.id} is missing")
    try:
        payload: dict[str, Any] = json.loads(facts.input_payload)
    except ValueError as error:
        raise UnreadableTaskError(f"the input event of task {facts.task.id} is not JSON") from error
    return payload


def history_fields(page: HistoryPage) -> dict[str, Any]:
    """A history page as workers get it, with a poll or on its own."""
    return {
        "history_events": [event_body(event) for event in page.events],
        "next_history_page_token": page.next_page_token,
    }


def event_body(event: StoredEvent) -> dict[str, Any]:
    """An event on the worker plane; its payload is sent as it is stored."""
    return {
        "id": event.id,
        "sequence": event.sequence,
        "event_type": event.event_type,
        "payload": event.payload,
        "recorded_at": stamp(event.recorded_at),
        "workflow_task_id": event.workflow_task_id,
        "workflow_command_id": event.workflow_command_id,
    }
