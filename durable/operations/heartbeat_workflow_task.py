"""Renew a workflow task's lease (docs/protocol/worker-protocol.md 7.3). Touches the task row alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from durable import conf
from durable.guards import check_workflow_task, task_not_found, workflow_identity
from durable.models import Task
from durable.receipts import Report
from durable.sql import locking, reporting, rows
from durable.sql.transactions import transactional
from durable.states import TaskKind, TaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenewed:
    """The lease as it is now."""

    task_id: str
    workflow_task_attempt: int
    lease_owner: str
    lease_expires_at: datetime
    run_status: str


@transactional
def heartbeat_workflow_task(report: Report) -> LeaseRenewed:
    """Extend the lease to a full length from now; it never becomes shorter. Refuses what the guard refuses."""
    task = locking.lock_task(report.task_id)
    if task is None or task.namespace != report.namespace or task.kind != TaskKind.WORKFLOW:
        raise task_not_found(report, **workflow_identity(report))
    now, run = reporting.read_clock_and_run(task.run_id)
    if run is None:
        raise AssertionError(f"task {task.id} has no run")
    if refusal := check_workflow_task(report, task, run, now):
        raise refusal
    expires_at = extend_lease(task, now, conf.current().workflow_lease_seconds)
    return LeaseRenewed(
        task_id=task.id,
        workflow_task_attempt=report.attempt,
        lease_owner=report.lease_owner,
        lease_expires_at=expires_at,
        run_status=run.status,
    )


def extend_lease(task: Task, now: datetime, seconds: int, **more: object) -> datetime:
    """Write a later expiry on a live, locked lease; `more` are columns that change with it. Returns the expiry."""
    current = task.lease_expires_at
    expires_at = now + timedelta(seconds=seconds)
    if current is not None and current > expires_at:
        expires_at = current
    renewed = rows.update(
        Task,
        {"lease_expires_at": expires_at, "renewal_count": task.renewal_count + 1, **more},
        {
            "id": task.id,
            "status": TaskStatus.LEASED,
            "lease_owner": task.lease_owner,
            "attempt_count": task.attempt_count,
        },
    )
    if renewed != 1:
        raise AssertionError(f"task {task.id} changed under its lock")
    return expires_at
