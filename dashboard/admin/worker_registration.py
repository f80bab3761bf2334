"""Workers that registered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import flags, list_link
from dashboard.admin.filters import NamespaceFilter
from dashboard.admin.task import backlog_link
from durable.models import Namespace, Task, WorkerIncarnation, WorkerRegistration
from durable.states import TaskKind


@admin.register(WorkerRegistration)
class WorkerRegistrationAdmin(ReadOnlyAdmin):
    lists = {
        (): ("namespace", "worker_id"),  # durable_worker_registered_once
        ("q",): ("namespace", "worker_id"),  # the same
        ("namespace",): ("worker_id",),  # the same
        ("namespace", "worker_id"): ("worker_id",),  # the same
        ("namespace", "task_queue"): ("-last_heartbeat_at", "-id"),  # durable_worker_by_queue
    }
    list_display = (
        "worker_id",
        "attention",
        "last_heartbeat_at",
        "namespace",
        "task_queue",
        "runtime",
        "sdk_version",
        "build_id",
        "protocol_version",
        "registered_at",
    )
    list_filter = (NamespaceFilter,)
    search_fields = ("worker_id__exact",)
    search_help_text = "A worker id, exactly."
    facts = ("attention",)

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> Any:
        """In every namespace by name: the index begins with it."""
        if worker_id := search_term.strip():
            names = list(Namespace.objects.values_list("name", flat=True))
            queryset = queryset.filter(namespace__in=names, worker_id=worker_id)
        return queryset, False

    @admin.display(description="attention")
    def attention(self, row: WorkerRegistration) -> SafeString | str:
        return flags(["draining"] if row.is_draining else [])

    def related(self, row: WorkerRegistration) -> Iterable[SafeString]:
        queue = {"namespace": row.namespace, "task_queue": row.task_queue}
        return (
            list_link(Task, "leased tasks", namespace=row.namespace, lease_owner=row.worker_id),
            list_link(WorkerIncarnation, "incarnations", namespace=row.namespace, worker_id=row.worker_id),
            list_link(WorkerRegistration, "workers of the queue", **queue),
            backlog_link("workflow backlog of the queue", **queue, kind=TaskKind.WORKFLOW),
            backlog_link("activity backlog of the queue", **queue, kind=TaskKind.ACTIVITY),
        )
