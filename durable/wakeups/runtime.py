"""The moving parts of a serving process: pool, hub, hints from elsewhere, and the loops that keep them going."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
from django.utils import timezone

from durable import conf, metrics
from durable.operations.note_workers_seen import note_workers_seen
from durable.sql import claiming
from durable.sql.pool import DatabasePool, Work
from durable.wakeups import hints
from durable.wakeups.hints import QueueKey
from durable.wakeups.hub import TICK_SECONDS, Hub
from durable.wakeups.remote import RemoteHints, is_available

log = structlog.get_logger("durable.wakeups")


class Runtime:
    """What views share. Started with the process, stopped with it."""

    def __init__(self) -> None:
        self.pool = DatabasePool()
        self.hub = Hub()
        self.remote: RemoteHints | None = None
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._unsubscribe: Callable[[], None] | None = None
        self._seen: set[tuple[str, str]] = set()

    def start(self) -> None:
        self._unsubscribe = hints.subscribe(self._hint_from_thread)
        if is_available():
            # One notice stands for a burst of hints.
            on_hint = partial(self.hub.hint, may_be_many=True)
            self.remote = RemoteHints(on_hint=on_hint, on_gap=self.hub.hint_all)
            self.remote.start()
        self._tasks = [
            asyncio.create_task(self._tick()),
            asyncio.create_task(self._probe_for_ever()),
            asyncio.create_task(self._note_seen_for_ever()),
        ]

    async def stop(self) -> None:
        self.hub.close()
        if self._unsubscribe is not None:
            self._unsubscribe()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.remote is not None:
            await self.remote.stop()
        await self.pool.close()

    def note_seen(self, namespace: str, worker_id: str) -> None:
        """The worker polled: written later, together with others."""
        self._seen.add((namespace, worker_id))

    # -- hints ---------------------------------------------------------------------------------------------------------

    def _hint_from_thread(self, key: QueueKey) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hint, key)

    def _hint(self, key: QueueKey) -> None:
        metrics.WAKEUPS.labels(source="local").inc()
        self.hub.hint(key)
        if self.remote is not None:
            self.remote.send(key)

    # -- loops ---------------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.hub.end_expired()

    async def _probe_for_ever(self) -> None:
        """What no hint told of: one read per interval for all parked polls together."""
        while True:
            await asyncio.sleep(conf.current().probe_interval_seconds)
            await self._survive(self._probe)

    async def _probe(self) -> None:
        wanted = self.hub.wanted()
        if not wanted:
            return
        for index in await self.pool.run(Work.READ, _probe_all, wanted):
            metrics.WAKEUPS.labels(source="probe").inc()
            self.hub.hint_wanted(wanted[index])

    async def _note_seen_for_ever(self) -> None:
        while True:
            await asyncio.sleep(conf.current().worker_seen_interval_seconds / 2)
            await self._survive(self._note_seen)

    async def _note_seen(self) -> None:
        seen, self._seen = self._seen | self.hub.workers(), set()
        if seen:
            await self.pool.run(Work.WRITE, note_workers_seen, sorted(seen))

    async def _survive(self, work: Callable[[], Awaitable[None]]) -> None:
        """A loop outlives one bad round (the database was away): it says so and goes on."""
        try:
            await work()
        except Exception as error:
            metrics.FAULTS.inc()
            log.error("background_round_failed", work=work.__name__, error=type(error).__name__)


def _probe_all(wanted: list[claiming.Wanted]) -> set[int]:
    # Only SQLite takes the time as a parameter, and there it costs no statement.
    return claiming.probe_many(wanted, timezone.now())
