"""Failures: one row per recorded failure, for lists and filters. The full exception lives in its event."""

from __future__ import annotations

from django.db import models

from durable.ids import ID_LENGTH
from durable.models.fields import ExactCharField


class Failure(models.Model):
    """A failure that history records (docs/protocol/history.md 13)."""

    id = ExactCharField(max_length=ID_LENGTH, primary_key=True)
    namespace = ExactCharField(max_length=128)
    run_id = ExactCharField(max_length=ID_LENGTH)
    source_kind = models.CharField(max_length=32)
    source_id = ExactCharField(max_length=ID_LENGTH)
    failure_category = models.CharField(max_length=32)
    exception_type = models.CharField(max_length=255, blank=True, default="")
    message = models.CharField(max_length=1000, blank=True, default="")
    non_retryable = models.BooleanField(default=False)
    # The event that holds the whole of it.
    sequence = models.PositiveIntegerField()
    created_at = models.DateTimeField()

    class Meta:
        indexes = (models.Index(name="durable_failure_of_run", fields=("run_id", "sequence")),)

    def __str__(self) -> str:
        return str(self.id)
