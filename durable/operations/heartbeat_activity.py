"""Activity heartbeat, lease renewal and status: touch the task and attempt rows alone (worker-protocol.md 8.4 to 8.6).

None of them writes history or locks the run, so that one held run stops nobody's heartbeat. Progress is kept on the
attempt and goes into history with its outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from durable import conf
from durable.guards import (
    LockedActivityTask,
    activity_identity,
    check_activity_report,
    lock_activity_task_alone,
    read_activity_task,
)
from durable.models import ActivityAttempt
from durable.operations.heartbeat_workflow_task import extend_lease
from durable.receipts import Report
from durable.refusals import Reason, Refusal
from durable.sql import rows
from durable.sql.clock import after, earliest
from durable.sql.transactions import transactional
from durable.states import ActivityStatus, AttemptStatus, ClosedReason, TaskStatus, is_terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStanding:
    """Whether an attempt may go on. `reason` says why not; `recorded` whether a heartbeat was written."""

    locked: LockedActivityTask
    reason: str | None
    recorded: bool = False

    @property
    def can_continue(self) -> bool:
        return self.reason is None

    @property
    def cancel_requested(self) -> bool:
        return self.reason in ("run_cancelled", "run_terminated", "activity_cancelled")


@transactional
def heartbeat_activity(report: Report, progress: dict[str, Any] | None) -> AttemptStanding:
    """Extend lease and heartbeat deadline and keep the progress; or say, without an error, that the attempt must stop.

    Changes neither status nor attempt nor place in the queue. Refuses task_not_found, attempt_not_found,
    task_mismatch, lease_owner_mismatch.
    """
    locked = lock_activity_task_alone(report)
    _check_owner(report, locked)
    if (reason := why_stop(locked)) is not None:
        return AttemptStanding(locked=locked, reason=reason)
    task, now = locked.task, locked.now
    heartbeat_at = after(now, task.heartbeat_seconds)
    expires_at = extend_lease(
        task,
        now,
        conf.current().activity_lease_seconds,
        heartbeat_at=heartbeat_at,
        deadline_at=earliest(task.start_to_close_at, heartbeat_at, task.schedule_to_close_at),
    )
    task.heartbeat_at = heartbeat_at
    _note_on_attempt(locked, expires_at, last_heartbeat_at=now, **({"progress": progress} if progress else {}))
    return AttemptStanding(locked=locked, reason=None, recorded=True)


@transactional
def renew_activity_lease(report: Report) -> LockedActivityTask:
    """Extend the lease and nothing else; never revives an expired one.

    Refuses what a completion would, and heartbeat_timeout, start_to_close_timeout, schedule_to_close_timeout.
    """
    locked = lock_activity_task_alone(report)
    if refusal := check_activity_report(report, locked):
        raise refusal
    if (reason := _passed_deadline(locked)) is not None:
        raise Refusal(Reason(reason), "The attempt's deadline has passed.", **activity_identity(report))
    expires_at = extend_lease(locked.task, locked.now, conf.current().activity_lease_seconds)
    _note_on_attempt(locked, expires_at)
    return locked


def read_activity_status(report: Report) -> AttemptStanding:
    """How the attempt stands; reads only. Refuses what a heartbeat refuses."""
    locked = read_activity_task(report)
    _check_owner(report, locked)
    return AttemptStanding(locked=locked, reason=why_stop(locked))


def _check_owner(report: Report, locked: LockedActivityTask) -> None:
    if locked.attempt.lease_owner != report.lease_owner:
        raise Refusal(
            Reason.LEASE_OWNER_MISMATCH,
            "The attempt is held by another worker.",
            lease_owner=locked.attempt.lease_owner,
            **activity_identity(report),
        )


def _note_on_attempt(locked: LockedActivityTask, expires_at: datetime, **more: Any) -> None:
    changes = {"lease_expires_at": expires_at, **more}
    rows.update(ActivityAttempt, changes, {"id": locked.attempt.id, "status": AttemptStatus.RUNNING})
    locked.task.lease_expires_at = expires_at
    for name, value in changes.items():
        setattr(locked.attempt, name, value)


def why_stop(locked: LockedActivityTask) -> str | None:
    """The first reason, in the protocol's order, for which the attempt must stop; None while it may go on."""
    run, task, execution, attempt = locked.run, locked.task, locked.execution, locked.attempt
    checks = (
        (run.closed_reason == ClosedReason.CANCELLED, "run_cancelled"),
        (run.closed_reason == ClosedReason.TERMINATED, "run_terminated"),
        (attempt.status != AttemptStatus.RUNNING, "attempt_closed"),
        (execution.status == ActivityStatus.CANCELLED, "activity_cancelled"),
        (task.status == TaskStatus.CANCELLED, "task_cancelled"),
        (is_terminal(run.status), "run_closed"),
        (execution.status != ActivityStatus.PENDING, "activity_not_running"),
        (attempt.attempt_number != task.attempt_count, "stale_attempt"),
        (execution.task_id != task.id, "stale_task"),
        (task.status != TaskStatus.LEASED, "task_not_leased"),
        (task.lease_expires_at is None or task.lease_expires_at <= locked.now, "lease_expired"),
    )
    return next((reason for applies, reason in checks if applies), None) or _passed_deadline(locked)


def _passed_deadline(locked: LockedActivityTask) -> str | None:
    task = locked.task
    for moment, reason in (
        (task.schedule_to_close_at, "schedule_to_close_timeout"),
        (task.heartbeat_at, "heartbeat_timeout"),
        (task.start_to_close_at, "start_to_close_timeout"),
    ):
        if moment is not None and moment <= locked.now:
            return reason
    return None
