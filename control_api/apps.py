"""The control plane: what clients and operators call to start, watch and stop workflows."""

from __future__ import annotations

from django.apps import AppConfig


class ControlApiConfig(AppConfig):
    name = "control_api"
    verbose_name = "Control plane"
