"""It sleeps, records side effects and remembers which version of a change a run goes by."""

from __future__ import annotations

from typing import Any

from durable_workflow import workflow

from tests import factories as make
from tests.sdk.session import SdkSession
from tests.sdk.workflows import Steps, step

calls: list[str] = []


def flip() -> str:
    calls.append("flipped")
    return "heads"


@workflow.defn(name="sleeper")
class Sleeper:
    def run(self, ctx: workflow.WorkflowContext, seconds: int) -> Steps:
        yield ctx.sleep(seconds)
        return "awake"


@workflow.defn(name="list-with-timer")
class ListWithTimer:
    def run(self, ctx: workflow.WorkflowContext) -> Steps:
        results = yield [ctx.schedule_activity("step", [4]), [ctx.start_timer(1), ctx.start_timer(0)]]
        again = yield ctx.schedule_activity("step", [5])
        return [results[0], again]


@workflow.defn(name="recorder")
class Recorder:
    """The step in between makes a second task, in which the recorded values must come back from history."""

    def run(self, ctx: workflow.WorkflowContext) -> Steps:
        side = yield ctx.side_effect(flip)
        version = yield ctx.get_version("fmt", 1, 2)
        is_patched = yield ctx.patched("new-way")
        number = yield ctx.schedule_activity("step", [3])
        return [side, version, is_patched, number]


def test_wakes_up_after_its_timer(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[Sleeper], activities=[]):
        handle = sdk.start("sleeper", 1)
        result = sdk.result(handle)

    assert result == "awake"
    assert make.event_types(handle.run_id)[2:] == ["TimerScheduled", "TimerFired", "WorkflowCompleted"]


def test_wakes_up_after_no_time_at_all(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[Sleeper], activities=[]):
        result: Any = sdk.result(sdk.start("sleeper", 0))

    assert result == "awake"


def test_waits_for_a_list_of_activities_and_timers(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[ListWithTimer], activities=[step]):
        handle = sdk.start("list-with-timer")
        result = sdk.result(handle)

    assert result == [40, 50]
    assert make.event_types(handle.run_id).count("TimerFired") == 2


def test_gets_recorded_values_back_from_history(sdk: SdkSession) -> None:
    calls.clear()
    with sdk.worker(workflows=[Recorder], activities=[step]):
        handle = sdk.start("recorder")
        result = sdk.result(handle)

    assert result == ["heads", 2, True, 30]
    assert calls == ["flipped"]
    assert make.event_types(handle.run_id)[2:5] == [
        "SideEffectRecorded",
        "VersionMarkerRecorded",
        "VersionMarkerRecorded",
    ]
