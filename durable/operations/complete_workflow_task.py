"""Complete a workflow task: the worker's commands become history, or nothing changes (worker-protocol.md 7.4)."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

from durable.activity_outcomes import NOT_LEASED
from durable.carried_polls import (
    NOTHING_CARRIED,
    CarriedOutcome,
    CarriedPolls,
    CarriedResults,
    claim_carried,
    fetch_wanted,
    unserved,
)
from durable.changes import RunChanges
from durable.commands.batch import Batch, StructuralLimitError, apply_batch, read_batch
from durable.commands.registry import Command
from durable.guards import LockedWorkflowTask, check_workflow_task, lock_workflow_task
from durable.history import events
from durable.ids import new_id
from durable.models import Run, Task
from durable.operations.time_out_run import RunPastDeadlineError, time_out_run
from durable.receipts import Report, body_digest, is_duplicate, new_receipt, not_recorded
from durable.run_closing import cancel_activities, cancel_tasks, cancel_timers
from durable.sql import locking, rows
from durable.sql.clock import read_clock
from durable.sql.transactions import transactional
from durable.states import OPEN_RUN, ActivityStatus, ClosedReason, RunStatus, TaskKind, TaskStatus, TimerStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTaskCompleted:
    """The answer. `is_duplicate`: this very report had been recorded before, and nothing was written now."""

    task_id: str
    run_id: str
    run_status: str
    workflow_task_attempt: int
    created_task_ids: list[str]
    is_duplicate: bool
    carried: CarriedResults


def complete_workflow_task(
    report: Report, body: dict[str, Any], carried: CarriedPolls = NOTHING_CARRIED
) -> WorkflowTaskCompleted:
    """Record a worker's commands for the claim it holds; `body` is the request as it was sent.

    The whole batch is validated before anything is written; one bad command leaves everything as it was. Refuses
    validation_failed, structural_limit_exceeded, worker_sessions_unavailable, worker_capability_not_supported,
    conflicting_completion, and what the guard refuses; task_not_leased and run_closed with the not-recorded receipt.
    A run past its deadline is closed first, in a transaction of its own, and then answers run_closed.

    The polls it carries are claimed for at the end of the same transaction; a duplicate claims for none.
    """
    digest = body_digest(body)
    try:
        done = _complete(report, body, digest, carried)
    except RunPastDeadlineError as error:
        time_out_run(error.run_id)
        done = _complete(report, body, digest, carried)
    return replace(done, carried=fetch_wanted(done.carried))


@transactional
def _complete(report: Report, body: dict[str, Any], digest: str, carried: CarriedPolls) -> WorkflowTaskCompleted:
    locked = lock_workflow_task(report)
    run, task = locked.run, locked.task
    if is_duplicate(locked.receipt, report, report.attempt, outcome="completed", digest=digest):
        return WorkflowTaskCompleted(
            task_id=report.task_id,
            run_id=run.id,
            run_status=run.status,
            workflow_task_attempt=report.attempt,
            created_task_ids=[],
            is_duplicate=True,
            carried=unserved(carried, CarriedOutcome.NOT_ATTEMPTED),
        )
    check_live(report, locked)
    commands = read_batch(body.get("commands"))
    others = _open_activity_tasks(run) if commands[-1].type.is_terminal else []
    if others:
        # Waiting for their locks took time: the claim may be over by now.
        locked = replace(locked, now=read_clock())
        check_live(report, locked)
    changes = _apply(locked, commands, others)
    finish_claim(changes, task, TaskStatus.COMPLETED)
    rows.insert(
        [new_receipt(task, report, now=changes.now, outcome="completed", digest=digest, attempt_number=report.attempt)]
    )
    results = claim_carried(carried, owner=task.lease_owner or "")
    changes.note_leased(results.leased_task_ids)
    return WorkflowTaskCompleted(
        task_id=report.task_id,
        run_id=run.id,
        run_status=changes.run.status,
        workflow_task_attempt=report.attempt,
        created_task_ids=[created.id for created in changes.tasks],
        is_duplicate=False,
        carried=results,
    )


def check_live(report: Report, locked: LockedWorkflowTask) -> None:
    """Refuse a report whose claim is over, with its receipt. Raises RunPastDeadlineError for a run that is."""
    if refusal := check_workflow_task(report, locked.task, locked.run, locked.now):
        raise not_recorded(refusal, locked.task, report.attempt)
    if locked.run.deadline_at is not None and locked.run.deadline_at <= locked.now:
        raise RunPastDeadlineError(locked.run.id)


def _apply(locked: LockedWorkflowTask, commands: list[Command], others: list[Task]) -> RunChanges:
    """The run's changes, in memory; a passed structural limit fails the run instead of the batch.

    `others` are the run's open activity tasks, locked, if the batch closes the run.
    """
    changes = RunChanges(copy.copy(locked.run), locked.now)
    try:
        apply_batch(Batch(changes=changes, task=locked.task), commands)
    except StructuralLimitError as limit:
        others = others or _open_activity_tasks(locked.run)
        changes = RunChanges(copy.copy(locked.run), locked.now)
        _fail_over_limit(changes, locked.task, limit)
    if changes.run.status not in OPEN_RUN:
        cancel_tasks(others, changes.now)
        _forget_open_steps(changes, locked.run)
    return changes


def _open_activity_tasks(run: Run) -> list[Task]:
    """A batch that closes the run cancels its activities: their rows are locked before anything is written."""
    return locking.lock_open_tasks(run.id, TaskKind.ACTIVITY) if run.pending_activity_count else []


def _forget_open_steps(changes: RunChanges, before: Run) -> None:
    """Cancel the rows of steps that nobody waits for; a run that ends by itself records no event for them."""
    created = {execution.id for execution in changes.executions}
    for execution in changes.executions:
        if not execution.is_local:
            execution.status = ActivityStatus.CANCELLED
            execution.closed_at = changes.now
            execution.task_id = None
    for task in changes.tasks:
        if task.activity_execution_id in created:
            task.status, task.closed_at, task.deadline_at = TaskStatus.CANCELLED, changes.now, None
    for timer in changes.timers:
        timer.status, timer.due_at, timer.closed_at = TimerStatus.CANCELLED, None, changes.now
    unsaved = RunChanges(before, changes.now)
    cancel_activities(unsaved, command_id=None, with_events=False)
    cancel_timers(unsaved, with_events=False)


def _fail_over_limit(changes: RunChanges, task: Task, limit: StructuralLimitError) -> None:
    """Fail the run visibly: a refusal would make the worker report a definition failure and block it silently."""
    message = f"Structural limit {limit.limit_kind} exceeded: {limit.value} is more than {limit.configured}."
    payload = {
        "failure_id": new_id(),
        "failure_category": "structural_limit",
        "source_kind": "workflow_run",
        "source_id": changes.run.id,
        "non_retryable": True,
        "exception_type": "StructuralLimitExceeded",
        "exception_class": "StructuralLimitExceeded",
        "message": message,
        "structural_limit_kind": limit.limit_kind,
        "structural_limit_value": limit.value,
        "structural_limit_configured": limit.configured,
    }
    sequence = changes.append(events.workflow_failed(payload, task.id))
    changes.add_failure(source_kind="workflow_run", source_id=changes.run.id, sequence=sequence, payload=payload)
    changes.close(status=RunStatus.FAILED, closed_reason=ClosedReason.FAILED)


def finish_claim(
    changes: RunChanges,
    task: Task,
    status: TaskStatus,
    *,
    last_error: dict[str, Any] | None = None,
    create_next: bool = True,
    **next_task: Any,
) -> None:
    """End the claim, and write the run: what every end of a workflow task shares.

    `next_task` are columns of a successor that is wanted in any case; `create_next` false leaves the run without one.
    """
    _end_task(task, status, changes, last_error)
    if changes.run.status in OPEN_RUN:
        changes.set(status=RunStatus.WAITING)
        changes.end_claim(task, create_next=create_next, **next_task)
    if changes.run.started_at is None:
        changes.set(started_at=task.leased_at)
    changes.save()


def _end_task(task: Task, status: TaskStatus, changes: RunChanges, last_error: dict[str, Any] | None) -> None:
    written: dict[str, Any] = {"status": status, "closed_at": changes.now, **NOT_LEASED}
    if last_error is not None:
        written["last_error"] = last_error
    ended = rows.update(
        Task,
        written,
        {
            "id": task.id,
            "status": TaskStatus.LEASED,
            "lease_owner": task.lease_owner,
            "attempt_count": task.attempt_count,
        },
    )
    if ended != 1:
        raise AssertionError(f"task {task.id} changed under its lock")
