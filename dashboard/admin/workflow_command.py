"""External commands: what was asked of workflows from outside, accepted or not."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib import admin
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import list_link
from durable.models import Run, WorkflowCommand


@admin.register(WorkflowCommand)
class WorkflowCommandAdmin(ReadOnlyAdmin):
    lists = {
        (): ("-id",),
        ("q",): ("-created_at", "-id"),
        ("workflow_id",): ("-created_at", "-id"),  # durable_command_of_workflow
    }
    list_display = (
        "id",
        "command_type",
        "status",
        "outcome",
        "reason",
        "workflow_id",
        "run_id",
        "principal_type",
        "principal_id",
        "created_at",
    )
    search_fields = ("id__exact", "workflow_id__exact")
    search_help_text = "A command id or a workflow id, exactly."

    def related(self, row: WorkflowCommand) -> Iterable[SafeString]:
        return (
            list_link(WorkflowCommand, "commands of the workflow", workflow_id=row.workflow_id),
            list_link(Run, "runs of the workflow", workflow_id=row.workflow_id),
        )
