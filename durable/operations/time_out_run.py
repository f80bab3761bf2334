"""Close a run whose run or execution deadline passed (docs/protocol/history.md 10.2)."""

from __future__ import annotations

from durable.changes import RunChanges
from durable.history import events
from durable.ids import new_id
from durable.run_closing import cancel_activities, cancel_tasks, cancel_timers, lock_open_work
from durable.sql import locking
from durable.sql.transactions import transactional
from durable.states import ClosedReason, RunStatus, is_terminal


class RunPastDeadlineError(Exception):
    """A report came for a run whose deadline has passed: close it first, in a transaction of its own."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


@transactional
def time_out_run(run_id: str, *, waits: bool = True) -> bool:
    """Close the run as timed out if it is open and past its deadline; whether it was. Repeating it changes nothing.

    With `waits=False` a run that somebody holds at this moment is left alone.
    """
    run = locking.lock_run(run_id, waits=waits)
    if run is None or is_terminal(run.status):
        return False
    work = lock_open_work(run)
    if run.deadline_at is None or run.deadline_at > work.now:
        return False
    changes = RunChanges(run, work.now)
    cancel_tasks(work.tasks, work.now)
    cancel_activities(changes, command_id=None, with_events=True)
    cancel_timers(changes, with_events=True)
    is_execution = run.execution_deadline_at is not None and run.execution_deadline_at <= work.now
    event = events.workflow_timed_out(
        run, failure_id=new_id(), timeout_kind="execution_timeout" if is_execution else "run_timeout"
    )
    sequence = changes.append(event)
    changes.add_failure(source_kind="workflow_run", source_id=run.id, sequence=sequence, payload=event.payload)
    changes.close(status=RunStatus.FAILED, closed_reason=ClosedReason.TIMED_OUT)
    changes.save()
    return True
