"""Work reaches a poll that waits for it: at once from this process, by notice or by probing from others."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from durable.wakeups.hints import QueueKey
from durable.wakeups.remote import RemoteHints
from tests import factories as make
from tests.client import ApiClient
from tests.parking import park_polls, wait_until
from tests.server import ServerProcess

# An idle machine takes 3 ms; the bound is what a busy one may take.
IN_PROCESS_SECONDS = 0.5
NEVER = 86_400


def make_ready(kind: str) -> None:
    """One more task of a kind; of the other one nothing that is ready stays."""
    make.start()
    if kind == "activity":
        make.complete(make.lease_workflow("w-0"), make.schedule())


@pytest.fixture(autouse=True)
def _workers(database: None) -> None:
    make.register()
    make.register("w-0")


@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_hands_work_of_this_process_to_a_parked_poll_at_once(api: ApiClient, override_durable: Any, kind: str) -> None:
    override_durable(PROBE_INTERVAL_SECONDS=NEVER)
    took = []

    for _ in range(3):
        (waiting,) = park_polls(api, 1, kind)
        began = time.monotonic()
        make_ready(kind)
        assert waiting.result(10).body["poll_status"] == "leased"
        took.append(time.monotonic() - began)

    print(f"{kind} task in the poller's hands after {min(took) * 1000:.1f} ms, transaction included")
    assert min(took) < IN_PROCESS_SECONDS


def test_notices_work_that_another_process_commits(api: ApiClient, server: ServerProcess) -> None:
    waiting = park_polls(api, 3)

    body = {"workflow_type": "five", "workflow_id": "wf-1", "task_queue": make.QUEUE}
    status, _ = server.call("POST", "/api/workflows", body)

    assert status == 201
    wait_until(lambda: any(one.done() for one in waiting))
    leased = [one.result() for one in waiting if one.done()]
    assert [answer.body["task"]["workflow_id"] for answer in leased] == ["wf-1"]
    for one in waiting:
        one.cancel()


def test_sends_one_notice_for_a_burst_and_one_for_what_came_after_it() -> None:
    sent: list[str] = []

    async def burst() -> None:
        remote = RemoteHints(on_hint=None, on_gap=None)
        sending = asyncio.create_task(remote._send(FakeLink(sent)))
        for _ in range(100):
            remote.send(QueueKey("default", make.QUEUE, "workflow"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        remote.send(QueueKey("default", make.QUEUE, "workflow"))
        while len(sent) < 2:
            await asyncio.sleep(0.001)
        sending.cancel()

    asyncio.run(asyncio.wait_for(burst(), 10))

    assert [json.loads(notice)[1:] for notice in sent] == [["default", make.QUEUE, "workflow"]] * 2


class FakeLink:
    """A connection that only remembers what it is asked to notify."""

    def __init__(self, sent: list[str]) -> None:
        self._sent = sent

    async def execute(self, sql: str, parameters: tuple[str, str]) -> None:
        assert sql == "SELECT pg_notify(%s, %s)"
        self._sent.append(parameters[1])
