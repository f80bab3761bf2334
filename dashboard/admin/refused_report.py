"""Refused reports: late and fenced reports, counted. Best effort; may be emptied at any time."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib import admin
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import list_link
from dashboard.admin.filters import NamespaceFilter
from durable.models import CheckpointReceipt, CompletionReceipt, HistoryEvent, RefusedReport


@admin.register(RefusedReport)
class RefusedReportAdmin(ReadOnlyAdmin):
    lists = {
        (): ("-last_refused_at", "-id"),  # durable_refused_pruning
        ("namespace",): ("-last_refused_at", "-id"),  # durable_refused_recent
        ("q",): ("-count", "-id"),
        ("task_id",): ("-count", "-id"),  # durable_refused_of_task
        ("run_id",): ("-count", "-id"),  # durable_refused_of_run
    }
    list_display = (
        "reason",
        "count",
        "last_refused_at",
        "lease_owner",
        "route",
        "offered_attempt",
        "current_attempt",
        "task_id",
        "run_id",
        "first_refused_at",
    )
    list_filter = (NamespaceFilter,)
    search_fields = ("task_id__exact", "run_id__exact")
    search_help_text = "A task id or a run id, exactly."

    def related(self, row: RefusedReport) -> Iterable[SafeString]:
        return (
            list_link(RefusedReport, "refused reports of the task", task_id=row.task_id),
            list_link(RefusedReport, "refused reports of the run", run_id=row.run_id),
            list_link(CompletionReceipt, "what was recorded for the task", task_id=row.task_id),
            list_link(CheckpointReceipt, "its checkpoints", task_id=row.task_id),
            list_link(HistoryEvent, "history of the run", run_id=row.run_id),
        )
