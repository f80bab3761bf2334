"""A small worker that speaks the worker protocol directly.

It costs little, so that what is measured with it is the server. One workflow task and one activity run at a time, each
with its own poller, as the published SDK does with both limits set to 1. Unlike that SDK it renews no leases: nothing
here takes longer than a fraction of a lease.

With `--carry` its completions carry polls:

* A finished workflow task carries a poll for an activity and one for a workflow task; a finished activity one for a
  workflow task. Only where the server advertises it, and only where there is room.
* A free place is not polled for while the task in the other place will carry a poll for it.
* A poll that waits already is withdrawn for a carried one if the completion itself makes a task of that kind ready.
  It is carried under the same id, which whatever the withdrawn poll was given is leased under too.

Any answer it does not expect ends it, and with it the benchmark: a worker that hides errors measures nothing. Only a
lost answer does not: the same request is sent again, and the benchmark reports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

import uvloop

from benchmarks.answering import commands_of, result_of
from benchmarks.http1 import Answer, Client, ConnectionLost, UnexpectedAnswer
from benchmarks.reservations import KINDS, Lease, Reservation, Reservations, TaskKind
from benchmarks.worker_process import WorkerOptions, report, run_worker
from benchmarks.workload import ACTIVITY_TYPE, FIVE, LOCAL, JsonObject

INLINE = "carried_poll_inline_task"
# The polls that a completion can carry, by the kind of task that it completes, in the order of the server's claims.
CARRIERS: Mapping[TaskKind, Mapping[TaskKind, str]] = {
    "workflow": {
        "activity": "workflow_task_completion_activity_poll",
        "workflow": "workflow_task_completion_workflow_poll",
    },
    "activity": {"workflow": "activity_completion_workflow_poll"},
}

_POLL_SECONDS = 30
_ANSWER_SECONDS = 30
_RESEND_SECONDS = 0.1
_MOST_LOST_ANSWERS = 50
_BUSY = (429, 503)


class Transport(Protocol):
    """What the worker needs of `Client`."""

    async def request(
        self, method: str, path: str, body: JsonObject | None = None, *, timeout_seconds: float = ...
    ) -> Answer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The report on a finished task.

    `makes_ready` is the kind of task that becomes ready by it, `takes_polls` whether it may carry polls.
    """

    route: str
    body: JsonObject
    makes_ready: TaskKind | None = None
    takes_polls: bool = True
    closed_workflow_id: str | None = None


class RawWorker:
    """One registered worker with room for one workflow task and one activity."""

    def __init__(self, client: Transport, options: WorkerOptions) -> None:
        self._client = client
        self._options = options
        self._registration_token: str | None = None
        self._heartbeat_seconds = 10.0
        self._reservations = Reservations()
        self._carried_by: Mapping[TaskKind, list[TaskKind]] = {kind: [] for kind in KINDS}
        self._asks_inline = False

    async def run(self, stop: asyncio.Event) -> None:
        """Register, work until the event is set, deregister. An error ends the worker at once, still registered."""
        await self._register()
        report("ready")
        working = asyncio.create_task(self._work())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopped, working], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()  # it ends only by an error
        finally:
            for task in (stopped, working):
                task.cancel()
            await asyncio.gather(stopped, working, return_exceptions=True)
        await self._deregister()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as self._tasks:
            self._tasks.create_task(self._heartbeat())
            self._poll_where_free()

    # Polls

    def _poll_where_free(self) -> None:
        """Poll for each kind there is room for, unless a running task will carry that poll."""
        for kind in KINDS:
            if any(held.poll is None and kind in self._carried_by[held.kind] for held in self._reservations.held()):
                continue
            if (reservation := self._reservations.reserve(kind)) is not None:
                self._wait_for_task(reservation)

    def _wait_for_task(self, reservation: Reservation) -> None:
        reservation.poll = self._tasks.create_task(self._poll(reservation))

    async def _poll(self, reservation: Reservation) -> None:
        """Send an ordinary poll under the reservation's id, to wait for a task or to fetch one that is leased."""
        body = self._poll_request(reservation)
        answer = await self._post(f"{reservation.kind}-tasks/poll", body, 200, 409, timeout_seconds=_POLL_SECONDS + 10)
        is_fetched, reservation.poll = reservation.poll is None, None
        if answer.get("reason") == "poll_cached_task_expired":
            # The lease ended before it was fetched. The next poll has a new id.
            self._give_up(reservation)
        elif answer.get("task") is not None:
            await self._run(reservation, self._received(answer))
        elif is_fetched or "task" not in answer:
            raise UnexpectedAnswer(f"{reservation.kind} poll: {answer}")
        else:
            self._give_up(reservation)

    def _poll_request(self, reservation: Reservation) -> JsonObject:
        """The body of one poll, also that of a carried one; the id makes it safe to send again."""
        body: JsonObject = {
            "worker_id": self._options.worker_id,
            "task_queue": self._options.task_queue,
            "poll_request_id": reservation.poll_request_id,
            "timeout_seconds": _POLL_SECONDS,
        }
        if reservation.kind == "workflow":
            body["history_page_size"] = 500
        return body

    def _received(self, body: JsonObject) -> Lease:
        """The lease in an answer that has just been received."""
        try:
            return Lease.received(body, asyncio.get_running_loop().time())
        except (KeyError, ValueError) as error:
            raise UnexpectedAnswer(f"no usable lease: {error!r} in {body}") from error

    def _give_up(self, reservation: Reservation) -> None:
        self._reservations.release(reservation)
        self._poll_where_free()

    # Tasks

    async def _run(self, reservation: Reservation, lease: Lease) -> None:
        """Do a task and report it, with polls for what there is room for then."""
        finish = self._finish_workflow_task if reservation.kind == "workflow" else self._finish_activity
        try:
            async with asyncio.timeout_at(lease.ends_at):
                outcome = await finish(lease.task)
        except TimeoutError:
            report("lease_ended", task_id=lease.task["task_id"])
            self._give_up(reservation)
            return
        carried = self._reserve_carried(reservation, outcome.makes_ready) if outcome.takes_polls else []
        polls = {f"{each.kind}_poll": self._carried_poll(each) for each in carried}
        answer = await self._post(outcome.route, {**outcome.body, **polls})
        if outcome.closed_workflow_id is not None:
            report("closed", workflow_id=outcome.closed_workflow_id)
        for each in carried:
            self._settle(each, answer)
        if reservation not in carried:
            self._reservations.release(reservation)
        self._poll_where_free()

    async def _finish_workflow_task(self, task: JsonObject) -> Outcome:
        commands = await commands_of(task, self._options.activity_seconds)
        route = f"workflow-tasks/{task['task_id']}"
        claim = {
            "lease_owner": self._options.worker_id,
            "workflow_task_attempt": task["workflow_task_attempt"],
        }
        if not commands:
            # Give back a task that asks for nothing: its activity is still under way.
            failure = {
                "type": "WorkflowTaskWaitingForHistory",
                "message": "Workflow task waiting for scheduled history.",
            }
            return Outcome(route=f"{route}/fail", body={**claim, "failure": failure}, takes_polls=False)
        last = commands[-1]["type"]
        return Outcome(
            route=f"{route}/complete",
            body={**claim, "commands": commands},
            makes_ready="activity" if last == "schedule_activity" else None,
            closed_workflow_id=task["workflow_id"] if last == "complete_workflow" else None,
        )

    async def _finish_activity(self, task: JsonObject) -> Outcome:
        body = {
            "activity_attempt_id": task["activity_attempt_id"],
            "lease_owner": self._options.worker_id,
            "result": await result_of(task, self._options.activity_seconds),
        }
        return Outcome(route=f"activity-tasks/{task['task_id']}/complete", body=body, makes_ready="workflow")

    # Carried polls

    def _reserve_carried(self, finished: Reservation, makes_ready: TaskKind | None) -> list[Reservation]:
        """Room for each poll that the completion of this task carries; the finished task's own is used again."""
        carried = []
        for kind in self._carried_by[finished.kind]:
            if kind == finished.kind:
                finished.renew()
                carried.append(finished)
            elif kind == makes_ready and (waiting := self._reservations.waiting(kind)) is not None:
                self._withdraw(waiting)
                carried.append(waiting)
            elif (reservation := self._reservations.reserve(kind)) is not None:
                carried.append(reservation)
        return carried

    def _withdraw(self, reservation: Reservation) -> None:
        """End the ordinary poll of this reservation. It may have been given a lease already, so the id stays."""
        assert reservation.poll is not None
        reservation.poll.cancel()
        reservation.poll = None
        reservation.is_unsettled = True
        report("withdrawn", kind=reservation.kind)

    def _carried_poll(self, reservation: Reservation) -> JsonObject:
        body = self._poll_request(reservation)
        return {**body, "deliver": "inline"} if self._asks_inline else body

    def _settle(self, reservation: Reservation, answer: JsonObject) -> None:
        """Act on what a completion's answer says of one carried poll."""
        member = answer.get(f"{reservation.kind}_poll")
        if member is not None and member["leased"]:
            if member.get("task") is not None:
                self._tasks.create_task(self._run(reservation, self._received(member)))
            else:
                self._tasks.create_task(self._poll(reservation))
        elif reservation.is_unsettled or answer["reason"] == "already_completed":
            # A withdrawn poll, or the completion whose answer was lost, may have leased something under this id.
            self._wait_for_task(reservation)
        else:
            # Nothing was leased, also if the key is missing.
            self._reservations.release(reservation)

    # The protocol

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
        answer = await self._post("register", body, 201)
        self._registration_token = answer.get("registration_token")
        self._heartbeat_seconds = float(answer.get("heartbeat_interval_seconds") or self._heartbeat_seconds)
        if self._options.carry != "off":
            self._read_capabilities(answer["server_capabilities"])

    def _read_capabilities(self, advertised: Mapping[str, object]) -> None:
        """Which polls to carry; what was asked for and the server does not offer is reported."""

        def is_offered(capability: str) -> bool:
            if advertised.get(capability) is not True:
                report("not_advertised", capability=capability)
            return advertised.get(capability) is True

        self._carried_by = {
            finished: [kind for kind, capability in carriers.items() if is_offered(capability)]
            for finished, carriers in CARRIERS.items()
        }
        self._asks_inline = self._options.carry == "inline" and is_offered(INLINE)

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
        self, route: str, body: JsonObject, *statuses: int, timeout_seconds: float = _ANSWER_SECONDS
    ) -> JsonObject:
        """Send a report or a poll, the same again when the server is busy or its answer was lost."""
        lost_count = 0
        while True:
            try:
                answer = await self._client.request(
                    "POST", f"/api/worker/{route}", body, timeout_seconds=timeout_seconds
                )
            except (ConnectionLost, OSError):
                lost_count += 1
                if lost_count > _MOST_LOST_ANSWERS:
                    raise
                report("lost_answer", route=route)
                await asyncio.sleep(_RESEND_SECONDS)
                continue
            if answer.status not in _BUSY:
                return answer.expect(*(statuses or (200,)))
            await asyncio.sleep(float(answer.json().get("retry_after_seconds") or 1))


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
