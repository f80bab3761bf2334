"""Guards: whether a report about a claim may be recorded (docs/protocol/worker-protocol.md 6.3, 6.4 and 8.2).

Decisions are pure functions on rows that the caller has locked; the order of checks is part of the contract.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from durable.history.times import stamp
from durable.models import ActivityAttempt, ActivityExecution, CompletionReceipt, Run, Task
from durable.receipts import Report
from durable.refusals import Reason, Refusal
from durable.sql import locking, reporting
from durable.states import AttemptStatus, ClosedReason, RunStatus, TaskKind, TaskStatus, is_terminal

_STOP_REASONS = {
    RunStatus.COMPLETED: "run_completed",
    RunStatus.FAILED: "run_failed",
    RunStatus.CANCELLED: "run_cancelled",
    RunStatus.TERMINATED: "run_terminated",
}


# -- workflow tasks ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedWorkflowTask:
    """A workflow task and its run, both locked, with the time after the locks and the receipt if there is one."""

    run: Run
    task: Task
    now: datetime
    receipt: CompletionReceipt | None


def task_not_found(report: Report, **identity: Any) -> Refusal:
    return Refusal(Reason.TASK_NOT_FOUND, "There is no such task in this namespace.", **identity)


def workflow_identity(report: Report) -> dict[str, Any]:
    """What every refusal of a workflow-task report repeats."""
    return {"task_id": report.task_id, "workflow_task_attempt": report.attempt}


def lock_workflow_task(report: Report) -> LockedWorkflowTask:
    """Lock the run, then the task, then read clock and receipt. Refuses task_not_found."""
    run, task = lock_run_and_task(report)
    now, receipt = reporting.read_clock_and_receipt(task.id)
    return LockedWorkflowTask(run=run, task=task, now=now, receipt=receipt)


def lock_run_and_task(report: Report) -> tuple[Run, Task]:
    """Lock the run of a workflow task, then the task. Refuses task_not_found."""
    run_id = reporting.find_run_of_task(report.task_id, report.namespace, TaskKind.WORKFLOW)
    if run_id is None:
        raise task_not_found(report, **workflow_identity(report))
    run = locking.lock_run(run_id)
    task = locking.lock_task(report.task_id)
    if run is None or task is None:
        raise task_not_found(report, **workflow_identity(report))
    return run, task


def check_workflow_task(report: Report, task: Task, run: Run, now: datetime) -> Refusal | None:
    """Rows 3 to 8 of the guard: the refusal, or None if the claim is live."""
    identity = workflow_identity(report)
    if task.status != TaskStatus.LEASED or task.lease_expires_at is None:
        if is_terminal(run.status):
            return run_closed(task, run, **identity)
        return Refusal(
            Reason.TASK_NOT_LEASED, "Workflow task is not currently leased.", task_status=task.status, **identity
        )
    if task.lease_expires_at <= now:
        return Refusal(
            Reason.LEASE_EXPIRED,
            "Workflow task lease has expired.",
            task_status=task.status,
            lease_owner=task.lease_owner,
            lease_expires_at=stamp(task.lease_expires_at),
            **identity,
        )
    if task.lease_owner != report.lease_owner:
        return Refusal(
            Reason.LEASE_OWNER_MISMATCH,
            "Workflow task is leased by another worker.",
            lease_owner=task.lease_owner,
            **identity,
        )
    if task.attempt_count != report.attempt:
        return Refusal(
            Reason.WORKFLOW_TASK_ATTEMPT_MISMATCH,
            "Workflow task is leased under another attempt.",
            current_attempt=task.attempt_count,
            **identity,
        )
    return run_closed(task, run, **identity) if is_terminal(run.status) else None


def run_closed(task: Task, run: Run, **identity: Any) -> Refusal:
    return Refusal(
        Reason.RUN_CLOSED,
        "Workflow run is already closed.",
        stop_reason=_STOP_REASONS.get(RunStatus(run.status), "run_closed"),
        cancel_requested=run.status in (RunStatus.CANCELLED, RunStatus.TERMINATED),
        can_continue=False,
        run_status=run.status,
        run_closed_reason=run.closed_reason,
        run_closed_at=stamp(run.closed_at),
        task_status=task.status,
        lease_owner=task.lease_owner,
        lease_expires_at=stamp(task.lease_expires_at),
        **identity,
    )


# -- activity tasks ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedActivityTask:
    """An activity task and, unless it is only renewed, its run, locked; the rest read after the locks."""

    run: Run
    task: Task
    execution: ActivityExecution
    attempt: ActivityAttempt
    now: datetime
    receipt: CompletionReceipt | None


def activity_identity(report: Report) -> dict[str, Any]:
    """What every refusal of an activity report repeats."""
    return {"task_id": report.task_id, "activity_attempt_id": report.activity_attempt_id}


def lock_activity_task(report: Report) -> LockedActivityTask:
    """Lock the run, then the task, then read the rest. Refuses task_not_found, attempt_not_found, task_mismatch."""
    run_id = reporting.find_run_of_task(report.task_id, report.namespace, TaskKind.ACTIVITY)
    if run_id is None:
        raise task_not_found(report, **activity_identity(report))
    run = locking.lock_run(run_id)
    return _with_facts(report, locking.lock_task(report.task_id), run)


def lock_activity_task_alone(report: Report) -> LockedActivityTask:
    """Lock only the task row: for heartbeats and renewals, which write no history and need no run lock."""
    return _with_facts(report, locking.lock_task(report.task_id), None)


def read_activity_task(report: Report) -> LockedActivityTask:
    """The same facts without any lock, for answers that change nothing."""
    return _with_facts(report, locking.read_task(report.task_id), None)


def _with_facts(report: Report, task: Task | None, run: Run | None) -> LockedActivityTask:
    if task is None or task.namespace != report.namespace or task.kind != TaskKind.ACTIVITY:
        raise task_not_found(report, **activity_identity(report))
    facts = reporting.read_activity_facts(task, report.activity_attempt_id)
    if facts.attempt is None or facts.attempt.namespace != report.namespace:
        raise Refusal(
            Reason.ATTEMPT_NOT_FOUND,
            "There is no such activity attempt in this namespace.",
            **activity_identity(report),
        )
    if facts.attempt.task_id != task.id:
        raise Refusal(Reason.TASK_MISMATCH, "The attempt belongs to another task.", **activity_identity(report))
    if facts.execution is None:
        raise AssertionError(f"activity task {task.id} has no execution")
    return LockedActivityTask(
        run=run or facts.run,
        task=task,
        execution=facts.execution,
        attempt=facts.attempt,
        now=facts.now,
        receipt=facts.receipt,
    )


def check_activity_report(report: Report, locked: LockedActivityTask) -> Refusal | None:
    """Owner, run, attempt, lease: the refusal of a complete or fail report, or None if the claim is live."""
    identity = activity_identity(report)
    task, run, attempt = locked.task, locked.run, locked.attempt
    if attempt.lease_owner != report.lease_owner:
        return Refusal(
            Reason.LEASE_OWNER_MISMATCH,
            "The attempt is held by another worker.",
            lease_owner=attempt.lease_owner,
            **identity,
        )
    if is_terminal(run.status):
        return _activity_run_closed(locked, identity)
    if attempt.status != AttemptStatus.RUNNING or attempt.attempt_number != task.attempt_count:
        return Refusal(
            Reason.STALE_ATTEMPT,
            "The attempt is not the current one any more.",
            outcome="ignored",
            recorded=False,
            **identity,
        )
    if task.status != TaskStatus.LEASED or task.lease_expires_at is None:
        return Refusal(
            Reason.TASK_NOT_LEASED, "Activity task is not currently leased.", task_status=task.status, **identity
        )
    if task.lease_expires_at <= locked.now:
        return Refusal(
            Reason.LEASE_EXPIRED,
            "Activity task lease has expired.",
            task_status=task.status,
            lease_owner=task.lease_owner,
            lease_expires_at=stamp(task.lease_expires_at),
            **identity,
        )
    return None


def _activity_run_closed(locked: LockedActivityTask, identity: dict[str, Any]) -> Refusal:
    run, task = locked.run, locked.task
    reason = {
        ClosedReason.CANCELLED: Reason.RUN_CANCELLED,
        ClosedReason.TERMINATED: Reason.RUN_TERMINATED,
    }.get(ClosedReason(run.closed_reason or ClosedReason.FAILED), Reason.RUN_CLOSED)
    return Refusal(
        reason,
        "Workflow run is already closed.",
        outcome="ignored",
        recorded=False,
        cancel_requested=run.status in (RunStatus.CANCELLED, RunStatus.TERMINATED),
        can_continue=False,
        run_status=run.status,
        run_closed_reason=run.closed_reason,
        run_closed_at=stamp(run.closed_at),
        activity_status=locked.execution.status,
        attempt_status=locked.attempt.status,
        task_status=task.status,
        lease_owner=task.lease_owner,
        lease_expires_at=stamp(task.lease_expires_at),
        **identity,
    )
