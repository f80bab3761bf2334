"""It records activities that ran inside the workflow task: retries, heartbeats, failures."""

from __future__ import annotations

import asyncio
from typing import Any

from durable_workflow import ActivityFailed, activity, workflow

from durable.models import ActivityAttempt, Task
from durable.states import TaskKind
from tests import factories as make
from tests.sdk.session import SdkSession
from tests.sdk.workflows import FIVE_RESULTS, Steps, step


@workflow.defn(name="locals")
class Locals:
    def run(self, ctx: workflow.WorkflowContext) -> Steps:
        results = []
        for number in range(1, 6):
            results.append((yield ctx.local_activity("step", [number])))
        return results


@workflow.defn(name="local-then-remote")
class LocalThenRemote:
    """The local result must come back from history when the remote one wakes the workflow."""

    def run(self, ctx: workflow.WorkflowContext) -> Steps:
        looked_up = yield ctx.local_activity("look-up", [])
        charged = yield ctx.schedule_activity("step", [4])
        return [looked_up, charged]


@workflow.defn(name="local-or-why-not")
class LocalOrWhyNot:
    def run(self, ctx: workflow.WorkflowContext, options: dict[str, Any]) -> Steps:
        try:
            return (yield ctx.local_activity("look-up", [], **options))
        except ActivityFailed as failure:
            # A step of its own shows that the failure replays as it was raised.
            yield ctx.schedule_activity("step", [1])
            return {"message": str(failure), "type": failure.exception_type}


def test_records_five_in_one_workflow_task(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[Locals], activities=[step]):
        handle = sdk.start("locals")
        result = sdk.result(handle)

    assert result == FIVE_RESULTS
    assert Task.objects.filter(run_id=handle.run_id).count() == 1
    assert make.event_types(handle.run_id)[2:] == [
        *["ActivityScheduled", "ActivityStarted", "ActivityCompleted"] * 5,
        "WorkflowCompleted",
    ]


def test_does_not_run_a_recorded_one_again(sdk: SdkSession) -> None:
    calls: list[str] = []

    @activity.defn(name="look-up")
    def look_up() -> str:
        calls.append("called")
        return "found"

    with sdk.worker(workflows=[LocalThenRemote], activities=[look_up, step]):
        handle = sdk.start("local-then-remote")
        result = sdk.result(handle)

    assert result == ["found", 40]
    assert calls == ["called"]
    assert Task.objects.filter(run_id=handle.run_id, kind=TaskKind.WORKFLOW).count() == 2


def test_records_retries_and_heartbeats(sdk: SdkSession) -> None:
    tries: list[int] = []

    @activity.defn(name="look-up")
    async def look_up() -> str:
        tries.append(1)
        await activity.context().heartbeat({"try": len(tries)})
        if len(tries) == 1:
            raise OSError("busy")
        return "found"

    with sdk.worker(workflows=[LocalOrWhyNot], activities=[look_up]):
        handle = sdk.start("local-or-why-not", {"retry_policy": {"max_attempts": 2, "backoff_seconds": [0]}})
        result = sdk.result(handle)

    assert result == "found"
    assert make.event_types(handle.run_id)[2:] == [
        "ActivityScheduled",
        "ActivityStarted", "ActivityHeartbeatRecorded", "ActivityRetryScheduled",
        "ActivityStarted", "ActivityHeartbeatRecorded", "ActivityCompleted",
        "WorkflowCompleted",
    ]  # fmt: skip
    assert list(ActivityAttempt.objects.order_by("attempt_number").values_list("status", flat=True)) == [
        "failed",
        "completed",
    ]


def test_replays_a_failure_as_it_was_raised(sdk: SdkSession) -> None:
    @activity.defn(name="look-up")
    def look_up() -> None:
        raise OSError("gone")

    with sdk.worker(workflows=[LocalOrWhyNot], activities=[look_up, step]):
        handle = sdk.start("local-or-why-not", {})
        result = sdk.result(handle)

    assert result == {"message": "gone", "type": "OSError"}


def test_records_a_timed_out_one(sdk: SdkSession) -> None:
    @activity.defn(name="look-up")
    async def look_up() -> None:
        await asyncio.sleep(1.1)
        await activity.context().heartbeat()

    with sdk.worker(workflows=[LocalOrWhyNot], activities=[look_up, step]):
        handle = sdk.start("local-or-why-not", {"start_to_close_timeout": 1})
        result = sdk.result(handle)

    assert result["type"] == "_LocalActivityTimedOut"
    assert "ActivityTimedOut" in make.event_types(handle.run_id)
