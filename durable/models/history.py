"""History events: what a run did, in order, and the only place where payloads are stored."""

from __future__ import annotations

from django.db import models

from durable.ids import ID_LENGTH
from durable.models.fields import ExactCharField, JSONTextField


class HistoryEvent(models.Model):
    """One event. Appended under the run's lock, in the transaction of the change it tells of; never changed after."""

    id = ExactCharField(max_length=ID_LENGTH, primary_key=True)
    run_id = ExactCharField(max_length=ID_LENGTH)
    # 1, 2, 3 … without gaps within a run.
    sequence = models.PositiveIntegerField()
    event_type = models.CharField(max_length=64)
    payload = JSONTextField()
    # Encoded size of `payload`, so that a page can end at its byte limit without loading what it leaves out.
    payload_bytes = models.PositiveIntegerField()
    recorded_at = models.DateTimeField()
    workflow_task_id = ExactCharField(max_length=ID_LENGTH, null=True)
    workflow_command_id = ExactCharField(max_length=ID_LENGTH, null=True)
    # The step that this event ends, null on every other event: at most one terminal event per step, because a
    # second one would be delivered to the next step on replay.
    terminal_step = models.PositiveIntegerField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(name="durable_history_sequence", fields=("run_id", "sequence")),
            # The step first: with the run first PostgreSQL takes it for reads by run and sequence, and walks the run.
            models.UniqueConstraint(name="durable_history_terminal", fields=("terminal_step", "run_id")),
        )

    def __str__(self) -> str:
        return f"{self.run_id}/{self.sequence} {self.event_type}"
