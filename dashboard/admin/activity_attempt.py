"""Activity attempts: one per claim of an activity task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import NOTHING, lease, list_link
from durable.models import ActivityAttempt, CompletionReceipt, HistoryEvent, PollReceipt, RefusedReport
from durable.states import AttemptStatus


@admin.register(ActivityAttempt)
class ActivityAttemptAdmin(ReadOnlyAdmin):
    lists = {
        (): ("-id",),
        ("q",): ("-started_at", "-id"),
        ("run_id",): ("-started_at", "-id"),  # durable_attempt_of_run
        ("task_id",): ("-started_at", "-id"),  # the foreign key's
        ("activity_execution_id",): ("attempt_number", "id"),  # durable_attempt_of_activity
    }
    list_display = (
        "id",
        "activity_type",
        "attempt_number",
        "status",
        "lease",
        "lease_owner",
        "run_id",
        "task_id",
        "activity_execution_id",
        "started_at",
        "last_heartbeat_at",
        "closed_at",
    )
    list_select_related = ("task",)
    search_fields = ("id__exact", "run_id__exact")
    search_help_text = "An attempt id or a run id, exactly."
    facts = ("lease",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("progress", "task__claim_snapshot", "task__last_error")

    @admin.display(description="activity type")
    def activity_type(self, row: ActivityAttempt) -> str:
        return NOTHING if row.task is None else row.task.type

    @admin.display(description="lease")
    def lease(self, row: ActivityAttempt) -> SafeString | str:
        """As last extended; only a running attempt has one."""
        return lease(row.lease_expires_at if row.status == AttemptStatus.RUNNING else None)

    def related(self, row: ActivityAttempt) -> Iterable[SafeString]:
        links = [
            list_link(ActivityAttempt, "attempts of the activity", activity_execution_id=row.activity_execution_id),
            list_link(HistoryEvent, "history of the run", run_id=row.run_id),
        ]
        if row.task_id is not None:
            links += [
                list_link(PollReceipt, "poll receipts", task_id=row.task_id),
                list_link(CompletionReceipt, "completion receipts", task_id=row.task_id),
                list_link(RefusedReport, "refused reports", task_id=row.task_id),
            ]
        return links
