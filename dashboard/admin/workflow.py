"""Workflow instances, found by how their id begins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import NOTHING, list_link
from durable.models import Run, Workflow, WorkflowCommand

_LAST_CHARACTER = "\U0010ffff"


@admin.register(Workflow)
class WorkflowAdmin(ReadOnlyAdmin):
    lists = {(): ("id",), ("q",): ("id",)}
    list_display = ("id", "namespace", "workflow_type", "current_run_id", "current_status", "run_count", "created_at")
    search_fields = ("id__exact",)
    search_help_text = "A workflow id, or how it begins."
    facts = ("current_status",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        status = Run.objects.filter(pk=OuterRef("current_run_id")).values("status")
        queryset: QuerySet[Any] = super().get_queryset(request).annotate(current_status=Subquery(status))
        return queryset

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> Any:
        """A range of the primary key. Django's own prefix search ignores case, which no index here serves."""
        if beginning := search_term.strip():
            queryset = queryset.filter(pk__gte=beginning, pk__lt=beginning + _LAST_CHARACTER)
        return queryset, False

    @admin.display(description="current status")
    def current_status(self, row: Any) -> str:
        return row.current_status or NOTHING

    def related(self, row: Workflow) -> Iterable[SafeString]:
        return (
            list_link(Run, "runs", workflow_id=row.id),
            list_link(WorkflowCommand, "commands", workflow_id=row.id),
        )
