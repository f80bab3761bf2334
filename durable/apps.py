"""The engine as a Django app."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class DurableConfig(AppConfig):
    name = "durable"
    verbose_name = "Durable"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from durable import checks, commands  # noqa: F401 the command types and the system checks register themselves

        post_migrate.connect(_make_default_namespace, sender=self)


def _make_default_namespace(**kwargs: Any) -> None:
    """`migrate` leaves a server that can be used: the default namespace exists."""
    from durable import conf
    from durable.models import Namespace

    Namespace.objects.using(kwargs["using"]).get_or_create(name=conf.current().default_namespace)
