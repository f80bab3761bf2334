"""Activity executions, with what is derived from their task: whether a worker has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import lease, list_link
from durable.models import ActivityAttempt, ActivityExecution, Failure, HistoryEvent, Task


@admin.register(ActivityExecution)
class ActivityExecutionAdmin(ReadOnlyAdmin):
    lists = {
        (): ("-id",),
        ("q",): ("-scheduled_at", "-id"),
        ("run_id",): ("step_number",),  # durable_activity_step
    }
    list_display = (
        "id",
        "activity_type",
        "task_queue",
        "state",
        "lease",
        "step_number",
        "attempt_count",
        "lost_lease_count",
        "run_id",
        "task_id",
        "scheduled_at",
        "closed_at",
    )
    search_fields = ("id__exact", "run_id__exact")
    search_help_text = "An activity execution id or a run id, exactly."
    facts = ("state", "lease")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        task = Task.objects.filter(pk=OuterRef("task_id"))
        lease_expires_at = Subquery(task.values("lease_expires_at"))
        queryset: QuerySet[Any] = super().get_queryset(request).annotate(lease_expires_at=lease_expires_at)
        return queryset

    @admin.display(description="state")
    def state(self, row: Any) -> str:
        return row.status if row.lease_expires_at is None else "running"

    @admin.display(description="lease")
    def lease(self, row: Any) -> SafeString | str:
        return lease(row.lease_expires_at)

    def related(self, row: ActivityExecution) -> Iterable[SafeString]:
        return (
            list_link(ActivityAttempt, "attempts", activity_execution_id=row.id),
            list_link(ActivityExecution, "activities of the run", run_id=row.run_id),
            list_link(Failure, "failures of the run", run_id=row.run_id),
            list_link(HistoryEvent, "history of the run", run_id=row.run_id),
        )
