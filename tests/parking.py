"""Polls that wait: begin many, wait until they are really parked, see what the hub knows of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from durable.states import TaskKind
from durable.wakeups.hints import QueueKey
from tests import factories as make
from tests.client import ApiClient, Response

PATIENCE = 20.0


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> float:
    """Wait for a condition; returns how many seconds it took. Fails when it does not come true in time."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "the condition did not come true"
        time.sleep(0.002)
    return time.monotonic() - began


def in_loop(api: ApiClient, work: Callable[[], Any]) -> Any:
    """Call something in the API's event loop, where the hub lives."""

    async def call() -> Any:
        return work()

    return api.wait(call())


def parked_count(api: ApiClient) -> int:
    """How many polls are parked: neither looking nor on their way out."""
    lines = api.runtime.hub._lines
    return int(
        in_loop(api, lambda: sum(waiter.future is not None for line in lines.values() for waiter in line.values()))
    )


def begin_poll(api: ApiClient, kind: str = "workflow", *, seconds: int = 30, **fields: Any) -> Future[Response]:
    """Send a poll that may wait; `.cancel()` is a client that leaves."""
    body = {"worker_id": "w-1", "task_queue": make.QUEUE, "timeout_seconds": seconds, **fields}
    return api.begin("POST", f"/api/worker/{kind}-tasks/poll", body)


def park_polls(api: ApiClient, count: int, kind: str = "workflow", **fields: Any) -> list[Future[Response]]:
    """Begin polls one by one, so that they stand in line in this order, and wait until all are parked."""
    already = parked_count(api)
    polls = []
    for number in range(count):
        polls.append(begin_poll(api, kind, **fields))
        if count <= 10:
            wait_until(lambda expected=already + number + 1: parked_count(api) == expected)
    wait_until(lambda: parked_count(api) == already + count)
    return polls


def hint(api: ApiClient, kind: str = "workflow", task_queue: str = make.QUEUE) -> None:
    """A hint for a queue, as a commit in this process gives it."""
    key = QueueKey("default", task_queue, TaskKind(kind))
    in_loop(api, lambda: api.runtime.hub.hint(key))
