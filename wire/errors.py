"""The only table from a refusal or fault to an HTTP answer (docs/protocol/refusals.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.db import Error

from durable import metrics
from durable.refusals import Kind, Reason, Refusal
from durable.sql.pool import PoolBusyError
from durable.sql.transactions import is_backend_lost, is_lock_pressure

RETRY_AFTER_SECONDS = 1

STATUS_OF_KIND: dict[Kind, int] = {
    Kind.MALFORMED: 400,
    Kind.NOT_FOUND: 404,
    Kind.CONFLICT: 409,
    Kind.GONE: 410,
    Kind.NOT_REGISTERED: 412,
    Kind.INVALID_REQUEST: 422,
    Kind.UNAVAILABLE: 429,
    Kind.DRAINING: 200,
}

# Refusals whose human text stands under `message`; all others of the worker plane say `error`.
_SAY_MESSAGE = {Reason.VALIDATION_FAILED, Reason.STRUCTURAL_LIMIT_EXCEEDED}


class HttpError(Exception):
    """A refusal of the transport itself: media type, size, token, role, version, namespace, route."""

    def __init__(self, status: int, reason: str, message: str, **fields: Any) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.message = message
        self.fields = fields


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """A status and a body, without the plane's envelope."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


def answer_for(error: Exception, *, says_error: bool) -> ErrorAnswer | None:
    """The answer to an error; None for a fault nobody foresaw. `says_error`: the worker plane's name for the text."""
    if isinstance(error, HttpError):
        metrics.REFUSALS.labels(reason=error.reason).inc()
        return ErrorAnswer(error.status, {"reason": error.reason, "message": error.message, **error.fields})
    if isinstance(error, Refusal):
        metrics.REFUSALS.labels(reason=error.reason).inc()
        return _refusal_answer(error, says_error=says_error)
    if isinstance(error, PoolBusyError) or (isinstance(error, Error) and is_lock_pressure(error)):
        return _unavailable("backend_lock_pressure", "The database is busy; nothing was changed.")
    if isinstance(error, Error) and is_backend_lost(error):
        return _unavailable("backend_unavailable", "The database cannot be reached; the outcome is unknown.")
    return None


def _refusal_answer(refusal: Refusal, *, says_error: bool) -> ErrorAnswer:
    text = "error" if says_error and refusal.reason not in _SAY_MESSAGE else "message"
    body = {text: refusal.message, "reason": str(refusal.reason), **refusal.fields}
    headers = {}
    if "retry_after_seconds" in refusal.fields:
        headers["Retry-After"] = str(refusal.fields["retry_after_seconds"])
    return ErrorAnswer(STATUS_OF_KIND[refusal.kind], body, headers)


def _unavailable(reason: str, message: str) -> ErrorAnswer:
    body = {"reason": reason, "message": message, "retryable": True, "retry_after_seconds": RETRY_AFTER_SECONDS}
    metrics.REFUSALS.labels(reason=reason).inc()
    return ErrorAnswer(503, body, {"Retry-After": str(RETRY_AFTER_SECONDS)})


def fault_answer() -> ErrorAnswer:
    """What a client learns of a fault: that there was one."""
    return ErrorAnswer(500, {"reason": "server_error", "message": "An unexpected error occurred.", "retryable": True})
