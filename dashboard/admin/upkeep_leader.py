"""Who runs the duties that only one process may run."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString

from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import lease
from durable.models import UpkeepLeader


@admin.register(UpkeepLeader)
class UpkeepLeaderAdmin(ReadOnlyAdmin):
    lists = {(): ("name",)}
    list_display = ("name", "holder", "leadership", "expires_at")
    facts = ("leadership",)

    @admin.display(description="leadership")
    def leadership(self, row: UpkeepLeader) -> SafeString | str:
        return lease(row.expires_at)
