"""Worker incarnations: one per registration of a worker id."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib import admin
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import list_link
from durable.models import Task, WorkerIncarnation, WorkerRegistration


@admin.register(WorkerIncarnation)
class WorkerIncarnationAdmin(ReadOnlyAdmin):
    # durable_incarnation_of_worker serves all but the search by key.
    lists = {
        (): ("namespace", "worker_id", "status", "registration_token"),
        ("q",): ("registration_token",),
        ("namespace",): ("worker_id", "status", "registration_token"),
        ("namespace", "worker_id"): ("status", "registration_token"),
    }
    list_display = (
        "registration_token",
        "worker_id",
        "namespace",
        "status",
        "recovered_workflow_task_count",
        "created_at",
        "ended_at",
    )
    search_fields = ("registration_token__exact",)
    search_help_text = "A registration token, exactly."

    def related(self, row: WorkerIncarnation) -> Iterable[SafeString]:
        worker = {"namespace": row.namespace, "worker_id": row.worker_id}
        return (
            list_link(WorkerRegistration, "registration of the worker", **worker),
            list_link(WorkerIncarnation, "incarnations of the worker", **worker),
            list_link(Task, "leased tasks", namespace=row.namespace, lease_owner=row.worker_id),
        )
