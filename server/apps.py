"""The runnable project, an app only for its commands."""

from __future__ import annotations

from django.apps import AppConfig


class ServerConfig(AppConfig):
    name = "server"
