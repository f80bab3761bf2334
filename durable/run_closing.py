"""Closing a run from outside its workflow code: what hangs on it is cancelled, with events (history.md 10.2, 11)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from durable.activity_outcomes import NOT_LEASED
from durable.changes import RunChanges
from durable.history import events
from durable.history.times import stamp
from durable.models import ActivityAttempt, ActivityExecution, Run, Task, Timer
from durable.sql import locking, rows
from durable.sql.clock import read_clock
from durable.sql.reporting import EXECUTION
from durable.states import OPEN_TASK, ActivityStatus, AttemptStatus, TaskKind, TaskStatus, TimerStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWork:
    """The open tasks of a locked run, all locked, and the time after that."""

    tasks: list[Task]
    now: datetime


def lock_open_work(run: Run) -> OpenWork:
    """Lock whatever a worker might hold. Waits for claims that are taking one of the tasks at this moment."""
    tasks = locking.lock_open_tasks(run.id, TaskKind.WORKFLOW)
    if run.pending_activity_count:
        tasks += locking.lock_open_tasks(run.id, TaskKind.ACTIVITY)
    return OpenWork(tasks=tasks, now=read_clock())


def cancel_tasks(tasks: list[Task], now: datetime) -> None:
    """Cancel open tasks that are locked; a leased one too, its late report is answered by the guard."""
    if not tasks:
        return
    cancelled = rows.update(
        Task,
        {"status": TaskStatus.CANCELLED, "closed_at": now, "deadline_at": None, "due_at": None, "due": True,
         **NOT_LEASED},
        {"id": tuple(task.id for task in tasks), "status": OPEN_TASK},
    )  # fmt: skip
    if cancelled != len(tasks):
        raise AssertionError("a task changed under its lock")


def cancel_activities(changes: RunChanges, *, command_id: str | None, with_events: bool) -> None:
    """Cancel the open activity steps of a run that is closing, their tasks being locked.

    `with_events`: a run that is stopped records `ActivityCancelled`; one that completes by itself does not.
    """
    run, now = changes.run, changes.now
    if not run.pending_activity_count:
        return
    if with_events:
        for execution, attempt in _open_activities(run):
            details = {
                "workflow_command_id": command_id,
                "cancelled_at": stamp(now),
                "failure_category": "cancelled",
                "message": "Activity cancelled.",
            }
            for event in events.held_back(execution, attempt):
                changes.append(event)
            changes.append(events.activity_ended("ActivityCancelled", execution, attempt, details))
    rows.update(
        ActivityAttempt,
        {"status": AttemptStatus.CANCELLED, "closed_at": now},
        {"run_id": run.id, "status": AttemptStatus.RUNNING},
    )
    rows.update(
        ActivityExecution,
        {"status": ActivityStatus.CANCELLED, "closed_at": now, "task_id": None},
        {"run_id": run.id, "status": ActivityStatus.PENDING},
    )


def cancel_timers(changes: RunChanges, *, with_events: bool) -> None:
    """Cancel the pending timers of a run that is closing. `with_events` as for activities."""
    run, now = changes.run, changes.now
    if not run.pending_timer_count:
        return
    if with_events:
        for timer in Timer.objects.filter(run_id=run.id, status=TimerStatus.PENDING).order_by("step_number"):
            changes.append(events.timer_cancelled(timer, now))
    rows.update(
        Timer,
        {"status": TimerStatus.CANCELLED, "due_at": None, "closed_at": now},
        {"run_id": run.id, "status": TimerStatus.PENDING},
    )


_FULL_ATTEMPT = rows.Columns(ActivityAttempt, "a")


def _open_activities(run: Run) -> list[tuple[ActivityExecution, ActivityAttempt | None]]:
    sql = (
        f"SELECT {EXECUTION.sql}, {_FULL_ATTEMPT.sql} FROM {ActivityExecution._meta.db_table} x"
        f" LEFT JOIN {ActivityAttempt._meta.db_table} a ON a.activity_execution_id = x.id AND a.status = %s"
        " WHERE x.run_id = %s AND x.status = %s ORDER BY x.step_number"
    )
    found = rows.fetch_all(sql, (AttemptStatus.RUNNING, run.id, ActivityStatus.PENDING))
    return [
        (EXECUTION.decode(row[: len(EXECUTION)]), _FULL_ATTEMPT.decode_joined(row, len(EXECUTION))) for row in found
    ]
