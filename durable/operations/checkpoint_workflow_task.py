"""Checkpoint a workflow task: a prefix of its commands becomes history while its claim goes on (receipts.md 12.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from durable.changes import RunChangedError, RunChanges
from durable.commands.batch import Batch, StructuralLimitError, apply_batch, read_prefix
from durable.guards import LockedWorkflowTask, check_workflow_task, lock_run_and_task, workflow_identity
from durable.models import CheckpointReceipt
from durable.operations.complete_workflow_task import check_live
from durable.operations.time_out_run import RunPastDeadlineError, time_out_run
from durable.receipts import Report, body_digest, check_same_checkpoint, checkpoint_receipt_id, not_recorded
from durable.refusals import Reason, Refusal
from durable.sql import locking, reporting, rows
from durable.sql.transactions import transactional
from durable.states import RunStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What is to be recorded. `start_sequence` is the number of the step that its first command takes."""

    checkpoint_id: str
    start_sequence: int
    commands: Any
    # Of the request as it was sent: what "the same checkpoint" means.
    digest: str

    @classmethod
    def of(cls, body: dict[str, Any], *, checkpoint_id: str, start_sequence: int) -> Checkpoint:
        return cls(
            checkpoint_id=checkpoint_id,
            start_sequence=start_sequence,
            commands=body.get("commands"),
            digest=body_digest(body),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTaskCheckpointed:
    """The answer. `is_duplicate`: this very checkpoint had been recorded before, and nothing was written now."""

    receipt: CheckpointReceipt
    is_duplicate: bool


def checkpoint_workflow_task(report: Report, checkpoint: Checkpoint) -> WorkflowTaskCheckpointed:
    """Record the first commands of a claim that its worker goes on with: events, activities, receipt, all or nothing.

    The activities are ready at once. The lease stays as it is, neither longer nor shorter; the claim may read its
    history again, to the end of what was recorded. What happened before that was not shown when the claim was made is
    owed to the run all the same: whoever ends the claim creates the next task for it.

    A passed structural limit is refused and changes nothing, where a completion would fail the run: the claim is
    alive, and its worker may send less, or complete and have the run fail visibly.

    Refuses validation_failed, structural_limit_exceeded, checkpoint_sequence_mismatch, worker_sessions_unavailable,
    worker_capability_not_supported, conflicting_completion, and what the guard refuses; task_not_leased and run_closed
    with the not-recorded receipt. A run past its deadline is closed first, in a transaction of its own.
    """
    try:
        return _checkpoint(report, checkpoint)
    except RunPastDeadlineError as error:
        time_out_run(error.run_id)
        return _checkpoint(report, checkpoint)


@transactional
def _checkpoint(report: Report, checkpoint: Checkpoint) -> WorkflowTaskCheckpointed:
    run, task = lock_run_and_task(report)
    now, before = reporting.read_clock_and_checkpoint(checkpoint_receipt_id(report, checkpoint.checkpoint_id))
    if before is not None:
        check_same_checkpoint(before, report, digest=checkpoint.digest)
        return WorkflowTaskCheckpointed(receipt=before, is_duplicate=True)
    locked = LockedWorkflowTask(run=run, task=task, now=now, receipt=None)
    check_live(report, locked)
    try:
        recorded = record_checkpoint(report, checkpoint, locked)
    except Refusal as refusal:
        raise not_recorded(refusal, task, report.attempt) from None
    if isinstance(recorded, Refusal):
        raise not_recorded(recorded, task, report.attempt)
    return WorkflowTaskCheckpointed(receipt=recorded, is_duplicate=False)


def record_checkpoint(
    report: Report, checkpoint: Checkpoint, locked: LockedWorkflowTask
) -> CheckpointReceipt | Refusal:
    """The step after the guard: validate, apply, write. It asks for itself that the run is open: by its guarded update,
    which costs no statement of its own. If it finds the run closed, it returns the refusal and must be rolled back.
    """
    run, task = locked.run, locked.task
    commands = read_prefix(checkpoint.commands)
    if run.next_step_number != checkpoint.start_sequence:
        raise Refusal(
            Reason.CHECKPOINT_SEQUENCE_MISMATCH,
            "The checkpoint does not begin with the run's next step.",
            start_sequence=checkpoint.start_sequence,
            next_sequence=run.next_step_number,
            **workflow_identity(report),
        )
    changes = RunChanges(run, locked.now)
    try:
        apply_batch(Batch(changes=changes, task=task), commands)
    except StructuralLimitError as limit:
        raise _over_limit(limit) from limit
    changes.set(status=RunStatus.WAITING, started_at=run.started_at or task.leased_at)
    changes.keep_claim(task)
    try:
        changes.save()
    except RunChangedError:
        refusal = _refusal_now(report, locked)
        if refusal is None:
            raise
        return refusal
    receipt = _new_receipt(report, checkpoint, locked, changes)
    rows.insert([receipt])
    return receipt


def _over_limit(limit: StructuralLimitError) -> Refusal:
    return Refusal(
        Reason.STRUCTURAL_LIMIT_EXCEEDED,
        f"Structural limit {limit.limit_kind} exceeded: {limit.value} is more than {limit.configured}.",
        outcome="rejected",
        limit_kind=limit.limit_kind,
        current_value=limit.value,
        configured_limit=limit.configured,
    )


def _refusal_now(report: Report, locked: LockedWorkflowTask) -> Refusal | None:
    """What the guard says of the run as it is stored now."""
    run = locking.lock_run(locked.run.id)
    return None if run is None else check_workflow_task(report, locked.task, run, locked.now)


def _new_receipt(
    report: Report, checkpoint: Checkpoint, locked: LockedWorkflowTask, changes: RunChanges
) -> CheckpointReceipt:
    return CheckpointReceipt(
        id=checkpoint_receipt_id(report, checkpoint.checkpoint_id),
        namespace=locked.task.namespace,
        task_id=locked.task.id,
        run_id=locked.run.id,
        lease_owner=report.lease_owner,
        attempt_number=report.attempt,
        checkpoint_id=checkpoint.checkpoint_id,
        body_digest=checkpoint.digest,
        start_sequence=checkpoint.start_sequence,
        next_sequence=changes.run.next_step_number,
        created_task_ids=[task.id for task in changes.tasks],
        recorded_at=changes.now,
    )
