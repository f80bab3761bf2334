"""The project's URL map. `/api` and `/metrics` are served by the lean handler (server/asgi.py), the rest by Django."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from control_api.views.discovery import MetricsView, UnknownRouteView
from server.schemas import serve_schema, show_schema

urlpatterns = [
    path("metrics", MetricsView.as_view()),
    path("api/docs", RedirectView.as_view(pattern_name="docs-worker"), name="docs"),
    path("api/docs/worker", show_schema("worker"), name="docs-worker"),
    path("api/docs/control", show_schema("control"), name="docs-control"),
    path("api/schema/worker", serve_schema, {"name": "worker"}, name="schema-worker"),
    path("api/schema/control", serve_schema, {"name": "control"}, name="schema-control"),
    path("api/worker/", include("worker_api.urls")),
    path("api/", include("control_api.urls")),
    path("api", UnknownRouteView.as_view()),
    path("admin/", admin.site.urls),
    path("", RedirectView.as_view(url="/admin/", permanent=False)),
]
