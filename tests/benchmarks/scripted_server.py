"""A server for the raw worker in one process: it answers what a test says, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.http1 import Answer
from benchmarks.raw_worker import CARRIERS, INLINE, RawWorker
from benchmarks.worker_process import Carry, WorkerOptions
from benchmarks.workload import NO_ARGUMENTS, WORKFLOW_TYPES

Body = dict[str, Any]
CAPABILITIES = {capability: True for carriers in CARRIERS.values() for capability in carriers.values()} | {INLINE: True}


def answer(body: Body, status: int = 200) -> Answer:
    return Answer(status, json.dumps(body).encode())


def workflow_task(number: int) -> Body:
    """A "local" workflow's only task."""
    return {
        "task_id": f"task-{number}",
        "workflow_task_attempt": 1,
        "workflow_id": f"workflow-{number}",
        "workflow_type": WORKFLOW_TYPES["local"],
        "task_queue": "q",
        "arguments": NO_ARGUMENTS,
        "history_events": [],
    }


def leased(task: Body, *, seconds: float = 60, server_time: datetime | None = None) -> Body:
    """What a poll answers, envelope apart: a lease that has so many seconds left by the server's clock."""
    now = server_time or datetime.now(UTC)
    ends = (now + timedelta(seconds=seconds)).isoformat()
    return {"task": {**task, "lease_expires_at": ends}, "poll_status": "leased", "server_time": now.isoformat()}


class ScriptedServer:
    """`on_poll` and `on_complete` answer the worker; polls for activities wait for ever unless `on_poll` says more."""

    def __init__(self) -> None:
        self.polls: list[tuple[str, Body]] = []
        self.completions: list[Body] = []
        self.on_poll: Callable[[str, Body], Answer | None] = lambda kind, body: None
        self.on_complete: Callable[[Body], Answer] = lambda body: answer({"reason": None})
        self.stop = asyncio.Event()
        # Set once the worker has stopped.
        self.places_held = 0

    async def request(self, method: str, path: str, body: Body | None = None, *, timeout_seconds: float = 0) -> Answer:
        await asyncio.sleep(0)
        if path.endswith("/register"):
            return answer({"server_capabilities": CAPABILITIES}, 201)
        if path.endswith("-tasks/poll"):
            kind = "workflow" if "workflow-tasks" in path else "activity"
            self.polls.append((kind, body or {}))
            found = self.on_poll(kind, body or {})
            return found if found is not None else await asyncio.Event().wait()  # type: ignore[return-value]  # never
        if path.endswith("/complete"):
            self.completions.append(body or {})
            return self.on_complete(body or {})
        return answer({})

    def ids_polled(self, kind: str) -> list[str]:
        return [body["poll_request_id"] for polled, body in self.polls if polled == kind]


def run_worker_against(server_script: Callable[[ScriptedServer], None], carry: Carry = "on") -> ScriptedServer:
    """Run one worker until the script sets `stop`."""

    async def run() -> ScriptedServer:
        server = ScriptedServer()
        server_script(server)
        options = WorkerOptions(url="", token="", task_queue="q", worker_id="w", activity_seconds=0, carry=carry)
        worker = RawWorker(server, options)
        async with asyncio.timeout(30):
            await worker.run(server.stop)
        server.places_held = len(worker._reservations.held())
        return server

    return asyncio.run(run())
