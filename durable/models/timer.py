"""Timers: steps of a run that end by themselves when their time has come (docs/protocol/history.md 10.1)."""

from __future__ import annotations

from django.db import models

from durable.ids import ID_LENGTH
from durable.models.fields import ExactCharField, JSONTextField
from durable.states import TimerStatus


class Timer(models.Model):
    """One `start_timer` step. Written under the run's lock only."""

    id = ExactCharField(max_length=ID_LENGTH, primary_key=True)
    namespace = ExactCharField(max_length=128)
    run_id = ExactCharField(max_length=ID_LENGTH)
    step_number = models.PositiveIntegerField()
    status = models.CharField(max_length=16, choices=TimerStatus, default=TimerStatus.PENDING)
    delay_seconds = models.PositiveIntegerField()
    fire_at = models.DateTimeField()
    # `fire_at` while the timer is pending, else null: the only key of the sweep.
    due_at = models.DateTimeField(null=True)
    # The parallel metadata block that every event of this step repeats.
    event_fields = JSONTextField(null=True)
    # Outermost list group of the step, or null.
    group_id = ExactCharField(max_length=64, null=True)
    created_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)

    class Meta:
        indexes = (models.Index(name="durable_timer_due", fields=("due_at",)),)
        constraints = (
            models.UniqueConstraint(name="durable_timer_step", fields=("run_id", "step_number")),
            models.CheckConstraint(
                name="durable_timer_status_known", condition=models.Q(status__in=TimerStatus.values)
            ),
            models.CheckConstraint(
                name="durable_timer_due_while_pending",
                condition=(
                    models.Q(status=TimerStatus.PENDING, due_at__isnull=False, closed_at__isnull=True)
                    | (models.Q(due_at__isnull=True, closed_at__isnull=False) & ~models.Q(status=TimerStatus.PENDING))
                ),
            ),
        )

    def __str__(self) -> str:
        return str(self.id)
