"""Threads with connections of their own, and gates at named points: no test sleeps in the hope of an interleaving."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

from django.db import connection, transaction

from durable import metrics
from durable.models import Run
from durable.sql import locking

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


@contextmanager
def fails_once(target: Any, name: str) -> Iterator[None]:
    """The first call of `target.name` raises a fault that nobody foresaw."""
    original = getattr(target, name)
    first = threading.Lock()

    def call(*args: Any, **kwargs: Any) -> Any:
        if first.acquire(blocking=False):
            raise RuntimeError(f"{name} fails once")
        return original(*args, **kwargs)

    with mock.patch.object(target, name, call):
        yield


# -- locks -------------------------------------------------------------------------------------------------------------


def has_row_locks() -> bool:
    """SQLite locks the whole file for writing: there is one writer, and nothing can happen beside it."""
    return connection.vendor != "sqlite"


def wait_until_blocked(count: int = 1) -> None:
    """Return once this many connections of the database wait for a lock. On SQLite whoever came second waits anyway."""
    if has_row_locks():
        look = _blocked_on_postgresql if connection.vendor == "postgresql" else _blocked_on_mariadb
        eventually(lambda: look() >= count, f"{count} connections wait for a lock", every=0.01)


def _blocked_on_postgresql() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return int(cursor.fetchone()[0])


def _blocked_on_mariadb() -> int:
    """From InnoDB's report: the table innodb_trx is renewed only when nobody has read it for a tenth of a second."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = DATABASE()")
        ours = {int(row[0]) for row in cursor.fetchall()}
        cursor.execute("SHOW ENGINE INNODB STATUS")
        report = str(cursor.fetchone()[2])
    waiting = [part for part in report.split("---TRANSACTION")[1:] if "\nLOCK WAIT" in part]
    threads = [found for part in waiting if (found := re.search(r"(?:MariaDB|MySQL) thread id (\d+)", part))]
    return sum(int(found[1]) in ours for found in threads)


def eventually(condition: Callable[[], object], what: str, *, every: float = 0.002, within: float = PATIENCE) -> None:
    """Wait for a condition; what does not become true in time fails the test."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        time.sleep(every)


@contextmanager
def held_run(run_id: str) -> Iterator[Gate]:
    """Another connection holds the run's lock until the gate is opened, or the block ends."""
    gate = Gate()

    def hold() -> None:
        with transaction.atomic():
            assert locking.lock_run(run_id) is not None
            gate.stop_here()

    holder = in_thread(hold)
    gate.wait_until_reached()
    try:
        yield gate
    finally:
        gate.open()
        holder.result(PATIENCE)


@contextmanager
def held_by_reader(run_id: str) -> Iterator[None]:
    """A thread keeps a read transaction open that has seen the run: what can be held beside a writer on SQLite."""
    gate = Gate()

    def read() -> None:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN DEFERRED")
            cursor.execute(f"SELECT status FROM {Run._meta.db_table} WHERE id = %s", [run_id])
            assert cursor.fetchone() is not None
            gate.stop_here()
            cursor.execute("ROLLBACK")

    reader = in_thread(read)
    gate.wait_until_reached()
    try:
        yield
    finally:
        gate.open()
        reader.result(PATIENCE)


@contextmanager
def impatient() -> Iterator[None]:
    """This thread waits for no lock: whoever holds one keeps it longer than this connection has patience.

    MariaDB counts whole seconds; with 0 its SKIP LOCKED fails (10.11: error 1180).
    """
    retries = metrics.TRANSACTION_RETRIES._value.get()
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET lock_timeout = '100ms'")
        elif connection.vendor == "mysql":
            cursor.execute("SET innodb_lock_wait_timeout = 1")
    try:
        yield
    finally:
        # A fresh connection has the usual patience again.
        connection.close()
    assert metrics.TRANSACTION_RETRIES._value.get() == retries, "somebody gave up a lock wait and tried again"
