"""Namespaces."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib import admin
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import list_link
from durable.models import Namespace, RefusedReport, Run, WorkerRegistration


@admin.register(Namespace)
class NamespaceAdmin(ReadOnlyAdmin):
    lists = {(): ("name",)}
    list_display = ("name", "description", "created_at")

    def related(self, row: Namespace) -> Iterable[SafeString]:
        return (
            list_link(Run, "runs", namespace=row.name),
            list_link(WorkerRegistration, "workers", namespace=row.name),
            list_link(RefusedReport, "refused reports", namespace=row.name),
        )
