"""The workload on Temporal's Python SDK, as its documentation says, with one activity at a time in each process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from benchmarks.worker_process import WorkerOptions, report, run_worker
    from benchmarks.workload import ACTIVITY_TYPE, FIVE, STEP_COUNT, STEPS


@workflow.defn(name=FIVE)
class Five:
    @workflow.run
    async def run(self) -> list[int]:
        results = []
        for step in STEPS:
            results.append(
                await workflow.execute_activity(
                    ACTIVITY_TYPE, step, result_type=int, start_to_close_timeout=timedelta(seconds=30)
                )
            )
        return results


def step_activity(seconds: float) -> Callable[[int], Awaitable[int]]:
    """The activity, sleeping for this long. The last step of a workflow is reported: what follows is one more task."""

    @activity.defn(name=ACTIVITY_TYPE)
    async def run_step(step: int) -> int:
        await asyncio.sleep(seconds)
        if step == STEP_COUNT:
            workflow_id = activity.info().workflow_id
            assert workflow_id is not None
            report("closed", workflow_id=workflow_id)
        return 10 * step

    return run_step


async def work(options: WorkerOptions, stop: asyncio.Event) -> None:
    client = await Client.connect(options.url)
    async with Worker(
        client,
        task_queue=options.task_queue,
        identity=options.worker_id,
        workflows=[Five],
        activities=[step_activity(options.activity_seconds)],
        max_concurrent_activities=1,
    ):
        report("ready")
        await stop.wait()


if __name__ == "__main__":
    run_worker(work, "Worker of the benchmark on Temporal.")
