"""Threads with connections of their own, and gates at named points: no test sleeps in the hope of an interleaving."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

from django.db import connection

R = TypeVar("R")
PATIENCE = 20.0


def in_thread(work: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
    """Begin work in a thread with a database connection of its own; `.result()` waits for it."""
    executor = ThreadPoolExecutor(max_workers=1)

    def run() -> R:
        try:
            return work(*args, **kwargs)
        finally:
            connection.close()

    future = executor.submit(run)
    executor.shutdown(wait=False)
    return future


def all_at_once(works: list[Callable[[], R]]) -> list[R | Exception]:
    """Run all of them from a common starting line; exceptions come back as values."""
    barrier = threading.Barrier(len(works))

    def begin(work: Callable[[], R]) -> R | Exception:
        connection.ensure_connection()
        barrier.wait(PATIENCE)
        try:
            return work()
        except Exception as error:
            return error

    futures = [in_thread(begin, work) for work in works]
    return [future.result(60) for future in futures]


class Gate:
    """A point in the code where one thread stops until the test lets it go on."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()

    def wait_until_reached(self) -> None:
        assert self._reached.wait(PATIENCE), "nobody came to the gate"

    def is_reached_within(self, seconds: float) -> bool:
        return self._reached.wait(seconds)

    def open(self) -> None:
        self._opened.set()

    def stop_here(self) -> None:
        self._reached.set()
        assert self._opened.wait(PATIENCE), "the gate stayed shut"


@contextmanager
def gate_before(target: Any, name: str, *, once: bool = True) -> Iterator[Gate]:
    """Stop the first call of `target.name` before it runs (every call with `once=False`)."""
    with _gated(target, name, before=True, once=once) as gate:
        yield gate


@contextmanager
def gate_after(target: Any, name: str, *, once: bool = True) -> Iterator[Gate]:
    """Stop the first call of `target.name` after it ran, before it returns."""
    with _gated(target, name, before=False, once=once) as gate:
        yield gate


@contextmanager
def _gated(target: Any, name: str, *, before: bool, once: bool) -> Iterator[Gate]:
    original = getattr(target, name)
    gate = Gate()
    taken = threading.Lock()

    def call(*args: Any, **kwargs: Any) -> Any:
        stops = not once or taken.acquire(blocking=False)
        if before and stops:
            gate.stop_here()
        outcome = original(*args, **kwargs)
        if not before and stops:
            gate.stop_here()
        return outcome

    with mock.patch.object(target, name, call):
        try:
            yield gate
        finally:
            gate.open()
