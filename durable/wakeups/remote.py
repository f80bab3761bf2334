"""Hints between processes: PostgreSQL's LISTEN and NOTIFY (docs/concurrency.md 17). Elsewhere the interval probe does.

Both ends have a connection of their own, outside the pool: a listening connection can do nothing else, and a NOTIFY
belongs after the commit in a statement of its own (inside the transaction it cost 40 % of the commits).
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from typing import Any

import structlog
from django.db import connection

from durable import metrics
from durable.sql.rows import vendor
from durable.wakeups.hints import QueueKey

CHANNEL = "durable_wake"
DEBOUNCE_SECONDS = 0.01
RECONNECT_SECONDS = (0.5, 1, 2, 5)
SELF_TEST_SECONDS = 2.0

log = structlog.get_logger("durable.wakeups")


def is_available() -> bool:
    """Whether this database can carry hints between processes."""
    return vendor() == "postgresql"


class RemoteHints:
    """Sends this process's hints and hears the others'. `on_hint` and `on_gap` are called in the event loop."""

    def __init__(self, on_hint: Any, on_gap: Any) -> None:
        self._on_hint = on_hint
        self._on_gap = on_gap
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._parameters = connection.get_connection_params()
        self._pending: set[QueueKey] = set()
        self._wanted = asyncio.Event()
        self._heard_self = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.is_connected = False

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._listen_for_ever()), asyncio.create_task(self._send_for_ever())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def send(self, key: QueueKey) -> None:
        """Tell other processes, at most once per key in ten milliseconds; the last hint of a burst is never dropped."""
        self._pending.add(key)
        self._wanted.set()

    # -- connections ---------------------------------------------------------------------------------------------------

    async def _connect(self) -> Any:
        import psycopg

        wanted = ("dbname", "user", "password", "host", "port", "sslmode", "sslrootcert", "options")
        parameters = {name: value for name, value in self._parameters.items() if name in wanted and value}
        return await psycopg.AsyncConnection.connect(**parameters, autocommit=True)

    async def _for_ever(self, work: Any, what: str) -> None:
        import psycopg

        tries = 0
        while True:
            try:
                async with await self._connect() as link:
                    tries = 0
                    await work(link)
            except (psycopg.Error, OSError) as error:
                log.warning("hint_connection_lost", end=what, error=type(error).__name__)
            await asyncio.sleep(RECONNECT_SECONDS[min(tries, len(RECONNECT_SECONDS) - 1)])
            tries += 1

    async def _listen_for_ever(self) -> None:
        await self._for_ever(self._listen, "listener")

    async def _send_for_ever(self) -> None:
        await self._for_ever(self._send, "sender")

    async def _listen(self, link: Any) -> None:
        await link.execute(f"LISTEN {CHANNEL}")
        test = asyncio.create_task(self._test_self())
        try:
            # Whatever was committed while nobody listened.
            self._on_gap()
            async for notice in link.notifies():
                self._receive(notice.payload)
        finally:
            test.cancel()
            await asyncio.gather(test, return_exceptions=True)
            self.is_connected = False
            metrics.LISTENER_CONNECTED.set(0)

    def _receive(self, payload: str) -> None:
        try:
            sender, *key = json.loads(payload)
        except (ValueError, TypeError):
            # Anybody may notify; what is not a hint of ours must not end the listening.
            return
        if sender == self._name:
            if not key:
                self._heard_self.set()
            return
        if key:
            metrics.WAKEUPS.labels(source="remote").inc()
            self._on_hint(QueueKey(*key))

    async def _test_self(self) -> None:
        """A pooler in transaction mode drops LISTEN without a word: say so once, and go on by probing."""
        self._heard_self.clear()
        async with await self._connect() as link:
            await self._notify(link, json.dumps([self._name]))
        try:
            async with asyncio.timeout(SELF_TEST_SECONDS):
                await self._heard_self.wait()
        except TimeoutError:
            log.error(
                "hints_not_heard",
                advice="LISTEN/NOTIFY does not work on this connection (a pooler in transaction mode?); "
                "work goes on by probing. Point DATABASE_URL at the database itself.",
            )
            return
        self.is_connected = True
        metrics.LISTENER_CONNECTED.set(1)

    async def _send(self, link: Any) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            unsent, self._pending = self._pending, set()
            try:
                while unsent:
                    key = next(iter(unsent))
                    await self._notify(link, json.dumps([self._name, *key]))
                    unsent.discard(key)
            finally:
                if unsent:
                    # The connection broke: the next one sends them.
                    self._pending |= unsent
                    self._wanted.set()
            await asyncio.sleep(DEBOUNCE_SECONDS)

    @staticmethod
    async def _notify(link: Any, payload: str) -> None:
        await link.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload))
