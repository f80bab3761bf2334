"""Tasks: what a worker can lease. A claim reads and writes this table and what hangs on its row, nothing else."""

from __future__ import annotations

from django.db import models

from durable.ids import ID_LENGTH
from durable.models.fields import ExactCharField, JSONTextField
from durable.states import OPEN_TASK, TaskKind, TaskStatus


class Task(models.Model):
    """One unit of work for a worker: a workflow task (decide what is next) or an activity task (do it).

    Everything a claim must know is a column here, so that it never locks a run (docs/concurrency.md 8).
    """

    id = ExactCharField(max_length=ID_LENGTH, primary_key=True)
    namespace = ExactCharField(max_length=128)
    task_queue = ExactCharField(max_length=255)
    kind = models.CharField(max_length=16, choices=TaskKind)
    # Workflow type or activity type, by kind.
    type = ExactCharField(max_length=255)
    status = models.CharField(max_length=16, choices=TaskStatus, default=TaskStatus.READY)
    # False for a task for later; upkeep makes it due at `due_at`. Claims look at due tasks only.
    due = models.BooleanField(default=True)
    due_at = models.DateTimeField(null=True)
    priority = models.PositiveSmallIntegerField(default=5)
    available_at = models.DateTimeField()
    build_id = ExactCharField(max_length=255, blank=True, default="")

    run_id = ExactCharField(max_length=ID_LENGTH)
    workflow_id = ExactCharField(max_length=128)
    activity_execution_id = ExactCharField(max_length=ID_LENGTH, null=True)

    # Set while leased and only then (constraint): who holds the task, since when, until when.
    lease_owner = ExactCharField(max_length=255, null=True)
    leased_at = models.DateTimeField(null=True)
    lease_expires_at = models.DateTimeField(null=True)
    renewal_count = models.PositiveIntegerField(default=0)
    # The epoch: counts claims and survives every lease. Fences late reports.
    attempt_count = models.PositiveIntegerField(default=0)
    # Reports of failure that ended a predecessor of this task, for the back-off (docs/protocol/history.md 10.3).
    failure_count = models.PositiveIntegerField(default=0)
    # What the holder could do when it claimed: incarnation, protocol version, capabilities.
    claim_snapshot = JSONTextField(null=True)
    # How the last claim came about: the id of the poll that asked for it.
    poll_request_id = ExactCharField(max_length=255, null=True)

    # Workflow tasks: the newest event that the claim may read, kept up by every append while ready and by checkpoints
    # while leased; and the newest that the claim was shown when it was made, whatever it read since: what ends it goes
    # by that (docs/concurrency.md 10 and 11).
    visible_sequence = models.PositiveIntegerField(default=0)
    claimed_history_sequence = models.PositiveIntegerField(default=0)

    # Activity tasks: time-outs in seconds that the claim turns into deadlines, and the deadlines.
    start_to_close_seconds = models.PositiveIntegerField(null=True)
    heartbeat_seconds = models.PositiveIntegerField(null=True)
    schedule_to_start_at = models.DateTimeField(null=True)
    schedule_to_close_at = models.DateTimeField(null=True)
    start_to_close_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    # The earliest of the four while the task is open, else null: the sweep's only key.
    deadline_at = models.DateTimeField(null=True)
    # A run past this is not offered any more.
    run_deadline_at = models.DateTimeField(null=True)

    last_error = JSONTextField(null=True)
    created_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)

    class Meta:
        indexes = (
            models.Index(
                name="durable_task_claim_typed",
                fields=("namespace", "task_queue", "kind", "status", "due", "type", "priority", "available_at", "id"),
            ),
            models.Index(
                name="durable_task_claim_any",
                fields=("namespace", "task_queue", "kind", "status", "due", "priority", "available_at", "id"),
            ),
            models.Index(name="durable_task_lease_expiry", fields=("lease_expires_at",)),
            models.Index(name="durable_task_deadline", fields=("deadline_at",)),
            models.Index(name="durable_task_due", fields=("due_at",)),
            models.Index(name="durable_task_of_run", fields=("run_id", "status")),
            models.Index(name="durable_task_of_owner", fields=("namespace", "lease_owner", "kind")),
        )
        constraints = (
            models.CheckConstraint(name="durable_task_status_known", condition=models.Q(status__in=TaskStatus.values)),
            models.CheckConstraint(
                name="durable_task_leased_as_a_whole",
                condition=(
                    models.Q(
                        status=TaskStatus.LEASED,
                        lease_owner__isnull=False,
                        leased_at__isnull=False,
                        lease_expires_at__isnull=False,
                        attempt_count__gte=1,
                    )
                    | (
                        models.Q(lease_owner__isnull=True, leased_at__isnull=True, lease_expires_at__isnull=True)
                        & ~models.Q(status=TaskStatus.LEASED)
                    )
                ),
            ),
            # A second guard behind run.open_task_id, where the database can do it; MariaDB and MySQL cannot.
            models.UniqueConstraint(
                name="durable_task_one_open_per_run",
                fields=("run_id",),
                condition=models.Q(kind=TaskKind.WORKFLOW, status__in=OPEN_TASK),
            ),
        )

    def __str__(self) -> str:
        return str(self.id)
