"""A worker that loses no answer: light, over one kept-alive connection a thread, it repeats each request byte for byte.

A server may be killed at any moment: whatever was not answered is sent again until it is, a poll under the same poll
id, a report with the same body.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from tests import factories as make
from tests.invariants import STEP_TERMINALS
from tests.server import ServerProcess

STEPS = 5
POLL_SECONDS = 2
# What late and repeated reports may be told when leases are shorter than the server's absence.
LATE = {"lease_expired", "task_not_leased", "stale_attempt", "lease_owner_mismatch", "workflow_task_attempt_mismatch"}

RESULT = {"result": make.envelope("done")}
SCHEDULE, FINISH = make.schedule(), make.finish("done")
WAITING = {"message": make.WAITING.message, "type": make.WAITING.type}


@dataclass
class Traffic:
    """What all threads share: the server, how much it answered, and what it should not have answered."""

    server: ServerProcess
    stopping: threading.Event = field(default_factory=threading.Event)
    answered: int = 0
    repeated: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)


class Stopped(Exception):
    """The test is over and the server gone."""


class Line:
    """One thread's connection."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._connection: http.client.HTTPConnection | None = None

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Send until answered; a 5xx is no answer. Raises Stopped when the test has given up waiting."""
        content = json.dumps(body).encode()
        while not self._traffic.stopping.is_set():
            try:
                status, answer = self._exchange(path, content)
            except (OSError, http.client.HTTPException):
                self._connection = None
            else:
                if status < 500:
                    self._traffic.answered += 1
                    return status, json.loads(answer)
            self._traffic.repeated += 1
            time.sleep(0.02)
        raise Stopped

    def _exchange(self, path: str, content: bytes) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._traffic.server.port, timeout=20)
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {self._traffic.server.token}",
            "X-Durable-Workflow-Protocol-Version": "1.20",
            "X-Durable-Workflow-Control-Plane-Version": "2",
        }
        self._connection.request("POST", path, content, headers)
        response = self._connection.getresponse()
        return response.status, response.read()


class RawWorker:
    """A registered worker with a thread that polls for workflow tasks and one that polls for activities."""

    def __init__(self, traffic: Traffic, worker_id: str) -> None:
        self._traffic = traffic
        self._worker_id = worker_id
        self._threads = [
            threading.Thread(target=self._work, args=("workflow", self._run_workflow_task), name=f"{worker_id}-w"),
            threading.Thread(target=self._work, args=("activity", self._run_activity_task), name=f"{worker_id}-a"),
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._traffic.stopping.set()
        for thread in self._threads:
            thread.join(30)

    def _work(self, kind: str, run_task: Callable[[Line, dict[str, Any]], None]) -> None:
        line = Line(self._traffic)
        with suppress(Stopped):
            while True:
                self._poll(line, kind, run_task)

    def _poll(self, line: Line, kind: str, run_task: Callable[[Line, dict[str, Any]], None]) -> None:
        poll = {
            "worker_id": self._worker_id,
            "task_queue": make.QUEUE,
            "poll_request_id": uuid.uuid4().hex,
            "timeout_seconds": POLL_SECONDS,
        }
        status, answer = line.post(f"/api/worker/{kind}-tasks/poll", poll)
        if status == 200 and answer["task"] is not None:
            run_task(line, answer["task"])
        elif status != 200:
            self._note(answer, allowed={"poll_cached_task_expired"})

    def _run_workflow_task(self, line: Line, task: dict[str, Any]) -> None:
        types = [event["event_type"] for event in task["history_events"]]
        ended = sum(event_type in STEP_TERMINALS for event_type in types)
        if types.count("ActivityScheduled") > ended:
            self._report(line, f"workflow-tasks/{task['task_id']}/fail", task, failure=WAITING)
        else:
            command = FINISH if ended == STEPS else SCHEDULE
            self._report(line, f"workflow-tasks/{task['task_id']}/complete", task, commands=[command])

    def _run_activity_task(self, line: Line, task: dict[str, Any]) -> None:
        self._report(line, f"activity-tasks/{task['task_id']}/complete", task, **RESULT)

    def _report(self, line: Line, path: str, task: dict[str, Any], **body: Any) -> None:
        fence = {key: task[key] for key in ("workflow_task_attempt", "activity_attempt_id") if task.get(key)}
        status, answer = line.post(f"/api/worker/{path}", {"lease_owner": self._worker_id, **fence, **body})
        if status != 200:
            self._note(answer, allowed=LATE)

    def _note(self, answer: dict[str, Any], *, allowed: set[str]) -> None:
        self._traffic.reasons[answer["reason"]] += 1
        if answer["reason"] not in allowed:
            self._traffic.unexpected.append(json.dumps(answer))


def start_over_http(traffic: Traffic, workflow_ids: list[str]) -> None:
    """Start workflows one after the other; a repeat of a start whose answer was lost is told that it exists."""
    line = Line(traffic)
    with suppress(Stopped):
        for workflow_id in workflow_ids:
            body = {"workflow_type": "five", "workflow_id": workflow_id, "task_queue": make.QUEUE, "input": []}
            status, answer = line.post("/api/workflows", body)
            if status != 201 and answer["reason"] != "instance_already_started":
                traffic.unexpected.append(json.dumps(answer))
