"""The database pool of a serving process: a fixed number of threads, each with one connection it keeps.

A request that waits for work holds no thread. SQLite gets exactly one writing thread, so that writers queue here
instead of spinning on the file's lock; its readers are apart. Elsewhere at most half of the threads run operations that
lock runs, so that one held run starves nobody (docs/concurrency.md 7).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from functools import partial
from typing import Any, ParamSpec, TypeVar

from django.db import DEFAULT_DB_ALIAS, Error, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from durable import conf, metrics
from durable.sql.rows import vendor

P = ParamSpec("P")
R = TypeVar("R")


class Work(Enum):
    """What a piece of work does to the database."""

    READ = "read"
    WRITE = "write"
    # Writes, and may wait for a run's lock.
    LOCK_RUN = "lock_run"


class PoolBusyError(Exception):
    """No thread became free in time: the caller answers 503 and nothing has happened."""


def _count_statement(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    metrics.STATEMENTS.inc()
    return execute(sql, params, many, context)


def _prepare_thread(kept: list[BaseDatabaseWrapper]) -> None:
    """Give the thread its connection, which it keeps until the pool closes it."""
    own = connections[DEFAULT_DB_ALIAS]
    own.execute_wrappers.append(_count_statement)
    own.inc_thread_sharing()
    kept.append(own)


def _run_kept(work: Callable[[], R]) -> R:
    try:
        return work()
    except Error:
        drop_broken_connection()
        raise


def drop_broken_connection() -> None:
    """After a database error: a broken connection is replaced for the next piece of work, a working one stays."""
    # One that was never made cannot be asked: MariaDB's would raise an error of its own in place of the first one.
    if connection.connection is not None and not connection.in_atomic_block and not connection.is_usable():
        connection.close()


class DatabasePool:
    """Runs synchronous operations for async views. One per process; belongs to one event loop."""

    def __init__(self, threads: int | None = None) -> None:
        threads = max(2, threads or conf.current().db_threads)
        self.has_single_writer = vendor() == "sqlite"
        writers = 1 if self.has_single_writer else threads
        self._connections: list[BaseDatabaseWrapper] = []
        self._writer = self._executor(writers, "durable-db")
        self._reader = self._executor(threads - 1, "durable-db-read") if self.has_single_writer else self._writer
        self._write_slots = asyncio.Semaphore(writers)
        self._read_slots = asyncio.Semaphore(threads - 1) if self.has_single_writer else self._write_slots
        self._run_slots = asyncio.Semaphore(writers if self.has_single_writer else max(1, threads // 2))

    async def run(self, work: Work, operation: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation in the pool. Raises PoolBusyError after `db_wait_seconds` without a free thread.

        If the caller is cancelled the operation still ends by itself, and only then its thread is free again.
        """
        slots = [self._read_slots if work is Work.READ else self._write_slots]
        if work is Work.LOCK_RUN:
            slots.insert(0, self._run_slots)
        began = time.monotonic()
        await _acquire(slots, conf.current().db_wait_seconds)
        metrics.POOL_WAIT.observe(time.monotonic() - began)
        executor = self._reader if work is Work.READ else self._writer
        try:
            future = executor.submit(_run_kept, partial(operation, *args, **kwargs))
        except BaseException:
            _release(slots)
            raise
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[R] = loop.create_future()
        future.add_done_callback(lambda done: _call_if_open(loop, _settle, answer, done, slots))
        try:
            return await answer
        except asyncio.CancelledError:
            # What has not begun yet never will.
            future.cancel()
            raise

    def has_free_thread(self) -> bool:
        """Whether a write could begin at once; for work that is better dropped than queued."""
        return not self._write_slots.locked()

    async def close(self) -> None:
        """Let running operations end and close the connections."""
        for executor in {self._writer, self._reader}:
            await asyncio.to_thread(executor.shutdown, wait=True, cancel_futures=True)
        await asyncio.to_thread(self._close_connections)

    def _close_connections(self) -> None:
        for own in self._connections:
            own.close()

    def _executor(self, threads: int, name: str) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(
            max_workers=threads,
            thread_name_prefix=name,
            initializer=_prepare_thread,
            initargs=(self._connections,),
        )


async def _acquire(slots: list[asyncio.Semaphore], seconds: float) -> None:
    held: list[asyncio.Semaphore] = []
    try:
        for slot in slots:
            if slot.locked():
                async with asyncio.timeout(seconds):
                    await slot.acquire()
            else:
                await slot.acquire()
            held.append(slot)
    except TimeoutError as error:
        _release(held)
        raise PoolBusyError from error
    except BaseException:
        _release(held)
        raise


def _release(slots: list[asyncio.Semaphore]) -> None:
    for slot in slots:
        slot.release()


def _settle(answer: asyncio.Future[R], done: Future[R], slots: list[asyncio.Semaphore]) -> None:
    """Give the thread's place back and pass its outcome on, in one step of the loop; the caller may be gone."""
    _release(slots)
    if answer.done():
        return
    if done.cancelled():
        answer.cancel()
    elif (error := done.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())


def _call_if_open(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback, *args)
