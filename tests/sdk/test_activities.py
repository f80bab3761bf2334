"""It runs the activities of a published-SDK workflow: retried, timed out, heartbeating, cancelled, of any content."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from durable_workflow import ActivityCancelled, NonRetryableError, WorkflowCancelled, WorkflowFailed, activity

from durable.models import ActivityAttempt
from tests import factories as make
from tests.sdk.session import SdkSession, wait_until
from tests.sdk.workflows import One, OneOrWhyNot

THREE_TRIES = {"max_attempts": 3, "backoff_seconds": [0, 0]}


class Busy(Exception):
    """What a gateway says that may work the next time."""


def test_runs_synchronous_and_asynchronous_activities(sdk: SdkSession) -> None:
    @activity.defn(name="sync")
    def plain(left: int, right: int) -> int:
        return left + right

    @activity.defn(name="async")
    async def awaiting(left: int, right: int) -> int:
        await asyncio.sleep(0)
        return left * right

    with sdk.worker(workflows=[One], activities=[plain, awaiting]):
        handles = [sdk.start("one", name, [6, 7], {}) for name in ("sync", "async")]

        assert [sdk.result(handle) for handle in handles] == [13, 42]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("Grüße, 世界 🚀 \u0000 \u2028 'quoted' \\u0041", id="unicode"),
        pytest.param({"nested": [None, True, -1.5, {"": []}], "integer": 2**53 - 1}, id="nested"),
        pytest.param("x" * 1_000_000, id="a-megabyte"),
    ],
)
def test_carries_content_unchanged_there_and_back(sdk: SdkSession, content: Any) -> None:
    @activity.defn(name="echo")
    def echo(value: Any) -> Any:
        return value

    with sdk.worker(workflows=[One], activities=[echo]):
        handle = sdk.start("one", "echo", [content], {})

        assert sdk.result(handle) == content


# -- failures ----------------------------------------------------------------------------------------------------------


def test_tries_a_failed_activity_again(sdk: SdkSession) -> None:
    @activity.defn(name="charge")
    def charge() -> int:
        attempt = activity.context().info.attempt_number
        if attempt < 3:
            raise Busy(f"attempt {attempt}")
        return attempt

    with sdk.worker(workflows=[One], activities=[charge]):
        handle = sdk.start("one", "charge", [], {"retry_policy": THREE_TRIES})
        result = sdk.result(handle)

    assert result == 3
    assert make.event_types(handle.run_id)[2:] == [
        "ActivityScheduled",
        "ActivityStarted", "ActivityRetryScheduled",
        "ActivityStarted", "ActivityRetryScheduled",
        "ActivityStarted", "ActivityCompleted",
        "WorkflowCompleted",
    ]  # fmt: skip


def test_tells_the_workflow_why_its_activity_failed_for_good(sdk: SdkSession) -> None:
    @activity.defn(name="charge")
    def charge() -> None:
        raise Busy("every time")

    with sdk.worker(workflows=[OneOrWhyNot], activities=[charge]):
        handle = sdk.start("one-or-why-not", "charge", [], {"retry_policy": THREE_TRIES})
        told = sdk.result(handle)

    assert told == {"message": "every time", "type": "Busy", "category": "activity", "non_retryable": False}
    assert ActivityAttempt.objects.count() == 3


def test_does_not_retry_what_says_it_must_not_be(sdk: SdkSession) -> None:
    @activity.defn(name="charge")
    def charge() -> None:
        raise NonRetryableError("card stolen")

    with sdk.worker(workflows=[OneOrWhyNot], activities=[charge]):
        handle = sdk.start("one-or-why-not", "charge", [], {"retry_policy": THREE_TRIES})
        told = sdk.result(handle)

    assert told["non_retryable"] is True
    assert ActivityAttempt.objects.count() == 1


def test_does_not_retry_a_type_that_the_policy_excludes(sdk: SdkSession) -> None:
    @activity.defn(name="charge")
    def charge() -> None:
        raise Busy("no use")

    policy = {**THREE_TRIES, "non_retryable_error_types": ["Busy"]}
    with sdk.worker(workflows=[OneOrWhyNot], activities=[charge]):
        handle = sdk.start("one-or-why-not", "charge", [], {"retry_policy": policy})
        told = sdk.result(handle)

    assert told["type"] == "Busy"
    assert ActivityAttempt.objects.count() == 1


def test_fails_the_run_with_an_activity_failure_that_nobody_catches(sdk: SdkSession) -> None:
    @activity.defn(name="charge")
    def charge() -> None:
        raise Busy("nobody listens")

    with sdk.worker(workflows=[One], activities=[charge]):
        handle = sdk.start("one", "charge", [], {})

        with pytest.raises(WorkflowFailed, match="nobody listens"):
            sdk.result(handle)


# -- time-outs and heartbeats ------------------------------------------------------------------------------------------


@activity.defn(name="sleep")
async def sleep_for_ever() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"start_to_close_timeout": 1}, "Activity start-to-close time-out.", id="start-to-close"),
        pytest.param({"heartbeat_timeout": 1}, "Activity heartbeat time-out.", id="heartbeat"),
    ],
)
def test_times_out_an_activity(sdk: SdkSession, options: dict[str, int], message: str) -> None:
    with sdk.worker(workflows=[OneOrWhyNot], activities=[sleep_for_ever]):
        handle = sdk.start("one-or-why-not", "sleep", [], options)
        told = sdk.result(handle)

    assert (told["message"], told["category"]) == (message, "timeout")
    assert make.event_types(handle.run_id)[3:5] == ["ActivityStarted", "ActivityTimedOut"]


def test_times_out_an_activity_that_nobody_polls_for(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[OneOrWhyNot]):
        handle = sdk.start("one-or-why-not", "nobody-does-this", [], {"schedule_to_start_timeout": 1})

        assert sdk.result(handle)["message"] == "Activity schedule-to-start time-out."


def test_lets_an_activity_that_heartbeats_outlive_its_heartbeat_timeout(sdk: SdkSession) -> None:
    @activity.defn(name="count")
    async def count() -> str:
        for number in range(6):
            await activity.context().heartbeat({"done": number})
            await asyncio.sleep(0.25)
        return "counted"

    with sdk.worker(workflows=[One], activities=[count]):
        handle = sdk.start("one", "count", [], {"heartbeat_timeout": 1})
        result = sdk.result(handle)

    attempt = ActivityAttempt.objects.get()
    assert (result, attempt.progress) == ("counted", {"details": {"done": 5}})
    assert "ActivityHeartbeatRecorded" in make.event_types(handle.run_id)


def test_tells_a_heartbeating_activity_that_its_workflow_was_cancelled(sdk: SdkSession) -> None:
    began, stopped = threading.Event(), threading.Event()

    @activity.defn(name="watch")
    async def watch() -> None:
        began.set()
        try:
            while True:
                await activity.context().heartbeat()
                await asyncio.sleep(0.02)
        except ActivityCancelled:
            stopped.set()
            raise

    with sdk.worker(workflows=[One], activities=[watch]):
        handle = sdk.start("one", "watch", [], {})
        wait_until(began.is_set)
        sdk.run(handle.cancel(reason="enough"))
        wait_until(stopped.is_set)
        with pytest.raises(WorkflowCancelled):
            sdk.result(handle)

    assert make.event_types(handle.run_id)[-2:] == ["ActivityCancelled", "WorkflowCancelled"]
