"""The workload on DBOS, as its documentation says: a queue, and processes that listen to it.

A workflow runs wholly in the process that took it from the queue, its steps one after another, so that a queue with
`worker_concurrency=1` also means at most one step at a time in each process.
"""

from __future__ import annotations

import asyncio
import time

from dbos import DBOS, DBOSConfig

from benchmarks.peers.dbos_starter import APPLICATION
from benchmarks.worker_process import WorkerOptions, report, run_worker
from benchmarks.workload import ACTIVITY_TYPE, FIVE, STEPS


def define_five(step_seconds: float) -> None:
    """Register the workflow; its steps sleep for this long."""

    @DBOS.step(name=ACTIVITY_TYPE)
    def run_step(step: int) -> int:
        time.sleep(step_seconds)
        return 10 * step

    @DBOS.workflow(name=FIVE)
    def five() -> list[int]:
        results = [run_step(step) for step in STEPS]
        assert DBOS.workflow_id is not None
        report("closed", workflow_id=DBOS.workflow_id)
        return results


async def work(options: WorkerOptions, stop: asyncio.Event) -> None:
    config: DBOSConfig = {
        "name": APPLICATION,
        "system_database_url": options.url,
        "executor_id": options.worker_id,
    }
    DBOS(config=config)
    define_five(options.activity_seconds)
    DBOS.listen_queues([options.task_queue])
    await asyncio.to_thread(DBOS.launch)
    report("ready")
    await stop.wait()
    await asyncio.to_thread(DBOS.destroy)


if __name__ == "__main__":
    run_worker(work, "Worker of the benchmark on DBOS.")
