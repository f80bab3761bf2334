"""Poll receipts: the leases that poll ids were granted."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib import admin
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import list_link
from durable.models import ActivityAttempt, CompletionReceipt, PollReceipt


@admin.register(PollReceipt)
class PollReceiptAdmin(ReadOnlyAdmin):
    # The key is a digest, so newest first is by the indexed expiry.
    lists = {
        (): ("-expires_at", "-id"),
        ("q",): ("-created_at", "-id"),
        ("task_id",): ("-created_at", "-id"),
    }
    list_display = (
        "poll_request_id",
        "kind",
        "worker_id",
        "task_id",
        "attempt_number",
        "activity_attempt_id",
        "created_at",
        "expires_at",
    )
    search_fields = ("id__exact", "task_id__exact")
    search_help_text = "A task id, exactly."

    def related(self, row: PollReceipt) -> Iterable[SafeString]:
        return (
            list_link(PollReceipt, "poll receipts of the task", task_id=row.task_id),
            list_link(ActivityAttempt, "attempts of the task", task_id=row.task_id),
            list_link(CompletionReceipt, "completion receipts of the task", task_id=row.task_id),
        )
