"""Checkpoint receipts: the beginnings of workflow tasks that were recorded while their claims went on."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib import admin
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import list_link
from durable.models import CheckpointReceipt, CompletionReceipt, HistoryEvent, RefusedReport


@admin.register(CheckpointReceipt)
class CheckpointReceiptAdmin(ReadOnlyAdmin):
    # The key is a digest; only the lists of one task or run are in the order of time.
    lists = {
        (): ("-id",),
        ("q",): ("-recorded_at", "-id"),
        ("run_id",): ("-recorded_at", "-id"),
        ("task_id",): ("-recorded_at", "-id"),
    }
    list_display = (
        "checkpoint_id",
        "attempt_number",
        "lease_owner",
        "start_sequence",
        "next_sequence",
        "task_id",
        "run_id",
        "recorded_at",
    )
    search_fields = ("id__exact", "task_id__exact", "run_id__exact")
    search_help_text = "The id of a task or a run, exactly."

    def related(self, row: CheckpointReceipt) -> Iterable[SafeString]:
        return (
            list_link(CheckpointReceipt, "checkpoint receipts of the task", task_id=row.task_id),
            list_link(CompletionReceipt, "completion receipts of the task", task_id=row.task_id),
            list_link(RefusedReport, "refused reports of the task", task_id=row.task_id),
            list_link(HistoryEvent, "history of the run", run_id=row.run_id),
        )
