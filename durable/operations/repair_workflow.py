"""Repair: give an open run the workflow task it lacks (docs/protocol/control-plane.md 7.12)."""

from __future__ import annotations

from durable.changes import RunChanges
from durable.history import events
from durable.ids import new_id
from durable.sql.clock import read_clock
from durable.sql.transactions import transactional
from durable.workflow_commands import (
    CommandAccepted,
    WorkflowTarget,
    begin_command,
    following_moves,
    record_command,
)


@following_moves
@transactional
def repair_workflow(target: WorkflowTarget) -> CommandAccepted:
    """A blocked run gets a new workflow task; `repair_not_needed` when it has one, or only waits for activities.

    A live lease is never touched. Refuses what `begin_command` refuses; changes nothing then.
    """
    run = begin_command(target, "repair")
    if isinstance(run, CommandAccepted):
        return run
    changes = RunChanges(run, read_clock())
    command_id = new_id()
    is_stuck = run.open_task_id is None and (
        run.blocked_at is not None or run.pending_activity_count + run.pending_timer_count == 0
    )
    if is_stuck:
        changes.wake(changes.append(events.repair_requested(run, command_id=command_id)))
        changes.save()
    return record_command(
        target,
        changes,
        command_id,
        "repair",
        outcome="repair_dispatched" if is_stuck else "repair_not_needed",
        reason=None,
    )
