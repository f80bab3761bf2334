"""Answers to a lost or crowded database, in the exact shapes that clients retry on (worker-protocol.md 5.6)."""

from __future__ import annotations

from typing import Any

from wire.errors import ErrorAnswer


def backend_lost(answer: ErrorAnswer, operation: str, **identity: Any) -> ErrorAnswer:
    """The route's own shape around a 503: what was asked, and that its outcome is unknown."""
    body = {**answer.body, "operation": operation, "outcome": "unknown", **identity}
    return ErrorAnswer(answer.status, body, answer.headers)


def poll_unavailable(answer: ErrorAnswer, *, operation: str, task_kind: str, namespace: str,
                     body: dict[str, Any]) -> ErrorAnswer:  # fmt: skip
    """A poll that could not be served: the client sends the same poll again after a while."""
    queue, poll_id = body.get("task_queue"), body.get("poll_request_id")
    common = {"task": None, "poll_status": answer.body["reason"], "task_queue": queue, "namespace": namespace}
    if answer.body["reason"] == "backend_unavailable":
        named = {
            "worker_id": body.get("worker_id"),
            "poll_request_id": poll_id,
            "retry_same_poll_request_id": True,
        }
        return backend_lost(ErrorAnswer(answer.status, {**answer.body, **common}, answer.headers), operation, **named)
    fields = {**answer.body, **common, "task_kind": task_kind, "request_admitted": False}
    return ErrorAnswer(answer.status, fields, answer.headers)
