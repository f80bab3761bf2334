"""Failures that history records."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib import admin
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import list_link
from durable.models import ActivityAttempt, Failure, HistoryEvent


@admin.register(Failure)
class FailureAdmin(ReadOnlyAdmin):
    lists = {
        (): ("-id",),
        ("q",): ("sequence", "id"),
        ("run_id",): ("sequence", "id"),  # durable_failure_of_run
    }
    list_display = (
        "id",
        "failure_category",
        "exception_type",
        "message",
        "non_retryable",
        "source_kind",
        "run_id",
        "sequence",
        "created_at",
    )
    search_fields = ("id__exact", "run_id__exact")
    search_help_text = "A failure id or a run id, exactly."

    def related(self, row: Failure) -> Iterable[SafeString]:
        return (
            list_link(Failure, "failures of the run", run_id=row.run_id),
            list_link(ActivityAttempt, "attempts of the run", run_id=row.run_id),
            list_link(HistoryEvent, "history of the run", run_id=row.run_id),
        )
