"""The worker plane: what workers call to get tasks and to report on them."""

from __future__ import annotations

from django.apps import AppConfig


class WorkerApiConfig(AppConfig):
    name = "worker_api"
    verbose_name = "Worker plane"
