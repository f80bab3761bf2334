"""Work that another process made: told by LISTEN and NOTIFY on PostgreSQL, found by the interval probe elsewhere.

Two runtimes stand for two processes here. The second one hears nothing from inside this process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import pytest
from django.db import connection, transaction

from durable.claims import wanted_by
from durable.sql.pool import Work
from durable.states import TaskKind
from durable.wakeups import remote
from durable.wakeups.hub import Waiter
from durable.wakeups.remote import CHANNEL, is_available
from durable.wakeups.runtime import Runtime
from tests import factories as make

pytestmark = pytest.mark.usefixtures("database")

SECONDS = 10


@pytest.fixture(autouse=True)
def _settings(override_durable: Callable[..., None]) -> None:
    # Where hints arrive the probe is switched off, so that it cannot help; elsewhere it is all there is.
    override_durable(PROBE_INTERVAL_SECONDS=600 if is_available() else 0.05)


@asynccontextmanager
async def two_processes() -> AsyncIterator[tuple[Runtime, Runtime]]:
    """One that makes work, and one that serves polls and is deaf to this process's own hints."""
    maker, server = Runtime(), Runtime()
    maker.start()
    server.start()
    server._unsubscribe()
    server._unsubscribe = None
    try:
        for runtime in (maker, server):
            if runtime.remote is not None:
                await until(lambda runtime=runtime: runtime.remote.is_connected)
        yield maker, server
    finally:
        await maker.stop()
        await server.stop()


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def park(runtime: Runtime, count: int = 1) -> list[tuple[Waiter, asyncio.Task[bool]]]:
    """Polls of `w-1` that wait in this process."""
    worker = await runtime.pool.run(Work.READ, _worker)
    request = make.poll_request(TaskKind.WORKFLOW)
    parked = []
    for _ in range(count):
        waiter = runtime.hub.enter(request.queue_key, worker_id="w-1", deadline=time.monotonic() + 60)
        runtime.hub.wait_for(waiter, wanted_by(request, worker))
        parked.append((waiter, asyncio.ensure_future(runtime.hub.park(waiter))))
    await asyncio.sleep(0)
    return parked


def _worker() -> Any:
    from durable.models import WorkerRegistration

    return WorkerRegistration.objects.get()


async def lease_when_woken(runtime: Runtime, waiter: Waiter, parking: asyncio.Task[bool]) -> str:
    """What a poll does once it is woken."""
    async with asyncio.timeout(SECONDS):
        assert await parking is True
    lease = await runtime.pool.run(Work.WRITE, make.lease_workflow)
    runtime.hub.leave(waiter, has_leased=True)
    return str(lease.body["run_id"])


def test_hint_of_one_process_wakes_a_poll_of_another() -> None:
    make.register()

    async def scenario() -> None:
        async with two_processes() as (maker, server):
            ((waiter, parking),) = await park(server)

            started = await maker.pool.run(Work.WRITE, make.start)

            assert await lease_when_woken(server, waiter, parking) == started.run.id

    run(scenario())


def test_burst_of_work_wakes_as_many_polls_of_another_process_as_there_is_work() -> None:
    make.register()

    async def scenario() -> None:
        async with two_processes() as (maker, server):
            parked = await park(server, 8)

            runs = await maker.pool.run(Work.WRITE, start_eight)
            leased = await asyncio.gather(*(lease_when_woken(server, *one) for one in parked))

            assert set(leased) == runs

    run(scenario())


def start_eight() -> set[str]:
    """Eight hints for one queue in one moment: they travel as one notification."""
    with transaction.atomic():
        return {make.start().run.id for _ in range(8)}


def test_process_is_not_woken_again_by_its_own_notification() -> None:
    make.register()

    async def scenario() -> None:
        async with two_processes() as (maker, server):
            ((waiter, parking),) = await park(maker)
            elsewhere = await park(server)
            await maker.pool.run(Work.WRITE, make.start)
            await lease_when_woken(maker, waiter, parking)
            (again,) = await park(maker)
            if is_available():
                # The notification has gone round: the other process heard it.
                await until(lambda: elsewhere[0][1].done())

            assert not again[1].done()

    run(scenario())


# -- when the connection breaks; only PostgreSQL has one ---------------------------------------------------------------


def end_connections(query: str) -> int:
    """Kill this database's connections whose last statement looks like this, as a failing network would."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE %s",
            [query],
        )
        return int(cursor.fetchone()[0])


def test_listener_that_reconnects_wakes_everybody_for_what_it_did_not_hear() -> None:
    make.register()
    reconnecting = mock.patch.object(remote, "RECONNECT_SECONDS", (0.05,))

    async def scenario() -> None:
        async with two_processes() as (_, server):
            parked = await park(server, 3)
            if server.remote is None:
                # Nothing listens here, so nothing is missed: the probe would find whatever there is.
                return
            assert await server.pool.run(Work.READ, end_connections, f"LISTEN {CHANNEL}") == 2

            async with asyncio.timeout(SECONDS):
                assert await asyncio.gather(*(parking for _, parking in parked)) == [True] * 3
            await until(lambda: server.remote.is_connected)

    with reconnecting:
        run(scenario())


def test_sender_that_reconnects_sends_what_the_broken_connection_kept_back() -> None:
    make.register()
    reconnecting = mock.patch.object(remote, "RECONNECT_SECONDS", (0.05,))

    async def scenario() -> None:
        async with two_processes() as (maker, server):
            (first,) = await park(server)
            await maker.pool.run(Work.WRITE, make.start)
            await lease_when_woken(server, *first)
            if maker.remote is not None:
                assert await maker.pool.run(Work.READ, end_connections, "SELECT pg_notify%") >= 1
            (second,) = await park(server)

            started = await maker.pool.run(Work.WRITE, make.start)

            assert await lease_when_woken(server, *second) == started.run.id

    with reconnecting:
        run(scenario())


def test_nothing_is_left_running_when_a_process_stops_in_the_middle_of_its_self_test() -> None:
    begun: list[object] = []

    async def slow(*message: object) -> None:
        begun.append(message)
        try:
            await asyncio.sleep(60)
        finally:
            # Its connection takes a moment to close.
            await asyncio.sleep(0.02)

    async def scenario() -> None:
        if not is_available():
            return
        listening = remote.RemoteHints(on_hint=lambda key: None, on_gap=lambda: None)
        listening.start()
        await until(lambda: begun)
        await listening.stop()

        assert asyncio.all_tasks() == {asyncio.current_task()}

    with mock.patch.object(remote.RemoteHints, "_notify", slow):
        run(scenario())


def test_notice_that_is_no_hint_does_not_end_the_listening() -> None:
    make.register()

    def disturb() -> None:
        with connection.cursor() as cursor:
            for text in ("", "not json", "7", "[]", "{}", '["somebody"]'):
                cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, text])

    async def scenario() -> None:
        async with two_processes() as (maker, server):
            ((waiter, parking),) = await park(server)
            if is_available():
                await maker.pool.run(Work.WRITE, disturb)

            started = await maker.pool.run(Work.WRITE, make.start)

            assert await lease_when_woken(server, waiter, parking) == started.run.id

    run(scenario())
