"""The workload on the published SDK's Worker, as any user would write it.

One workflow task and one activity run at a time in each process. The only additions are two reports to the
benchmark: when the worker is registered, and when it completed a workflow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from durable_workflow import Client, Worker, activity, workflow
from durable_workflow.interceptors import (
    PassthroughWorkerInterceptor,
    WorkflowTaskHandler,
    WorkflowTaskInterceptorContext,
)

from benchmarks.worker_process import WorkerOptions, report, run_worker
from benchmarks.workload import ACTIVITY_TYPE, FIVE, LOCAL, STEPS, JsonObject


@workflow.defn(name=FIVE)
class Five:
    def run(self, ctx: workflow.WorkflowContext) -> Generator[Any, int, list[int]]:
        results = []
        for step in STEPS:
            results.append((yield ctx.schedule_activity(ACTIVITY_TYPE, [step])))
        return results


@workflow.defn(name=LOCAL)
class Local:
    def run(self, ctx: workflow.WorkflowContext) -> Generator[Any, int, list[int]]:
        results = []
        for step in STEPS:
            results.append((yield ctx.local_activity(ACTIVITY_TYPE, [step])))
        return results


def step_activity(seconds: float) -> Callable[[int], Awaitable[int]]:
    """The activity, sleeping for this long."""

    @activity.defn(name=ACTIVITY_TYPE)
    async def run_step(step: int) -> int:
        await asyncio.sleep(seconds)
        return 10 * step

    return run_step


class ReportingClient(Client):
    """Reports the registration, after which the worker polls."""

    async def register_worker(self, **fields: Any) -> Any:
        answer = await super().register_worker(**fields)
        report("ready")
        return answer


class ReportClosings(PassthroughWorkerInterceptor):
    """Reports each workflow whose completion was sent. The check at the end asks the server whether it is true."""

    async def execute_workflow_task(
        self, context: WorkflowTaskInterceptorContext, next: WorkflowTaskHandler
    ) -> list[JsonObject] | None:
        commands = await next(context)
        if commands and commands[-1]["type"] == "complete_workflow":
            report("closed", workflow_id=context.task["workflow_id"])
        return commands


async def work(options: WorkerOptions, stop: asyncio.Event) -> None:
    async with ReportingClient(options.url, token=options.token) as client:
        worker = Worker(
            client,
            task_queue=options.task_queue,
            worker_id=options.worker_id,
            workflows=[Five, Local],
            activities=[step_activity(options.activity_seconds)],
            interceptors=[ReportClosings()],
            max_concurrent_workflow_tasks=1,
            max_concurrent_activity_tasks=1,
            shutdown_timeout=4.0,
        )
        running = asyncio.create_task(worker.run())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([running, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await worker.stop()
        stopped.cancel()
        await running


if __name__ == "__main__":
    run_worker(work, "Worker of the benchmark on the published SDK.")
