"""It runs what the published SDK's own documentation begins with."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any
from uuid import uuid4

import pytest
from durable_workflow import Client, Worker, activity, workflow

from durable.models import ActivityAttempt, Run, Task, WorkerIncarnation, WorkerRegistration
from tests.sdk.recording import recorded_requests
from tests.sdk.session import SdkSession, wait_until
from tests.sdk.workflows import FIVE_RESULTS, Five, step


@activity.defn(name="greet")
def greet(name: str) -> str:
    return f"hello, {name}"


@workflow.defn(name="greeter")
class GreeterWorkflow:
    def run(self, ctx: workflow.WorkflowContext, name: str) -> Generator[Any, Any, str]:
        result = yield ctx.schedule_activity("greet", [name])
        return result


async def quickstart(url: str, token: str) -> Any:
    """The README's program, but for the address and the token."""
    workflow_id = f"greet-{uuid4().hex}"
    async with Client(url, token=token, namespace="default") as client:
        worker = Worker(client, task_queue="python-workers", workflows=[GreeterWorkflow], activities=[greet])
        handle = await client.start_workflow(
            workflow_type="greeter", workflow_id=workflow_id, task_queue="python-workers", input=["world"]
        )
        await worker.run_until(workflow_id=workflow_id, timeout=30.0)
        return await client.get_result(handle)


def test_runs_the_readme_quickstart(sdk: SdkSession) -> None:
    assert asyncio.run(quickstart(sdk.url, sdk.token)) == "hello, world"


def test_serves_a_client_that_speaks_protocol_1_19(sdk: SdkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DURABLE_WORKFLOW_WORKER_PROTOCOL_VERSION", "1.19")

    result = asyncio.run(quickstart(sdk.url, sdk.token))

    spoken = {task.claim_snapshot["protocol_version"] for task in Task.objects.all()}
    assert (result, spoken) == ("hello, world", {"1.19"})


def test_runs_five_activities_in_a_row(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[Five], activities=[step]):
        handle = sdk.start("five")

        assert sdk.result(handle) == FIVE_RESULTS


def test_runs_five_activities_in_a_row_on_two_workers(sdk: SdkSession) -> None:
    one_at_a_time = {"max_concurrent_workflow_tasks": 1, "max_concurrent_activity_tasks": 1}
    with (
        sdk.worker(workflows=[Five], activities=[step], worker_id="w-1", **one_at_a_time),
        sdk.worker(workflows=[Five], activities=[step], worker_id="w-2", **one_at_a_time),
    ):
        handles = [sdk.start("five") for _ in range(4)]
        results = [sdk.result(handle) for handle in handles]

    assert results == [FIVE_RESULTS] * 4
    assert set(ActivityAttempt.objects.values_list("lease_owner", flat=True)) == {"w-1", "w-2"}


def test_answers_a_start_before_any_worker_exists(sdk: SdkSession) -> None:
    handle = sdk.start("five")

    with sdk.worker(workflows=[Five], activities=[step]):
        assert sdk.result(handle) == FIVE_RESULTS


def test_sees_the_requests_that_the_protocol_describes(sdk: SdkSession) -> None:
    """docs/protocol/worker-protocol.md 16.1, with one lease renewal before each activity."""

    async def main() -> None:
        async with Client(sdk.url, token=sdk.token) as client:
            worker = Worker(client, task_queue="python-workers", workflows=[Five], activities=[step])
            handle = await client.start_workflow(
                workflow_type="five", workflow_id="five-1", task_queue="python-workers", input=[]
            )
            await worker.run_until(workflow_id="five-1", timeout=30.0)
            await client.get_result(handle)

    with recorded_requests() as sent:
        asyncio.run(main())

    discovery, describe = "GET /cluster/info", "GET /workflows/*"
    workflow_task = [describe, "POST /worker/workflow-tasks/poll", "POST /worker/workflow-tasks/*/complete"]
    activity_task = [
        describe, "POST /worker/activity-tasks/poll", "POST /worker/activity-tasks/*/renew-lease",
        "POST /worker/activity-tasks/*/complete",
    ]  # fmt: skip
    assert [request.route for request in sent] == [
        discovery, "POST /workflows", discovery, "POST /worker/register",
        *(workflow_task + activity_task) * 5,
        *workflow_task,
        describe, "POST /worker/registrations/*/deregister", describe, "GET /workflows/*/runs/*/history",
    ]  # fmt: skip
    assert {request.status for request in sent} == {200, 201}


# -- a worker that is told to stop -------------------------------------------------------------------------------------


def test_forgets_a_worker_that_stops(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[Five], activities=[step], worker_id="w-1"):
        wait_until(WorkerRegistration.objects.filter(worker_id="w-1").exists)

    assert not WorkerRegistration.objects.exists()
    assert WorkerIncarnation.objects.get(worker_id="w-1").status == "deregistered"


def test_lets_a_stopping_worker_finish_its_activity(sdk: SdkSession) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    @activity.defn(name="greet")
    async def slow_greet(name: str) -> str:
        began.set()
        await may_end.wait()
        return greet(name)

    with sdk.worker(workflows=[GreeterWorkflow], activities=[slow_greet]) as stopping:
        handle = sdk.start("greeter", "world")
        sdk.run(began.wait())
        stopped = sdk.begin(stopping.stop())
        sdk.call(may_end.set)
        stopped.result(20)
    with sdk.worker(workflows=[GreeterWorkflow]):
        result = sdk.result(handle)

    assert result == "hello, world"
    assert Run.objects.get(workflow_id=handle.workflow_id).status == "completed"
