"""API tokens: whose they are and what they open. Never the hash; the secret is not stored at all."""

from __future__ import annotations

from django.contrib import admin
from django.utils import timezone

from dashboard.admin.base import ReadOnlyAdmin
from wire.models import ApiToken


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnlyAdmin):
    lists = {
        (): ("-id",),
        ("q",): ("-created_at", "-id"),
        ("client",): ("-created_at", "-id"),  # wire_token_of_client
    }
    list_display = (
        "client",
        "prefix",
        "state",
        "roles",
        "namespaces",
        "expires_at",
        "last_used_at",
        "revoked_at",
        "created_at",
    )
    search_fields = ("client__exact", "prefix__exact")
    search_help_text = "A client or a token's prefix, exactly."
    facts = ("state",)
    hidden = ("secret_hash",)

    @admin.display(description="state")
    def state(self, row: ApiToken) -> str:
        if row.revoked_at is not None:
            return "revoked"
        return "live" if row.is_live(timezone.now()) else "expired"
