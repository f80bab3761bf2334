"""It writes the histories that the protocol describes, and the published SDK replays every prefix of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from durable_workflow import Replayer, WorkflowHandle, activity, workflow

from tests import factories as make
from tests.sdk.example_histories import check_shape, example
from tests.sdk.session import SdkSession, wait_until
from tests.sdk.workflows import Five, Steps, step

Events = list[dict[str, Any]]

SCHEDULE, FINISH, WAIT = ["ScheduleActivity"], ["CompleteWorkflow"], []


@workflow.defn(name="charge-once")
class ChargeOnce:
    def run(self, ctx: workflow.WorkflowContext) -> Steps:
        policy = {"max_attempts": 3, "backoff_seconds": [1, 2]}
        return (yield ctx.schedule_activity("charge", ["o-1"], retry_policy=policy))


@workflow.defn(name="pair")
class Pair:
    """Two activities at once, the first leaf being step 2."""

    def run(self, ctx: workflow.WorkflowContext) -> Steps:
        yield ctx.local_activity("first", [])
        return (yield [ctx.schedule_activity("p", ["one"]), ctx.schedule_activity("p", ["two"])])


@workflow.defn(name="look-up-once")
class LookUpOnce:
    def run(self, ctx: workflow.WorkflowContext) -> Steps:
        return (yield ctx.local_activity("lookup", [], retry_policy={"max_attempts": 2, "backoff_seconds": [0]}))


class GatewayDown(ConnectionError):
    """A failure with a code, which the SDK reports with it."""

    code = 0


@activity.defn(name="charge")
def charge(order: str) -> str:
    if activity.context().info.attempt_number == 1:
        raise GatewayDown("gateway down")
    return "ok"


@activity.defn(name="first")
def first() -> int:
    return 1


@activity.defn(name="lookup")
def look_up() -> str:
    if activity.context().info.attempt_number == 1:
        raise OSError("busy")
    return "v"


def history_of(sdk: SdkSession, workflow_class: type, *activities: Callable[..., Any]) -> Events:
    """The history of a real run, as the SDK's client reads it."""
    with sdk.worker(workflows=[workflow_class], activities=activities, task_queue="default"):
        name = workflow_class.__workflow_name__  # type: ignore[attr-defined]
        handle = sdk.start(name, workflow_id="order-1", task_queue="default")
        sdk.result(handle)
    return read_history(sdk, handle)


def history_of_pair(sdk: SdkSession) -> Events:
    """The history of a real `pair` whose second member was recorded before its first one ended."""
    two_is_recorded = asyncio.Event()

    @activity.defn(name="p")
    async def member(name: str) -> str:
        if name == "one":
            await two_is_recorded.wait()
        return name

    with sdk.worker(workflows=[Pair], activities=[first, member], task_queue="default"):
        handle = sdk.start("pair", workflow_id="order-1", task_queue="default")
        wait_until(lambda: make.event_types(str(handle.run_id)).count("ActivityCompleted") == 2)
        sdk.call(two_is_recorded.set)
        sdk.result(handle)
    return read_history(sdk, handle)


def read_history(sdk: SdkSession, handle: WorkflowHandle) -> Events:
    history: dict[str, Any] = sdk.run(handle.get_history(page_size=1000))
    return list(history["events"])


def commands_after(events: Events, workflow_class: type) -> list[list[str]]:
    """What the SDK would send next when a claim showed it the first two events, three events, … the whole history."""
    replayer = Replayer(workflows=[workflow_class])
    prefixes = [events[:count] for count in range(2, len(events) + 1)]
    return [[type(command).__name__ for command in replayer.replay(prefix).commands] for prefix in prefixes]


def test_writes_five_sequential_activities(sdk: SdkSession) -> None:
    events = history_of(sdk, Five, step)

    check_shape(events, example("five_activities"))
    assert commands_after(events, Five) == [*[SCHEDULE, WAIT, WAIT] * 5, FINISH, FINISH]


def test_writes_failure_retry_and_success(sdk: SdkSession) -> None:
    events = history_of(sdk, ChargeOnce, charge)

    check_shape(events, example("retry"))
    assert commands_after(events, ChargeOnce) == [SCHEDULE, WAIT, WAIT, WAIT, WAIT, FINISH, FINISH]


def test_writes_two_parallel_activities_that_finish_out_of_order(sdk: SdkSession) -> None:
    """While one member is open, the SDK sends the commands of the whole list again (docs/protocol/history.md 6.2)."""
    events = history_of_pair(sdk)

    check_shape(events, example("parallel"))
    both = SCHEDULE * 2
    after_the_local_activity = commands_after(events, Pair)[3:]
    assert after_the_local_activity == [both, both, both, both, both, both, FINISH, FINISH]


def test_writes_a_local_activity_of_two_attempts(sdk: SdkSession) -> None:
    events = history_of(sdk, LookUpOnce, look_up)

    check_shape(events, example("local_activity"))
    assert commands_after(events, LookUpOnce)[-2:] == [FINISH, FINISH]


# -- the comparison itself ---------------------------------------------------------------------------------------------


def corrupted(name: str) -> Iterator[Events]:
    """The example with one key left out, for each key; with another value, for each key that names no id."""
    for position, event in enumerate(example(name)):
        for key in event["payload"]:
            without = example(name)
            del without[position]["payload"][key]
            yield without
            if not key.endswith("_id"):
                changed = example(name)
                changed[position]["payload"][key] = "something else"
                yield changed


@pytest.mark.parametrize("name", ["five_activities", "retry", "parallel", "local_activity"])
def test_would_notice_a_key_that_is_missing_or_says_something_else(name: str) -> None:
    check_shape(example(name), example(name))

    for events in corrupted(name):
        with pytest.raises((AssertionError, TypeError, ValueError)):
            check_shape(events, example(name))
