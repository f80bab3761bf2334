"""Starts the workflows on Temporal through its client, and checks what became of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from benchmarks.peers.starter_process import StarterOptions, WrongOutcome, run_starter
from benchmarks.workload import FIVE, RUN_OUTPUT, STEP_COUNT, TASK_QUEUE

_READY_SECONDS = 30
_LOOK_AGAIN_SECONDS = 0.1
_EXPECTED_EVENT_COUNTS = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: STEP_COUNT,
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: STEP_COUNT,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: 1,
}


class TemporalStarter:
    def __init__(self, client: Client, runner: asyncio.Runner) -> None:
        self._client = client
        self._runner = runner

    def start(self, workflow_ids: Sequence[str]) -> None:
        self._runner.run(self._start(workflow_ids))

    def check(self, workflow_ids: Sequence[str]) -> float:
        return self._runner.run(self._check(workflow_ids))

    async def _start(self, workflow_ids: Sequence[str]) -> None:
        for workflow_id in workflow_ids:
            await self._client.start_workflow(FIVE, id=workflow_id, task_queue=TASK_QUEUE)

    async def _check(self, workflow_ids: Sequence[str]) -> float:
        closed_at = []
        for workflow_id in workflow_ids:
            handle = self._client.get_workflow_handle(workflow_id, result_type=list[int])
            result = await handle.result()
            if result != RUN_OUTPUT:
                raise WrongOutcome(f"{workflow_id} returned {result}")
            closed_at.append(await self._closed_at(workflow_id))
        for workflow_id in (workflow_ids[0], workflow_ids[-1]):
            history = await self._client.get_workflow_handle(workflow_id).fetch_history()
            counts = Counter(event.event_type for event in history.events)
            if any(counts[kind] != count for kind, count in _EXPECTED_EVENT_COUNTS.items()):
                raise WrongOutcome(f"{workflow_id} has the history {dict(counts)}")
        return max(closed_at).timestamp()

    async def _closed_at(self, workflow_id: str) -> datetime:
        run = await self._client.get_workflow_handle(workflow_id).describe()
        if run.status is not WorkflowExecutionStatus.COMPLETED or run.close_time is None:
            raise WrongOutcome(f"{workflow_id} is {run.status}")
        return run.close_time


async def _connect_when_ready(url: str) -> Client:
    """A client, once the server answers and has its default namespace.

    Raises RuntimeError or RPCError when that is not so within the time a server may take to start.
    """
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            client = await Client.connect(url)
            await client.count_workflows()  # needs the namespace
        except (RuntimeError, RPCError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        else:
            return client


@contextmanager
def connect(options: StarterOptions) -> Iterator[TemporalStarter]:
    with asyncio.Runner() as runner:
        yield TemporalStarter(runner.run(_connect_when_ready(options.url)), runner)


if __name__ == "__main__":
    run_starter(connect, "Starter of the benchmark on Temporal.")
