"""Runs, with what is derived from their open task: whether a worker has it, and whether its lease is alive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import flags, has_expired, lease, list_link
from dashboard.admin.filters import ListsFilter, Lookups, NamespaceFilter, chosen_namespace
from durable.models import (
    ActivityAttempt,
    ActivityExecution,
    CheckpointReceipt,
    CompletionReceipt,
    Failure,
    HistoryEvent,
    RefusedReport,
    Run,
    Task,
    WorkflowCommand,
)
from durable.states import RunStatus


class StatusFilter(ListsFilter):
    """By status within one namespace, as the index goes."""

    title = "status"

    def named_lists(self) -> Iterator[tuple[str, Lookups]]:
        namespace = chosen_namespace(self.current)
        for status in RunStatus:
            yield f"{status.label} in {namespace}", {"namespace": namespace, "status": status.value}


class AttentionFilter(ListsFilter):
    title = "attention"

    def named_lists(self) -> Iterator[tuple[str, Lookups]]:
        yield "Blocked, latest first", {"blocked_at__isnull": "False"}
        yield "Open with a deadline, first due first", {"deadline_at__isnull": "False"}


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    lists = {
        (): ("-id",),
        ("namespace",): ("-created_at", "-id"),  # durable_run_list
        ("namespace", "status"): ("-created_at", "-id"),  # durable_run_by_status
        ("namespace", "workflow_type"): ("-created_at", "-id"),  # durable_run_by_type
        ("workflow_id",): ("-run_number",),  # durable_run_of_workflow
        ("q",): ("-last_progress_at", "-id"),
        ("blocked_at__isnull",): ("-blocked_at", "-id"),  # durable_run_blocked
        ("deadline_at__isnull",): ("deadline_at", "id"),  # durable_run_deadline
    }
    list_display = (
        "id",
        "state",
        "attention",
        "workflow_id",
        "type",
        "task_queue",
        "created_at",
        "history",
        "pending_activity_count",
        "pending_timer_count",
        "last_progress_at",
    )
    list_filter = (NamespaceFilter, StatusFilter, AttentionFilter)
    search_fields = ("id__exact", "workflow_id__exact")
    search_help_text = "A run id or a workflow id, exactly."
    facts = ("state", "attention", "open_lease")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Both facts are looked up by key for the rows of the page, in the page's own statement."""
        # Not `Exists`: PostgreSQL may read the whole table to answer that for many rows at once.
        refused = RefusedReport.objects.filter(run_id=OuterRef("pk"))
        open_task = Task.objects.filter(pk=OuterRef("open_task_id"))
        queryset: QuerySet[Any] = (
            super()
            .get_queryset(request)
            .annotate(
                open_lease_expires_at=Subquery(open_task.values("lease_expires_at")),
                refused_count=Subquery(refused.values("count")[:1]),
            )
        )
        return queryset

    @admin.display(description="workflow type")
    def type(self, row: Run) -> SafeString:
        return list_link(Run, row.workflow_type, namespace=row.namespace, workflow_type=row.workflow_type)

    @admin.display(description="state")
    def state(self, row: Any) -> str:
        if row.open_lease_expires_at is not None:
            return "running"
        return "timed out" if row.closed_reason == "timed_out" else row.status

    @admin.display(description="attention")
    def attention(self, row: Any) -> SafeString | str:
        facts = {
            "blocked": row.blocked_at is not None,
            "lease expired": row.open_lease_expires_at is not None and has_expired(row.open_lease_expires_at),
            "past deadline": row.deadline_at is not None and has_expired(row.deadline_at),
            "refused reports": row.refused_count is not None,
        }
        return flags(text for text, is_so in facts.items() if is_so)

    @admin.display(description="lease of the open task")
    def open_lease(self, row: Any) -> SafeString | str:
        return lease(row.open_lease_expires_at)

    @admin.display(description="history")
    def history(self, row: Run) -> SafeString:
        return list_link(HistoryEvent, f"{row.last_history_sequence} events", run_id=row.id)

    def related(self, row: Run) -> Iterable[SafeString]:
        return (
            list_link(HistoryEvent, "history", run_id=row.id),
            list_link(Task, "tasks", run_id=row.id),
            list_link(ActivityExecution, "activities", run_id=row.id),
            list_link(ActivityAttempt, "attempts", run_id=row.id),
            list_link(Failure, "failures", run_id=row.id),
            list_link(CompletionReceipt, "completion receipts", run_id=row.id),
            list_link(CheckpointReceipt, "checkpoint receipts", run_id=row.id),
            list_link(RefusedReport, "refused reports", run_id=row.id),
            list_link(WorkflowCommand, "commands", workflow_id=row.workflow_id),
            list_link(Run, "runs of the workflow", workflow_id=row.workflow_id),
        )
