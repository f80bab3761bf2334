"""The two OpenAPI documents, served and written to docs/openapi/ from the same definition."""

from __future__ import annotations

from drf_spectacular.views import SpectacularAPIView

WORKER_SCHEMA = SpectacularAPIView.as_view(urlconf="worker_api.urls")
CONTROL_SCHEMA = SpectacularAPIView.as_view(urlconf="control_api.urls")
