"""It runs lists of activities, nested ones too, and shares them among workers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from durable_workflow import ActivityFailed, WorkflowFailed, activity, workflow

from durable.models import ActivityAttempt, HistoryEvent, Task
from durable.states import TaskKind
from tests import factories as make
from tests.sdk.session import SdkSession
from tests.sdk.workflows import Steps, step


@workflow.defn(name="all-of-ten")
class AllOfTen:
    def run(self, ctx: workflow.WorkflowContext, name: str) -> Steps:
        return (yield [ctx.schedule_activity(name, [number]) for number in range(1, 11)])


@workflow.defn(name="nested")
class Nested:
    """Lists in lists, between single steps."""

    def run(self, ctx: workflow.WorkflowContext) -> Steps:
        first = yield ctx.schedule_activity("step", [1])
        pair, single, deep = yield [
            [ctx.schedule_activity("step", [2]), ctx.schedule_activity("step", [3])],
            ctx.schedule_activity("step", [4]),
            [[ctx.schedule_activity("step", [5])], ctx.schedule_activity("step", [6])],
        ]
        last = yield ctx.schedule_activity("step", [7])
        return [first, pair, single, deep, last]


def completed_steps(run_id: str | None) -> list[int]:
    """Step numbers in the order in which their completions were recorded."""
    found = HistoryEvent.objects.filter(run_id=run_id, event_type="ActivityCompleted").order_by("sequence")
    return [event.payload["sequence"] for event in found]


def test_returns_a_list_in_order_though_it_finishes_in_reverse(sdk: SdkSession) -> None:
    gates = {number: asyncio.Event() for number in range(1, 11)}

    @activity.defn(name="after-the-next")
    async def after_the_next(number: int) -> int:
        if number < 10:
            await gates[number + 1].wait()
        gates[number].set()
        return number * 10

    with sdk.worker(workflows=[AllOfTen], activities=[after_the_next]):
        handle = sdk.start("all-of-ten", "after-the-next")
        result = sdk.result(handle)

    assert result == [number * 10 for number in range(1, 11)]
    assert completed_steps(handle.run_id) != list(range(1, 11))
    assert sorted(completed_steps(handle.run_id)) == list(range(1, 11))


def test_wakes_the_workflow_once_when_the_whole_list_is_done(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[AllOfTen], activities=[step]):
        handle = sdk.start("all-of-ten", "step")
        sdk.result(handle)

    assert Task.objects.filter(run_id=handle.run_id, kind=TaskKind.WORKFLOW).count() == 2
    assert make.event_types(handle.run_id).count("ActivityScheduled") == 10


def test_shares_a_list_among_workers(sdk: SdkSession) -> None:
    """Two activities that wait for each other need two workers when each takes one activity at a time."""
    arrived: list[int] = []
    both = asyncio.Event()

    @activity.defn(name="meet")
    async def meet(number: int) -> int:
        arrived.append(number)
        if len(arrived) == 2:
            both.set()
        await both.wait()
        return number

    with (
        sdk.worker(workflows=[AllOfTen], activities=[meet], max_concurrent_activity_tasks=1, worker_id="w-1"),
        sdk.worker(workflows=[AllOfTen], activities=[meet], max_concurrent_activity_tasks=1, worker_id="w-2"),
    ):
        handle = sdk.start("all-of-ten", "meet")
        result = sdk.result(handle)

    assert result == list(range(1, 11))
    assert set(ActivityAttempt.objects.values_list("lease_owner", flat=True)) == {"w-1", "w-2"}


def test_runs_nested_lists(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[Nested], activities=[step]):
        handle = sdk.start("nested")

        assert sdk.result(handle) == [10, [20, 30], 40, [[50], 60], 70]


def test_hands_on_the_failure_of_a_member_after_all_have_ended(sdk: SdkSession) -> None:
    ended: list[int] = []

    @activity.defn(name="odd-fails")
    def odd_fails(number: int) -> int:
        ended.append(number)
        if number % 2:
            raise ValueError(f"{number} is odd")
        return number

    with sdk.worker(workflows=[AllOfTen], activities=[odd_fails]):
        handle = sdk.start("all-of-ten", "odd-fails")
        with pytest.raises(WorkflowFailed, match="1 is odd"):
            sdk.result(handle)

    assert sorted(ended) == list(range(1, 11))
    assert make.event_types(handle.run_id)[-1] == "WorkflowFailed"


def test_goes_on_after_a_failed_list(sdk: SdkSession) -> None:
    @workflow.defn(name="list-or-single")
    class ListOrSingle:
        def run(self, ctx: workflow.WorkflowContext) -> Steps:
            try:
                yield [ctx.schedule_activity("step", [1]), ctx.schedule_activity("fail", [])]
            except ActivityFailed:
                return (yield ctx.schedule_activity("step", [2]))

    @activity.defn(name="fail")
    def fail() -> None:
        raise ValueError("no")

    with sdk.worker(workflows=[ListOrSingle], activities=[step, fail]):
        handle = sdk.start("list-or-single")
        result: Any = sdk.result(handle)

    assert result == 20
