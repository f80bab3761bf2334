"""Completions that carry polls, built by hand."""

from __future__ import annotations

from typing import Any

from durable.models import ActivityAttempt, PollReceipt, Task
from durable.states import TaskKind, TaskStatus
from tests import factories as make
from tests.client import ApiClient, Response
from tests.protocol.reports import send, without


def carried(poll_request_id: str = "carried-1", **fields: Any) -> dict[str, Any]:
    """The body of a carried poll of worker w-1."""
    return without(
        {"worker_id": "w-1", "task_queue": make.QUEUE, "poll_request_id": poll_request_id, "timeout_seconds": 30}
        | fields
    )


def complete_carrying(api: ApiClient, lease: make.Lease, *commands: dict[str, Any], **polls: Any) -> Response:
    """Complete a workflow task with `activity_poll` and `workflow_poll` as given."""
    return send(api, lease, "complete", commands=list(commands) or [make.finish("done")], **polls)


def leases_of(worker_id: str, kind: TaskKind) -> list[Task]:
    """The tasks of one kind that a worker holds now."""
    return list(Task.objects.filter(status=TaskStatus.LEASED, lease_owner=worker_id, kind=kind))


def poll_receipt(poll_request_id: str) -> PollReceipt | None:
    return PollReceipt.objects.filter(poll_request_id=poll_request_id).first()


def running_attempts(worker_id: str) -> int:
    return ActivityAttempt.objects.filter(lease_owner=worker_id, status="running").count()
