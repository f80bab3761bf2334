"""Timers, pending and past."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib import admin
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import list_link
from durable.models import HistoryEvent, Timer


@admin.register(Timer)
class TimerAdmin(ReadOnlyAdmin):
    lists = {
        (): ("-id",),
        ("q",): ("step_number",),
        ("run_id",): ("step_number",),  # durable_timer_step
    }
    list_display = ("id", "status", "delay_seconds", "fire_at", "step_number", "run_id", "created_at", "closed_at")
    search_fields = ("id__exact", "run_id__exact")
    search_help_text = "A timer id or a run id, exactly."

    def related(self, row: Timer) -> Iterable[SafeString]:
        return (
            list_link(Timer, "timers of the run", run_id=row.run_id),
            list_link(HistoryEvent, "history of the run", run_id=row.run_id),
        )
