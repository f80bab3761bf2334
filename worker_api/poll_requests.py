"""From a poll's validated body to the engine's request, the same for ordinary and carried polls."""

from __future__ import annotations

from typing import Any

from durable.claims import PollRequest
from durable.states import TaskKind
from wire.views import Call


def poll_request(call: Call, kind: TaskKind, data: dict[str, Any]) -> PollRequest:
    """What the worker asks for; an empty text counts as absent."""
    return PollRequest(
        namespace=call.namespace,
        kind=kind,
        worker_id=data["worker_id"],
        task_queue=data["task_queue"],
        build_id=data.get("build_id") or None,
        poll_request_id=data.get("poll_request_id") or None,
        task_kinds=tuple(sorted(data.get("task_kinds") or ("workflow",))) if kind == TaskKind.WORKFLOW else (),
        protocol_version=call.version,
    )
