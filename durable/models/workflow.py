"""Workflow instances: one row per workflow id, whatever number of runs it has."""

from __future__ import annotations

from django.db import models

from durable.ids import ID_LENGTH
from durable.models.fields import ExactCharField


class Workflow(models.Model):
    """The workflow id a caller chose and the run that carries it now (docs/protocol/control-plane.md 6.2).

    The id is unique over all namespaces and is never freed, so "one run per id" is the primary key itself.
    """

    id = ExactCharField(max_length=128, primary_key=True)
    namespace = ExactCharField(max_length=128)
    workflow_type = ExactCharField(max_length=255)
    # The newest run. Written in the transaction that creates it; commands by workflow id go to it.
    current_run_id = ExactCharField(max_length=ID_LENGTH)
    run_count = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField()

    class Meta:
        constraints = (
            # Not `^…+$`: on two of the databases `$` lets a final line break through.
            models.CheckConstraint(
                name="durable_workflow_id_form", condition=~models.Q(id="") & ~models.Q(id__regex=r"[^A-Za-z0-9._:-]")
            ),
        )

    def __str__(self) -> str:
        return str(self.id)
