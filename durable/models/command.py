"""External commands: every start, cancel, terminate and repair that was carried out, and who asked for it."""

from __future__ import annotations

from django.db import models

from durable.ids import ID_LENGTH
from durable.models.fields import ExactCharField
from durable.states import CommandStatus


class WorkflowCommand(models.Model):
    """What an outside caller asked of a workflow and how it was answered (docs/protocol/control-plane.md 6.3)."""

    id = ExactCharField(max_length=ID_LENGTH, primary_key=True)
    namespace = ExactCharField(max_length=128)
    workflow_id = ExactCharField(max_length=128)
    run_id = ExactCharField(max_length=ID_LENGTH)
    command_type = models.CharField(max_length=32)
    status = models.CharField(max_length=16, choices=CommandStatus)
    outcome = models.CharField(max_length=64)
    reason = models.CharField(max_length=1000, null=True, blank=True)  # noqa: DJ001 the wire says null
    request_id = ExactCharField(max_length=255, null=True, blank=True)
    # Who asked: the client name of the token and its kind.
    principal_type = models.CharField(max_length=32)
    principal_id = models.CharField(max_length=255)
    created_at = models.DateTimeField()

    class Meta:
        indexes = (models.Index(name="durable_command_of_workflow", fields=("workflow_id", "created_at", "id")),)

    def __str__(self) -> str:
        return str(self.id)
