"""Refused reports: an access log of late and fenced reports, counted per identity. No operation reads it."""

from __future__ import annotations

from django.db import models

from durable.ids import ID_LENGTH
from durable.models.fields import ExactCharField


class RefusedReport(models.Model):
    """How often one worker's report about one task was refused for one reason (docs/design.md, rule 8).

    Best effort, written after the refusal's rollback; may be emptied at any time. Holds sizes and a keyed digest of
    bodies, never their content.
    """

    # SHA-256 of (namespace, route, task, worker, attempt, reason).
    id = ExactCharField(max_length=64, primary_key=True)
    namespace = ExactCharField(max_length=128)
    route = models.CharField(max_length=32)
    task_id = ExactCharField(max_length=ID_LENGTH)
    run_id = ExactCharField(max_length=ID_LENGTH)
    lease_owner = ExactCharField(max_length=255)
    offered_attempt = ExactCharField(max_length=255)
    current_attempt = models.PositiveIntegerField()
    reason = models.CharField(max_length=64)
    first_refused_at = models.DateTimeField()
    last_refused_at = models.DateTimeField()
    count = models.PositiveIntegerField(default=1)
    body_bytes = models.PositiveIntegerField()
    # HMAC-SHA256 under the server's secret: the same body can be recognised, its content cannot be guessed at.
    body_digest = models.CharField(max_length=64)

    class Meta:
        indexes = (
            models.Index(name="durable_refused_of_task", fields=("task_id",)),
            models.Index(name="durable_refused_recent", fields=("namespace", "last_refused_at")),
            models.Index(name="durable_refused_pruning", fields=("last_refused_at",)),
            models.Index(name="durable_refused_of_run", fields=("run_id",)),
        )

    def __str__(self) -> str:
        return f"{self.reason} {self.task_id}"
