"""The two API documents: what they are called and which routes they describe.

`manage.py write_openapi` writes them to docs/openapi/, `/api/schema/…` serves them, `/api/docs/…` shows them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import include, path
from drf_spectacular.views import SpectacularSwaggerSplitView

from control_api.views.discovery import MetricsView, UnknownRouteView, UnknownWorkerRouteView
from wire.documents import Document, build_document

# Raised with every change of a contract: the last number for texts alone, the middle one for what clients may ignore,
# the first for what they may not.
WORKER_VERSION = "1.1.0"
CONTROL_VERSION = "1.1.0"

_BODIES = """
Bodies are JSON objects, sent as `application/json` or `application/*+json`; an absent body is an empty object. Unknown
keys of a request are ignored; answers hold exactly the keys described here. Times are UTC with six fractional digits
and a `Z`.

Every answer is described, refusals included: `reason` is for machines and never reused for another meaning,
`error` or `message` is for people. Checks are made in this order: size, media type and syntax of the body, token, role,
version, namespace, the route's own fields, its operation. A refusal has changed nothing.
"""

_DOCUMENTS = {
    "worker": Document(
        title="Durable: worker protocol API",
        version=WORKER_VERSION,
        description=f"""
What workers call to get tasks and to report on them (docs/protocol/worker-protocol.md). Every answer carries the
envelope: `protocol_version` and `server_capabilities`. Every request is safe to send again.
{_BODIES}""".strip(),
        tags={
            "workers": "Registration, heartbeat and deregistration.",
            "workflow tasks": "Deciding what a workflow does next.",
            "activity tasks": "Carrying out single steps.",
        },
        patterns=[path("api/worker/", include("worker_api.urls"))],
        unknown_route=UnknownWorkerRouteView,
    ),
    "control": Document(
        title="Durable: control plane API",
        version=CONTROL_VERSION,
        description=f"""
What clients and operators call to start, watch and stop workflows, and what anybody calls to find out about this
server (docs/protocol/control-plane.md). Answers of workflow operations carry the `control_plane` block.
{_BODIES}""".strip(),
        tags={
            "workflows": "Starting, watching and stopping workflows.",
            "server": "Discovery, health, readiness and metrics.",
        },
        patterns=[path("api/", include("control_api.urls")), path("metrics", MetricsView.as_view())],
        unknown_route=UnknownRouteView,
    ),
}

# Files below docs/openapi/.
FILES = {
    "worker": "worker-protocol-api.openapi.yaml",
    "control": "control-plane-api.openapi.yaml",
}


@cache
def document(name: str) -> dict[str, object]:
    """The document of a plane, built once."""
    return build_document(_DOCUMENTS[name])


@cache
def _as_json(name: str) -> bytes:
    return json.dumps(document(name), ensure_ascii=False).encode()


def serve_schema(request: HttpRequest, name: str) -> HttpResponse:
    """`GET /api/schema/<name>`: the document as JSON."""
    return HttpResponse(_as_json(name), content_type="application/json")


def show_schema(name: str) -> Callable[..., HttpResponseBase]:
    """The view behind `GET /api/docs/<name>`: the document in Swagger UI, whose files this server serves itself."""
    view: Callable[..., HttpResponseBase] = SpectacularSwaggerSplitView.as_view(
        url_name=f"schema-{name}", title=_DOCUMENTS[name].title, template_name="server/api_docs.html"
    )
    return view
