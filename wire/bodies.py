"""Request bodies: bounded while they are read, JSON or nothing (docs/protocol/worker-protocol.md 1.5 and 14)."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from django.http import HttpRequest

from durable import conf
from wire.errors import HttpError

# Far below the interpreter's limit: what is stored must be readable from any depth of its stack, an admin page's too.
MOST_NESTED = 200


def _is_unicode(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("a number is too large to be one")
    return number


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_NESTED):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def read_json(request: HttpRequest) -> dict[str, Any]:
    """The request's JSON object; an absent body is an empty one. Raises 413, 415 or 400."""
    oversize: int | None = getattr(request, "oversize_bytes", None)
    if oversize is not None:
        limit = conf.current().max_body_bytes
        raise HttpError(
            413,
            "payload_too_large",
            f"The request body is larger than {limit} bytes.",
            limit=limit,
            size=oversize,
        )
    raw = request.body
    if not raw:
        return {}
    _check_media_type(request)
    try:
        # Decoded here, strictly: json.loads would guess UTF-16 and let half characters through.
        value = json.loads(raw.decode(), parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise HttpError(
            400, "malformed_json", "The request body is not JSON.", json_error=type(error).__name__
        ) from error
    if (b"\\ud" in raw or b"\\uD" in raw) and not _is_unicode(value):
        raise HttpError(400, "malformed_json", "The request body holds half a character.", json_error="surrogate")
    if raw.count(b"{") + raw.count(b"[") > MOST_NESTED and _is_too_deep(value):
        raise HttpError(
            400, "malformed_json", f"The request body is nested over {MOST_NESTED} levels.", json_error="too deep"
        )
    if not isinstance(value, dict):
        raise HttpError(400, "malformed_json", "The request body must be a JSON object.", json_error="not an object")
    return value


def _check_media_type(request: HttpRequest) -> None:
    media_type = (request.content_type or "").lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise HttpError(
            415,
            "unsupported_media_type",
            "The request body must be application/json.",
            accepted_content_types=["application/json", "application/*+json"],
        )
