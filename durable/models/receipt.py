"""Receipts: proofs that a report or a poll was already answered, written in the transaction of the thing they prove."""

from __future__ import annotations

from django.db import models

from durable.ids import ID_LENGTH
from durable.models.fields import ExactCharField, JSONTextField
from durable.states import TaskKind


class CompletionReceipt(models.Model):
    """A report that was recorded: one per workflow task, one per activity attempt (docs/protocol/receipts.md)."""

    # The task id of a workflow task, the attempt id of an activity.
    id = ExactCharField(max_length=ID_LENGTH, primary_key=True)
    namespace = ExactCharField(max_length=128)
    kind = models.CharField(max_length=16, choices=TaskKind)
    task_id = ExactCharField(max_length=ID_LENGTH, db_index=True)
    run_id = ExactCharField(max_length=ID_LENGTH, db_index=True)
    lease_owner = ExactCharField(max_length=255)
    attempt_number = models.PositiveIntegerField()
    # `completed`, or `failed` for an activity's failure report.
    outcome = models.CharField(max_length=16)
    # SHA-256 of the canonical JSON of the body, carried polls removed: what "the same report" means.
    body_digest = models.CharField(max_length=64)
    recorded_at = models.DateTimeField()

    def __str__(self) -> str:
        return str(self.id)


class CheckpointReceipt(models.Model):
    """A checkpoint that was recorded, with what it was answered: one per checkpoint id of a claim (receipts.md 12.2).

    Kept as long as the run, like completion receipts.
    """

    # SHA-256 of (task id, lease owner, attempt, checkpoint id): exact and short on every database.
    id = ExactCharField(max_length=64, primary_key=True)
    namespace = ExactCharField(max_length=128)
    task_id = ExactCharField(max_length=ID_LENGTH, db_index=True)
    run_id = ExactCharField(max_length=ID_LENGTH, db_index=True)
    lease_owner = ExactCharField(max_length=255)
    attempt_number = models.PositiveIntegerField()
    checkpoint_id = ExactCharField(max_length=255)
    # SHA-256 of the canonical JSON of the body: what "the same checkpoint" means.
    body_digest = models.CharField(max_length=64)
    # The step number its first command took, and the one that the next command takes.
    start_sequence = models.PositiveIntegerField()
    next_sequence = models.PositiveIntegerField()
    created_task_ids = JSONTextField(default=list)
    recorded_at = models.DateTimeField()

    def __str__(self) -> str:
        return str(self.id)


class PollReceipt(models.Model):
    """A lease that a poll id was granted; the same id finds it again after a lost answer (worker-protocol.md 6.1).

    Written by claims, which hold no run lock, so it has no foreign keys.
    """

    # SHA-256 of (namespace, kind, worker id, poll request id): exact and short on every database.
    id = ExactCharField(max_length=64, primary_key=True)
    namespace = ExactCharField(max_length=128)
    kind = models.CharField(max_length=16, choices=TaskKind)
    worker_id = ExactCharField(max_length=255)
    poll_request_id = ExactCharField(max_length=255)
    # The binding: the normalised task kinds that this id was used with; null for activity polls.
    task_kinds = JSONTextField(null=True)
    task_id = ExactCharField(max_length=ID_LENGTH, db_index=True)
    attempt_number = models.PositiveIntegerField()
    activity_attempt_id = ExactCharField(max_length=ID_LENGTH, null=True)
    created_at = models.DateTimeField()
    # Earliest moment at which upkeep may remove the row; never before the lease ended.
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return str(self.id)
