"""A small worker that speaks the worker protocol directly.

It costs little, so that what is measured with it is the server. It knows the two workflow types of the workload and
answers their tasks from a count of history events, without replay; payloads are constants. One workflow task and one
activity run at a time, each with its own poller, as the published SDK does with both limits set to 1. Unlike that
SDK it renews no leases: nothing here takes longer than a fraction of a lease.

Any answer it does not expect ends it, and with it the benchmark: a worker that hides errors measures nothing.

For carried polls: `poll_request` builds the body of a poll of either kind, which is also the value of the carried
field, and `complete_*` take the fields to add to a completion and return the server's answer.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal
from urllib.parse import quote

import uvloop

from benchmarks.http1 import Client, UnexpectedAnswer
from benchmarks.worker_process import WorkerOptions, report, run_worker
from benchmarks.workload import (
    ACTIVITY_TYPE,
    FIVE,
    LOCAL,
    RUN_RESULT,
    STEP_ARGUMENTS,
    STEP_COUNT,
    STEP_RESULTS,
    JsonObject,
)

TaskKind = Literal["workflow", "activity"]
NOTHING_CARRIED: Mapping[str, JsonObject] = {}

_POLL_SECONDS = 30
_ANSWER_SECONDS = 30
_RESULT_OF_ARGUMENTS = {
    arguments["blob"]: result for arguments, result in zip(STEP_ARGUMENTS, STEP_RESULTS, strict=True)
}
_BUSY = (429, 503)


class WrongHistory(Exception):
    """A task's history cannot have come from this workload."""


class RawWorker:
    """One registered worker with a workflow poller and an activity poller."""

    def __init__(self, client: Client, options: WorkerOptions) -> None:
        self._client = client
        self._options = options
        self._registration_token: str | None = None
        self._heartbeat_seconds = 10.0

    async def run(self, stop: asyncio.Event) -> None:
        """Register, work until the event is set, deregister. An error ends the worker at once, still registered."""
        await self._register()
        report("ready")
        loops = [
            asyncio.create_task(self._work("workflow", self._run_workflow_task)),
            asyncio.create_task(self._work("activity", self._run_activity_task)),
            asyncio.create_task(self._heartbeat()),
        ]
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopped, *loops], return_when=asyncio.FIRST_COMPLETED)
            for loop in loops:
                if loop.done():
                    loop.result()  # no loop ends but by an error
        finally:
            for task in (stopped, *loops):
                task.cancel()
            await asyncio.gather(stopped, *loops, return_exceptions=True)
        await self._deregister()

    # The two loops

    async def _work(self, kind: TaskKind, run_task: Callable[[JsonObject], Awaitable[None]]) -> None:
        while True:
            task = await self.poll(kind, uuid.uuid4().hex)
            if task is not None:
                await run_task(task)

    async def _run_workflow_task(self, task: JsonObject) -> None:
        if task["workflow_type"] == FIVE:
            commands = _commands_of_five(task)
        elif task["workflow_type"] == LOCAL:
            commands = await self._commands_of_local()
        else:
            raise WrongHistory(f"workflow type {task['workflow_type']!r}")
        if not commands:
            await self._report_waiting(task)
            return
        await self.complete_workflow_task(task, commands, NOTHING_CARRIED)
        if commands[-1]["type"] == "complete_workflow":
            report("closed", workflow_id=task["workflow_id"])

    async def _run_activity_task(self, task: JsonObject) -> None:
        result = _RESULT_OF_ARGUMENTS[task["arguments"]["blob"]]
        await asyncio.sleep(self._options.activity_seconds)
        await self.complete_activity_task(task, result, NOTHING_CARRIED)

    async def _commands_of_local(self) -> list[JsonObject]:
        commands: list[JsonObject] = []
        for arguments, result in zip(STEP_ARGUMENTS, STEP_RESULTS, strict=True):
            await asyncio.sleep(self._options.activity_seconds)
            attempt = {
                "attempt_id": uuid.uuid4().hex,
                "attempt_number": 1,
                "outcome": "completed",
                "duration_ms": round(self._options.activity_seconds * 1000),
                "heartbeats": [],
            }
            commands.append(
                {
                    "type": "record_local_activity",
                    "activity_type": ACTIVITY_TYPE,
                    "execution_mode": "local",
                    "arguments": arguments,
                    "outcome": "completed",
                    "result": result,
                    "attempts": [attempt],
                }
            )
        commands.append({"type": "complete_workflow", "result": RUN_RESULT})
        return commands

    # The protocol

    def poll_request(self, kind: TaskKind, poll_request_id: str) -> JsonObject:
        """The body of one poll; the id makes it safe to send again."""
        body: JsonObject = {
            "worker_id": self._options.worker_id,
            "task_queue": self._options.task_queue,
            "poll_request_id": poll_request_id,
            "timeout_seconds": _POLL_SECONDS,
        }
        if kind == "workflow":
            body["history_page_size"] = 500
        return body

    async def poll(self, kind: TaskKind, poll_request_id: str) -> JsonObject | None:
        """The leased task, or None when nothing was ready within the window."""
        body = self.poll_request(kind, poll_request_id)
        answer = await self._post(f"{kind}-tasks/poll", body, timeout_seconds=_POLL_SECONDS + 10)
        task = answer["task"]
        if not (task is None or isinstance(task, dict)):
            raise UnexpectedAnswer(f"poll answered with the task {task!r}")
        return task

    async def complete_workflow_task(
        self, task: JsonObject, commands: list[JsonObject], carried: Mapping[str, JsonObject]
    ) -> JsonObject:
        body = {**self._workflow_claim(task), "commands": commands, **carried}
        return await self._post(f"workflow-tasks/{task['task_id']}/complete", body)

    async def complete_activity_task(
        self, task: JsonObject, result: Mapping[str, str], carried: Mapping[str, JsonObject]
    ) -> JsonObject:
        body = {
            "activity_attempt_id": task["activity_attempt_id"],
            "lease_owner": self._options.worker_id,
            "result": result,
            **carried,
        }
        return await self._post(f"activity-tasks/{task['task_id']}/complete", body)

    async def _report_waiting(self, task: JsonObject) -> None:
        """Give back a task that asks for nothing: its activity is still under way."""
        failure = {"type": "WorkflowTaskWaitingForHistory", "message": "Workflow task waiting for scheduled history."}
        await self._post(f"workflow-tasks/{task['task_id']}/fail", {**self._workflow_claim(task), "failure": failure})

    def _workflow_claim(self, task: JsonObject) -> JsonObject:
        return {"lease_owner": self._options.worker_id, "workflow_task_attempt": task["workflow_task_attempt"]}

    async def _register(self) -> None:
        floor = {"minimum_protocol_version": "1.18"}
        manifest = {
            "local_activities": {"supported": True, "implementation": "record_local_activity", **floor},
            "worker_sessions": {"supported": False, "reason": "not_implemented", **floor},
            "sticky_execution": {"supported": False, "reason": "not_implemented", **floor},
        }
        body = {
            "worker_id": self._options.worker_id,
            "task_queue": self._options.task_queue,
            "runtime": "external",
            "sdk_version": "durable-benchmark",
            "supported_workflow_types": [FIVE, LOCAL],
            "supported_activity_types": [ACTIVITY_TYPE],
            "capabilities": ["local_activities"],
            "capability_manifest": manifest,
            "max_concurrent_workflow_tasks": 1,
            "max_concurrent_activity_tasks": 1,
        }
        answer = await self._post("register", body, created=True)
        self._registration_token = answer.get("registration_token")
        self._heartbeat_seconds = float(answer.get("heartbeat_interval_seconds") or self._heartbeat_seconds)

    async def _deregister(self) -> None:
        path = f"/api/worker/registrations/{quote(self._options.worker_id, safe='')}"
        if self._registration_token is None:
            answer = await self._client.request("DELETE", path)
        else:
            body = {"registration_token": self._registration_token}
            answer = await self._client.request("POST", f"{path}/deregister", body)
        answer.expect(200)

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            await self._post("heartbeat", {"worker_id": self._options.worker_id})

    async def _post(
        self, route: str, body: JsonObject, *, created: bool = False, timeout_seconds: float = _ANSWER_SECONDS
    ) -> JsonObject:
        """Send a report or a poll, again for as long as the server answers that it is busy."""
        while True:
            answer = await self._client.request("POST", f"/api/worker/{route}", body, timeout_seconds=timeout_seconds)
            if answer.status not in _BUSY:
                return answer.expect(201 if created else 200)
            await asyncio.sleep(float(answer.json().get("retry_after_seconds") or 1))


def _commands_of_five(task: JsonObject) -> list[JsonObject]:
    """The next command of a "five" run, or none while its activity is under way.

    Raises WrongHistory when the recorded results are not those of the steps, in order.
    """
    if task.get("next_history_page_token") is not None:
        raise WrongHistory("a history of five steps fits on one page")
    events = task["history_events"]
    scheduled = sum(event["event_type"] == "ActivityScheduled" for event in events)
    results = [event["payload"]["result"]["blob"] for event in events if event["event_type"] == "ActivityCompleted"]
    if results != [result["blob"] for result in STEP_RESULTS[: len(results)]]:
        raise WrongHistory(f"{task['workflow_id']}: results {results}")
    if scheduled > len(results):
        return []
    if len(results) == STEP_COUNT:
        return [{"type": "complete_workflow", "result": RUN_RESULT}]
    return [
        {
            "type": "schedule_activity",
            "activity_type": ACTIVITY_TYPE,
            "queue": task["task_queue"],
            "arguments": STEP_ARGUMENTS[len(results)],
        }
    ]


async def work(options: WorkerOptions, stop: asyncio.Event) -> None:
    headers = {
        "Authorization": f"Bearer {options.token}",
        "X-Namespace": "default",
        "X-Durable-Workflow-Protocol-Version": "1.20",
    }
    client = Client(options.url, headers)
    try:
        await RawWorker(client, options).run(stop)
    finally:
        client.close()


if __name__ == "__main__":
    run_worker(work, "Raw-protocol worker of the benchmark.", loop_factory=uvloop.new_event_loop)
