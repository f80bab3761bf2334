"""What a worker says over the API, built by hand, and what exact answers are compared with."""

from __future__ import annotations

import re
from typing import Any

from tests import factories as make
from tests.client import ApiClient, Response


class _Absent:
    """Its name is part of test ids, so it must not change from process to process."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Any = _Absent()

FAILURE = {"message": "boom", "type": "ValueError"}
WAITING = {"message": "Workflow task waiting for scheduled history.", "type": "WorkflowTaskWaitingForHistory"}

# The reports about a workflow task: route and fields beside the fence.
REPORTS: dict[str, tuple[str, dict[str, Any]]] = {
    "complete": ("complete", {"commands": [make.finish("late")]}),
    "checkpoint": (
        "cancellation-scopes/checkpoint",
        {"checkpoint_id": "c-1", "start_sequence": 1, "commands": [make.schedule()]},
    ),
    "fail": ("fail", {"failure": FAILURE}),
    "waiting": ("fail", {"failure": WAITING}),
}


class Like:
    """Equal to every text of one form."""

    def __init__(self, pattern: str) -> None:
        self.pattern = re.compile(pattern)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.pattern.fullmatch(other) is not None

    def __hash__(self) -> int:
        return hash(self.pattern)

    def __repr__(self) -> str:
        return f"Like({self.pattern.pattern!r})"


A_TIME = Like(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}Z")
AN_ID = Like(r"[0-9A-HJKMNP-TV-Z]{26}")
A_TEXT = Like(r"(?s).+")


def without(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that are not ABSENT."""
    return {name: value for name, value in fields.items() if value is not ABSENT}


def fence(lease: make.Lease, **other: Any) -> dict[str, Any]:
    """What proves the claim in a report's body."""
    names = ("lease_owner", "workflow_task_attempt") if is_workflow(lease) else ("activity_attempt_id", "lease_owner")
    return without({**{name: lease.body[name] for name in names}, **other})


def is_workflow(lease: make.Lease) -> bool:
    return bool(lease.body["task_kind"] == "workflow")


def path(lease: make.Lease, verb: str) -> str:
    """The route of a report about a lease."""
    return f"/api/worker/{'workflow' if is_workflow(lease) else 'activity'}-tasks/{lease.task_id}/{verb}"


def send(api: ApiClient, lease: make.Lease, verb: str, **fields: Any) -> Response:
    """POST a report about a lease; `fields` come beside the fence or replace parts of it."""
    return api.post(path(lease, verb), fence(lease, **fields))


def send_report(api: ApiClient, lease: make.Lease, report: str, **fields: Any) -> Response:
    """One of REPORTS."""
    verb, content = REPORTS[report]
    return send(api, lease, verb, **{**content, **fields})


def poll(api: ApiClient, kind: str, **fields: Any) -> Response:
    """POST a poll of worker w-1 that does not wait."""
    body = {"worker_id": "w-1", "task_queue": make.QUEUE, "timeout_seconds": 0, **fields}
    return api.post(f"/api/worker/{kind}-tasks/poll", without(body))


def register(api: ApiClient, *, version: str = "1.20", namespace: str = "default", **fields: Any) -> Response:
    """POST the registration of worker w-1."""
    body = {"worker_id": "w-1", "task_queue": make.QUEUE, "runtime": "python", "capability_manifest": {}, **fields}
    headers = {"X-Durable-Workflow-Protocol-Version": version, "X-Namespace": namespace}
    return api.post("/api/worker/register", without(body), headers=headers)


def leased(response: Response) -> make.Lease:
    """The lease of a poll's answer; there must be one."""
    assert response.body["poll_status"] == "leased", response.plain
    return make.Lease(response.body["task"], response.body["task"].get("history_events", []))
