"""History events: the events of one run in order, never those of all runs."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib import admin
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import list_link
from durable.models import HistoryEvent


@admin.register(HistoryEvent)
class HistoryEventAdmin(ReadOnlyAdmin):
    # durable_history_sequence serves them all; `sequence__gte` reaches what lies beyond the last page.
    lists = {
        ("q",): ("run_id", "sequence"),
        ("run_id",): ("sequence",),
        ("run_id", "sequence"): ("sequence",),
        ("run_id", "sequence__gte"): ("sequence",),
    }
    list_display = (
        "sequence",
        "event_type",
        "payload_bytes",
        "workflow_task_id",
        "workflow_command_id",
        "terminal_step",
        "recorded_at",
        "run_id",
    )
    search_fields = ("run_id__exact",)
    search_help_text = "A run id, exactly: its events are listed in order. Nothing is listed without one."

    def related(self, row: HistoryEvent) -> Iterable[SafeString]:
        return (
            list_link(HistoryEvent, "history", run_id=row.run_id),
            list_link(HistoryEvent, "from this event on", run_id=row.run_id, sequence__gte=row.sequence),
        )
