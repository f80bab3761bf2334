"""How the last pass of each upkeep duty went."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import flags
from durable.models import UpkeepPass


@admin.register(UpkeepPass)
class UpkeepPassAdmin(ReadOnlyAdmin):
    lists = {(): ("duty",)}
    list_display = (
        "duty",
        "attention",
        "last_run_at",
        "last_success_at",
        "handled_count",
        "failed_count",
        "last_error",
    )
    facts = ("attention",)

    @admin.display(description="attention")
    def attention(self, row: UpkeepPass) -> SafeString | str:
        has_failed = row.last_success_at is None or row.last_success_at < row.last_run_at
        return flags(["last pass failed"] if has_failed else [])
