"""Version headers of the two planes: checked before a body is looked at (worker-protocol.md 1.3)."""

from __future__ import annotations

from django.http import HttpRequest

from durable.protocol import SERVED, ProtocolVersion, is_served, parse_version
from wire.errors import HttpError

WORKER_HEADER = "X-Durable-Workflow-Protocol-Version"
CONTROL_HEADER = "X-Durable-Workflow-Control-Plane-Version"
CONTROL_VERSION = "2"


def _header(request: HttpRequest, name: str) -> str:
    return str(request.META.get("HTTP_" + name.upper().replace("-", "_"), "")).strip()


def worker_version(request: HttpRequest) -> ProtocolVersion:
    """The protocol version a worker speaks. Raises 400 when it is missing or not one we serve."""
    asked = _header(request, WORKER_HEADER)
    if not asked:
        raise HttpError(
            400,
            "missing_protocol_version",
            "The protocol version header is missing.",
            error="The protocol version header is missing.",
            supported_version=str(SERVED),
            requested_version=None,
            remediation=f"Send {WORKER_HEADER}: {SERVED}.",
        )
    version = parse_version(asked)
    if version is None or not is_served(version):
        raise HttpError(
            400,
            "unsupported_protocol_version",
            "This protocol version is not served.",
            error="This protocol version is not served.",
            supported_version=str(SERVED),
            requested_version=asked[:255],
            remediation=f"Use a worker that speaks protocol {SERVED.major}.x up to {SERVED}.",
        )
    return version


def check_control_version(request: HttpRequest) -> None:
    """Raises 400 unless the control plane's version is exactly ours."""
    asked = _header(request, CONTROL_HEADER)
    if asked == CONTROL_VERSION:
        return
    reason = "unsupported_control_plane_version" if asked else "missing_control_plane_version"
    raise HttpError(
        400,
        reason,
        f"Send {CONTROL_HEADER}: {CONTROL_VERSION}.",
        supported_version=CONTROL_VERSION,
    )
