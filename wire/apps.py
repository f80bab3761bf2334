"""What both HTTP planes share, as a Django app: it owns the API tokens."""

from __future__ import annotations

from django.apps import AppConfig


class WireConfig(AppConfig):
    name = "wire"
    verbose_name = "API access"
    default_auto_field = "django.db.models.BigAutoField"
