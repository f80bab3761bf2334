"""Tasks and their leases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.contrib import admin
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import lease, list_link
from dashboard.admin.filters import ListsFilter, Lookups
from durable.models import (
    ActivityAttempt,
    CheckpointReceipt,
    CompletionReceipt,
    HistoryEvent,
    PollReceipt,
    RefusedReport,
    Task,
)
from durable.states import TaskStatus


class LeaseFilter(ListsFilter):
    title = "lease"

    def named_lists(self) -> Iterator[tuple[str, Lookups]]:
        yield "All", {}
        yield "Leased, first to expire first", {"lease_expires_at__isnull": "False"}
        yield "For later, first due first", {"due_at__isnull": "False"}

    def is_selected(self, lookups: Lookups) -> bool:
        return self.current == lookups


def backlog_link(text: str, *, namespace: str, task_queue: str, kind: str) -> SafeString:
    """What is ready on a queue, in the order it is claimed."""
    lookups = {"namespace": namespace, "task_queue": task_queue, "kind": kind}
    return list_link(Task, text, **lookups, status=TaskStatus.READY, due=True)


@admin.register(Task)
class TaskAdmin(ReadOnlyAdmin):
    lists = {
        (): ("-id",),
        ("q",): ("-created_at", "-id"),
        ("run_id",): ("-created_at", "-id"),  # durable_task_of_run
        ("lease_expires_at__isnull",): ("lease_expires_at", "id"),  # durable_task_lease_expiry
        ("due_at__isnull",): ("due_at", "id"),  # durable_task_due
        ("namespace", "lease_owner"): ("-leased_at", "-id"),  # durable_task_of_owner
        ("namespace", "task_queue", "kind", "status", "due"): ("priority", "available_at", "id"),  # …_claim_any
    }
    list_display = (
        "id",
        "kind",
        "type",
        "task_queue",
        "status",
        "lease",
        "lease_owner",
        "attempt_count",
        "run_id",
        "available_at",
        "closed_at",
    )
    list_filter = (LeaseFilter,)
    search_fields = ("id__exact", "run_id__exact")
    search_help_text = "A task id or a run id, exactly."
    facts = ("lease",)

    @admin.display(description="lease")
    def lease(self, row: Task) -> SafeString | str:
        return lease(row.lease_expires_at)

    def related(self, row: Task) -> Iterable[SafeString]:
        return (
            list_link(ActivityAttempt, "attempts", task_id=row.id),
            list_link(PollReceipt, "poll receipts", task_id=row.id),
            list_link(CompletionReceipt, "completion receipts", task_id=row.id),
            list_link(CheckpointReceipt, "checkpoint receipts", task_id=row.id),
            list_link(RefusedReport, "refused reports", task_id=row.id),
            list_link(HistoryEvent, "history of the run", run_id=row.run_id),
            list_link(Task, "tasks of the run", run_id=row.run_id),
            backlog_link("backlog of the queue", namespace=row.namespace, task_queue=row.task_queue, kind=row.kind),
        )
