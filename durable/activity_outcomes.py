"""How an activity attempt ends: retried, or final for its step (docs/protocol/history.md 9).

Shared by the reports of workers and by upkeep (time-outs, lost leases). The run and the task are locked; every write of
an execution, attempt or task here names the old state.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from durable.changes import RunChanges
from durable.commands.activities import new_activity_task
from durable.commands.retry import backoff_seconds, max_attempts
from durable.history import events
from durable.ids import new_id
from durable.models import ActivityAttempt, ActivityExecution, Task
from durable.sql import rows
from durable.states import OPEN_TASK, ActivityStatus, AttemptStatus, TaskStatus
from durable.steps import end_step

NOT_LEASED: dict[str, Any] = {"lease_owner": None, "leased_at": None, "lease_expires_at": None}


def end_attempt(attempt: ActivityAttempt | None, status: AttemptStatus, now: datetime) -> None:
    """Close a running attempt; none is running while the task is only ready."""
    if attempt is None:
        return
    ended = rows.update(
        ActivityAttempt,
        {"status": status, "closed_at": now},
        {"id": attempt.id, "status": AttemptStatus.RUNNING},
    )
    if ended != 1:
        raise AssertionError(f"attempt {attempt.id} is not running any more")


def end_task(task: Task, status: TaskStatus, now: datetime) -> None:
    """Close an open activity task that is locked."""
    ended = rows.update(
        Task,
        {"status": status, "closed_at": now, "deadline_at": None, "due_at": None, "due": True, **NOT_LEASED},
        {"id": task.id, "status": OPEN_TASK, "attempt_count": task.attempt_count},
    )
    if ended != 1:
        raise AssertionError(f"task {task.id} changed under its lock")


def close_step(changes: RunChanges, execution: ActivityExecution, status: ActivityStatus, sequence: int) -> None:
    """The step is over with the event at `sequence`: close the execution, and wake the run unless its group goes on."""
    closed = rows.update(
        ActivityExecution,
        {
            "status": status,
            "closed_at": changes.now,
            "task_id": None,
            "outcome_sequence": sequence,
            "attempt_count": execution.attempt_count,
            "lost_lease_count": execution.lost_lease_count,
        },
        {"id": execution.id, "status": ActivityStatus.PENDING},
    )
    if closed != 1:
        raise AssertionError(f"activity {execution.id} was closed already")
    changes.set(pending_activity_count=changes.run.pending_activity_count - 1)
    end_step(changes, execution.group_id, sequence)


def fail_step(
    changes: RunChanges,
    execution: ActivityExecution,
    attempt: ActivityAttempt | None,
    payload: dict[str, Any],
    *,
    event_type: str = "ActivityFailed",
) -> int:
    """The step failed for good: what was held back, the terminal event, the failure row. Returns the event's sequence.

    `payload` needs failure_category and message; it gets its failure id here.
    """
    payload = {"failure_id": new_id(), **payload}
    for event in events.held_back(execution, attempt):
        changes.append(event)
    sequence = changes.append(events.activity_ended(event_type, execution, attempt, payload))
    changes.add_failure(source_kind="activity_execution", source_id=execution.id, sequence=sequence, payload=payload)
    close_step(changes, execution, ActivityStatus.FAILED, sequence)
    return sequence


def schedule_retry(
    changes: RunChanges,
    execution: ActivityExecution,
    attempt: ActivityAttempt | None,
    task: Task,
    *,
    attempt_number: int,
    retry_reason: str,
    failure: dict[str, Any],
) -> Task:
    """Another attempt follows after the policy's back-off, under a new task that carries the attempt counter."""
    backoff = backoff_seconds(execution.retry_policy, attempt_number)
    available_at = changes.now + timedelta(seconds=backoff)
    retry = new_activity_task(
        changes.run, execution, changes.now, available_at=available_at, attempt_count=attempt_number
    )
    for event in events.held_back(execution, attempt):
        changes.append(event)
    changes.append(
        events.activity_retry_scheduled(
            execution,
            attempt.id if attempt else None,
            attempt_number=attempt_number,
            retry_reason=retry_reason,
            backoff_seconds=backoff,
            max_attempts=max_attempts(execution.retry_policy),
            failure=failure,
            retry_task_id=retry.id,
            retry_of_task_id=task.id,
            retry_available_at=available_at,
        )
    )
    rows.update(
        ActivityExecution,
        {"task_id": retry.id, "attempt_count": attempt_number},
        {"id": execution.id, "status": ActivityStatus.PENDING},
    )
    changes.tasks.append(retry)
    return retry
