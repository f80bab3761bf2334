"""Activity executions (one per authored step) and their attempts (one per claim)."""

from __future__ import annotations

from django.db import models

from durable.ids import ID_LENGTH
from durable.models.fields import ExactCharField, JSONTextField
from durable.models.task import Task
from durable.states import ActivityStatus, AttemptStatus


class ActivityExecution(models.Model):
    """One activity step of a run, over all its attempts. Written under the run's lock only."""

    id = ExactCharField(max_length=ID_LENGTH, primary_key=True)
    namespace = ExactCharField(max_length=128)
    run_id = ExactCharField(max_length=ID_LENGTH)
    step_number = models.PositiveIntegerField()
    activity_type = ExactCharField(max_length=255)
    task_queue = ExactCharField(max_length=255)
    status = models.CharField(max_length=16, choices=ActivityStatus, default=ActivityStatus.PENDING)
    # A local activity ran inside the workflow task and was recorded whole; it has no activity task.
    is_local = models.BooleanField(default=False)
    # The task that offers the current attempt; null once closed, and for a local activity.
    task_id = ExactCharField(max_length=ID_LENGTH, null=True)
    # Highest attempt number that ended; a running attempt is one more.
    attempt_count = models.PositiveIntegerField(default=0)
    # Attempts that ended because the lease ran out; counted apart from failures (docs/protocol/history.md 9.2).
    lost_lease_count = models.PositiveIntegerField(default=0)
    # Frozen when scheduled: attempts, back-off, non-retryable types and the four time-outs.
    retry_policy = JSONTextField(null=True)
    # The parallel metadata block that every event of this step repeats, and the cancellation policy if one was sent.
    event_fields = JSONTextField(null=True)
    # Outermost list group of the step, or null.
    group_id = ExactCharField(max_length=64, null=True)
    # Events that hold the arguments and the outcome.
    scheduled_sequence = models.PositiveIntegerField()
    outcome_sequence = models.PositiveIntegerField(null=True)
    scheduled_at = models.DateTimeField()
    schedule_to_close_at = models.DateTimeField(null=True)
    closed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(name="durable_activity_step", fields=("run_id", "step_number")),
            models.CheckConstraint(
                name="durable_activity_status_known", condition=models.Q(status__in=ActivityStatus.values)
            ),
        )

    def __str__(self) -> str:
        return str(self.id)


class ActivityAttempt(models.Model):
    """One claim of an activity task. Inserted by the claim, which holds no run lock: no key to run or execution."""

    id = ExactCharField(max_length=ID_LENGTH, primary_key=True)
    namespace = ExactCharField(max_length=128)
    # The one foreign key a claim may write: it holds this task's row lock itself (docs/concurrency.md 4). Null for the
    # attempts of a local activity, which no task offered.
    task = models.ForeignKey(Task, on_delete=models.CASCADE, null=True, related_name="attempts")
    activity_execution_id = ExactCharField(max_length=ID_LENGTH)
    run_id = ExactCharField(max_length=ID_LENGTH)
    attempt_number = models.PositiveIntegerField()
    status = models.CharField(max_length=16, choices=AttemptStatus, default=AttemptStatus.RUNNING)
    lease_owner = ExactCharField(max_length=255)
    started_at = models.DateTimeField()
    # The lease as last extended; the task row decides while the attempt runs.
    lease_expires_at = models.DateTimeField(null=True)
    last_heartbeat_at = models.DateTimeField(null=True)
    # The last progress a heartbeat reported; goes into history with the attempt's outcome.
    progress = JSONTextField(null=True)
    closed_at = models.DateTimeField(null=True)

    class Meta:
        indexes = (
            models.Index(name="durable_attempt_of_activity", fields=("activity_execution_id", "attempt_number")),
            models.Index(name="durable_attempt_of_run", fields=("run_id",)),
        )
        constraints = (
            models.CheckConstraint(
                name="durable_attempt_status_known", condition=models.Q(status__in=AttemptStatus.values)
            ),
        )

    def __str__(self) -> str:
        return str(self.id)
