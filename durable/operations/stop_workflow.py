"""Cancel or terminate: close a run at once, without running its code again (history.md 11.1 and 11.2)."""

from __future__ import annotations

from dataclasses import dataclass

from durable.changes import RunChanges
from durable.history import events
from durable.ids import new_id
from durable.run_closing import cancel_activities, cancel_tasks, cancel_timers, lock_open_work
from durable.sql.transactions import transactional
from durable.states import ClosedReason, RunStatus
from durable.workflow_commands import (
    CommandAccepted,
    WorkflowTarget,
    begin_command,
    following_moves,
    record_command,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stop:
    command_type: str
    status: RunStatus
    closed_reason: ClosedReason


_STOPS = {
    "cancel": _Stop(command_type="cancel", status=RunStatus.CANCELLED, closed_reason=ClosedReason.CANCELLED),
    "terminate": _Stop(command_type="terminate", status=RunStatus.TERMINATED, closed_reason=ClosedReason.TERMINATED),
}


def cancel_workflow(target: WorkflowTarget, *, reason: str | None) -> CommandAccepted:
    """Close the run as cancelled. Refuses what `begin_command` refuses; changes nothing then."""
    return _stop(target, _STOPS["cancel"], reason)


def terminate_workflow(target: WorkflowTarget, *, reason: str | None) -> CommandAccepted:
    """Close the run as terminated. Refuses what `begin_command` refuses; changes nothing then."""
    return _stop(target, _STOPS["terminate"], reason)


@following_moves
@transactional
def _stop(target: WorkflowTarget, stop: _Stop, reason: str | None) -> CommandAccepted:
    run = begin_command(target, stop.command_type)
    if isinstance(run, CommandAccepted):
        return run
    work = lock_open_work(run)
    changes = RunChanges(run, work.now)
    command_id = new_id()
    changes.append(events.stop_requested(run, command_type=stop.command_type, command_id=command_id, reason=reason))
    cancel_tasks(work.tasks, work.now)
    cancel_activities(changes, command_id=command_id, with_events=True)
    cancel_timers(changes, with_events=True)
    event = events.workflow_stopped(
        run, closed_reason=stop.closed_reason, command_id=command_id, failure_id=new_id(), reason=reason
    )
    sequence = changes.append(event)
    changes.add_failure(source_kind="workflow_run", source_id=run.id, sequence=sequence, payload=event.payload)
    changes.close(status=stop.status, closed_reason=stop.closed_reason)
    changes.save()
    return record_command(target, changes, command_id, stop.command_type, outcome=stop.closed_reason, reason=reason)
