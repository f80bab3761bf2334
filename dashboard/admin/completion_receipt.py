"""Completion receipts: the reports that were recorded."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib import admin
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import list_link
from durable.models import ActivityAttempt, CompletionReceipt, HistoryEvent, PollReceipt, RefusedReport


@admin.register(CompletionReceipt)
class CompletionReceiptAdmin(ReadOnlyAdmin):
    lists = {
        (): ("-id",),
        ("q",): ("-recorded_at", "-id"),
        ("run_id",): ("-recorded_at", "-id"),
        ("task_id",): ("-recorded_at", "-id"),
    }
    list_display = (
        "id",
        "kind",
        "outcome",
        "attempt_number",
        "lease_owner",
        "task_id",
        "run_id",
        "recorded_at",
    )
    search_fields = ("id__exact", "task_id__exact", "run_id__exact")
    search_help_text = "The id of a task, an activity attempt or a run, exactly."

    def related(self, row: CompletionReceipt) -> Iterable[SafeString]:
        return (
            list_link(ActivityAttempt, "attempts of the task", task_id=row.task_id),
            list_link(PollReceipt, "poll receipts of the task", task_id=row.task_id),
            list_link(RefusedReport, "refused reports of the task", task_id=row.task_id),
            list_link(HistoryEvent, "history of the run", run_id=row.run_id),
        )
