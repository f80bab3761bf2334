"""Enqueues the workflows on DBOS through its client, and checks what became of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dbos import DBOSClient, EnqueueOptions

from benchmarks.peers.starter_process import StarterOptions, WrongOutcome, run_starter
from benchmarks.workload import ACTIVITY_TYPE, FIVE, RUN_OUTPUT, STEP_COUNT, TASK_QUEUE

APPLICATION = "durable-bench"

_UNFINISHED = ["ENQUEUED", "PENDING"]
_LOOK_AGAIN_SECONDS = 0.005


class DbosStarter:
    def __init__(self, client: DBOSClient) -> None:
        self._client = client

    def start(self, workflow_ids: Sequence[str]) -> None:
        for workflow_id in workflow_ids:
            options: EnqueueOptions = {
                "workflow_name": FIVE,
                "queue_name": TASK_QUEUE,
                "workflow_id": workflow_id,
                "workflow_id_reuse_policy": "reject",
            }
            self._client.enqueue(options)

    def check(self, workflow_ids: Sequence[str]) -> float:
        """Wait for the last result to be recorded, then check each.

        The moment is when this process saw it, at most some milliseconds late: on SQLite, with a Python before 3.12,
        DBOS records it in whole seconds only.
        """
        while self._client.list_workflows(status=_UNFINISHED, load_input=False, load_output=False, limit=1):
            time.sleep(_LOOK_AGAIN_SECONDS)
        last_closed_at = time.time()
        outcomes = {
            workflow.workflow_id: (workflow.status, workflow.output) for workflow in self._client.list_workflows()
        }
        if set(outcomes) != set(workflow_ids):
            raise WrongOutcome(f"{len(outcomes)} workflows exist, {len(workflow_ids)} were started")
        for workflow_id, outcome in outcomes.items():
            if outcome != ("SUCCESS", RUN_OUTPUT):
                raise WrongOutcome(f"{workflow_id} is {outcome}")
        for workflow_id in (workflow_ids[0], workflow_ids[-1]):
            steps = [(step["function_name"], step["output"]) for step in self._client.list_workflow_steps(workflow_id)]
            if steps != [(ACTIVITY_TYPE, output) for output in RUN_OUTPUT]:
                raise WrongOutcome(f"{workflow_id} has the steps {steps}, not {STEP_COUNT}")
        return last_closed_at


@contextmanager
def connect(options: StarterOptions) -> Iterator[DbosStarter]:
    """Create the queue, then enqueue on it. The schema must exist."""
    client = DBOSClient(system_database_url=options.url, application_name=APPLICATION, retry_connection_errors=False)
    try:
        client.register_queue(TASK_QUEUE, worker_concurrency=1, polling_interval_sec=options.polling_seconds)
        yield DbosStarter(client)
    finally:
        client.destroy()


if __name__ == "__main__":
    run_starter(connect, "Starter of the benchmark on DBOS.")
