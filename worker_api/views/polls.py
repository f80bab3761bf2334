"""The two long polls (docs/protocol/worker-protocol.md 5): subscribe, look, lease or park, answer within the window."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from durable import conf, logs, metrics
from durable.claims import Nothing, PollRequest, Ready, wanted_by
from durable.leases import Leased
from durable.operations import poll
from durable.refusals import PollRefusal, PollRefusalReason, Reason, Refusal
from durable.sql.pool import Work
from durable.states import TaskKind
from durable.wakeups.hub import Waiter
from wire.errors import ErrorAnswer
from wire.process import runtime
from wire.views import Answer, Call, WorkerView
from worker_api.answers import polls
from worker_api.backend import poll_unavailable
from worker_api.leases import lease_fields
from worker_api.poll_requests import poll_request
from worker_api.requests import ActivityPollRequest, WorkflowPollRequest

# How soon a poll looks again while another request with its id is being served.
BUSY_SECONDS = 0.01
MOST_BUSY_LOOKS = 50


class PollView(WorkerView):
    """What both polls share; a subclass says which kind of task it hands out."""

    kind: TaskKind
    operation: str

    async def post(self, call: Call) -> Answer:
        data = self.validated(call)
        logs.bind(worker_id=data["worker_id"])
        request = poll_request(call, self.kind, data)
        # From before the first look, so that waiting and looking together stay within the window.
        deadline = time.monotonic() + _window_seconds(data)
        runtime().note_seen(request.namespace, request.worker_id)
        try:
            outcome = await self._poll(request, data, deadline)
        except Refusal as refusal:
            metrics.POLLS.labels(kind=self.kind, outcome="refused").inc()
            if refusal.reason == Reason.WORKER_DRAINING:
                return Answer({"task": None, "poll_status": "draining", **refusal.fields})
            raise
        if outcome is None:
            metrics.POLLS.labels(kind=self.kind, outcome="empty").inc()
            return Answer({"task": None, "poll_status": "empty"})
        metrics.POLLS.labels(kind=self.kind, outcome="replayed" if outcome.is_replay else "leased").inc()
        if not outcome.is_replay:
            metrics.CLAIMS.labels(kind=self.kind).inc()
        return self._leased(outcome, data)

    def _leased(self, leased: Leased, data: dict[str, Any]) -> Answer:
        facts = leased.claimed.facts
        logs.bind(task_id=facts.task.id, run_id=facts.run.id)
        return Answer(lease_fields(leased, history_encoding=data.get("accept_history_encoding")))

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def _poll(self, request: PollRequest, data: dict[str, Any], deadline: float) -> Leased | None:
        """Look once; if there is nothing, stand in line until something is or the window is over."""
        page_size = data.get("history_page_size")
        hub = runtime().hub
        # In line before the first look, so that one look is enough (docs/concurrency.md 17).
        waiter = hub.enter(
            request.queue_key,
            worker_id=request.worker_id,
            deadline=deadline,
            poll_request_id=request.poll_request_id,
        )
        leased: Leased | None = None
        try:
            outcome = await self._try_until_settled(request, page_size)
            if isinstance(outcome, Leased):
                leased = outcome
                return leased
            if deadline <= time.monotonic():
                return None
            if len(hub) >= conf.current().long_poll_capacity:
                raise _capacity_exhausted(request)
            hub.wait_for(waiter, wanted_by(request, outcome.worker))
            leased = await self._wait(request, outcome, waiter, page_size)
            return leased
        finally:
            # A lease that was only fetched again used up no hint.
            hub.leave(waiter, has_leased=leased is not None and not leased.is_replay)

    async def _try_until_settled(self, request: PollRequest, page_size: int | None) -> Leased | Nothing:
        """The first look. While another request with this poll id is being served, its lease is a moment away: looking
        again for it depends neither on the window nor on there being room to wait."""
        outcome = await self._try(request, None, page_size)
        for _ in range(MOST_BUSY_LOOKS):
            if isinstance(outcome, Leased) or not outcome.was_busy:
                break
            await asyncio.sleep(BUSY_SECONDS)
            outcome = await self._try(request, None, page_size)
        return outcome

    async def _wait(
        self, request: PollRequest, outcome: Nothing, waiter: Waiter, page_size: int | None
    ) -> Leased | None:
        hub = runtime().hub
        # Another request with this poll id is being served: its lease will be there in a moment.
        looks_again = outcome.was_busy
        while True:
            if looks_again:
                await asyncio.sleep(BUSY_SECONDS)
            elif not await hub.park(waiter):
                return None
            was_answered, waiter.is_answered = waiter.is_answered, False
            again = await self._try(request, None if was_answered else outcome, page_size)
            if isinstance(again, Leased):
                return again
            hub.pass_on(waiter, has_looked=not again.was_busy)
            outcome = again
            looks_again = again.was_busy and waiter.deadline > time.monotonic()

    async def _try(self, request: PollRequest, before: Nothing | None, page_size: int | None) -> Leased | Nothing:
        """One look, and a claim if something is there."""
        pool = runtime().pool
        # With one writing thread a look stays out of it, unless it stands idle: then one hop is better than two.
        if not pool.has_single_writer or pool.has_free_thread():
            return await pool.run(Work.WRITE, _look_and_lease, request, before, page_size)
        seen = await pool.run(Work.READ, poll.look, request, before, history_page_size=page_size)
        if isinstance(seen, Ready):
            return await pool.run(Work.WRITE, _lease, request, seen, page_size)
        return seen

    def unavailable(self, answer: ErrorAnswer, call: Call, path: dict[str, Any]) -> ErrorAnswer:
        return poll_unavailable(
            answer,
            operation=self.operation,
            task_kind=f"{self.kind}_task",
            namespace=call.namespace,
            body=call.body,
        )


class WorkflowPollView(PollView):
    """Poll for a workflow task

    Waits until a task is ready or the window is over. The same `poll_request_id` gets the same lease again for as long
    as it lives; only a lease is remembered, never that there was nothing.
    """

    route = "workflow-task-poll"
    request_serializer = WorkflowPollRequest
    answers = {"post": polls.WORKFLOW}
    kind = TaskKind.WORKFLOW
    operation = "poll_workflow_task"


class ActivityPollView(PollView):
    """Poll for an activity task

    Waits until a task is ready or the window is over. The same `poll_request_id` gets the same lease again for as long
    as it lives; only a lease is remembered, never that there was nothing.
    """

    route = "activity-task-poll"
    request_serializer = ActivityPollRequest
    answers = {"post": polls.ACTIVITY}
    kind = TaskKind.ACTIVITY
    operation = "poll_activity_task"


def _window_seconds(data: dict[str, Any]) -> int:
    settings = conf.current()
    asked = data.get("timeout_seconds")
    return min(settings.long_poll_seconds if asked is None else asked, settings.long_poll_max_seconds)


def _lease(request: PollRequest, ready: Ready, page_size: int | None) -> Leased | Nothing:
    metrics.CLAIM_TRANSACTIONS.labels(kind=request.kind).inc()
    return poll.lease(request, ready, history_page_size=page_size)


def _look_and_lease(request: PollRequest, before: Nothing | None, page_size: int | None) -> Leased | Nothing:
    seen = poll.look(request, before, history_page_size=page_size)
    return _lease(request, seen, page_size) if isinstance(seen, Ready) else seen


def _capacity_exhausted(request: PollRequest) -> PollRefusal:
    reason = PollRefusalReason.LONG_POLL_CAPACITY_EXHAUSTED
    return PollRefusal(
        reason,
        "This server has no room for another waiting poll.",
        task=None,
        poll_status=str(reason),
        task_kind=f"{request.kind}_task",
        task_queue=request.task_queue,
        namespace=request.namespace,
        wait_pool="worker",
        retryable=True,
        retry_after_seconds=1,
    )
