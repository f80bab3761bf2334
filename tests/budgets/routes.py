"""The steps of a workflow's life as a worker asks for them, over the routes."""

from __future__ import annotations

from typing import Any

from tests import factories as make
from tests.client import ApiClient
from tests.protocol.reports import leased, poll, send

Command = dict[str, Any]


def local_activity() -> Command:
    """A `record_local_activity` command with one attempt: three events."""
    attempt = {"attempt_id": "a-1", "attempt_number": 1, "duration_ms": 1, "outcome": "completed"}
    return {
        "type": "record_local_activity",
        "activity_type": "step",
        "execution_mode": "local",
        "arguments": make.envelope([]),
        "outcome": "completed",
        "result": make.envelope(1),
        "attempts": [attempt],
    }


def lease_over_api(api: ApiClient, kind: str, poll_request_id: str = "p-1", **fields: Any) -> make.Lease:
    """Lease a task with a poll that carries an id; there must be one."""
    return leased(poll(api, kind, poll_request_id=poll_request_id, **fields))


def complete(api: ApiClient, lease: make.Lease, *commands: Command) -> None:
    """Complete a workflow task."""
    answer = send(api, lease, "complete", commands=list(commands))
    assert (answer.status, answer.body["recorded"]) == (200, True) or answer.body["reason"] == "already_completed"


def checkpoint(api: ApiClient, lease: make.Lease, *commands: Command) -> None:
    """Record commands of a workflow task that goes on, as the run's first step or again."""
    fields = {"checkpoint_id": "c-1", "start_sequence": 1, "commands": list(commands)}
    answer = send(api, lease, "cancellation-scopes/checkpoint", **fields)
    assert (answer.status, answer.body["checkpointed"]) == (200, True), answer.body


def finish_step(api: ApiClient, lease: make.Lease) -> None:
    """Complete an activity."""
    answer = send(api, lease, "complete", result=make.envelope(1))
    assert (answer.status, answer.body["recorded"]) == (200, True), answer.body
