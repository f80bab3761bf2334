"""The hub: where polls park. One per process; lives in the event loop's thread (docs/concurrency.md 17).

A parked poll is one small object: no thread, no connection, no timer and no query of its own. It is woken by a hint, by
the interval probe that looks for all parked polls together, or by its deadline. A hint wakes one poll; a woken poll
that leases nothing passes it on to the next one in line, so that each is asked at most once.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable

from durable import metrics
from durable.sql.claiming import Wanted
from durable.wakeups.hints import QueueKey

TICK_SECONDS = 0.1


class Waiter:
    """One poll between its arrival and its answer. `is_hinted`: look again before parking."""

    __slots__ = ("deadline", "future", "is_hinted", "is_timed", "key", "ticket", "wanted", "worker_id")

    def __init__(self, ticket: int, key: QueueKey, worker_id: str, deadline: float) -> None:
        self.ticket = ticket
        self.key = key
        self.worker_id = worker_id
        # Known once the first look admitted the worker; until then the poll does not count as waiting.
        self.wanted: Wanted | None = None
        self.deadline = deadline
        self.is_hinted = False
        self.is_timed = False
        self.future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class Hub:
    """All waiting polls of a process, by queue and in order of arrival."""

    def __init__(self) -> None:
        self._tickets = itertools.count()
        self._lines: dict[QueueKey, OrderedDict[int, Waiter]] = {}
        self._deadlines: list[tuple[float, int, Waiter]] = []
        self._count = 0
        self.is_closing = False

    def __len__(self) -> int:
        """How many polls wait; those that are still at their first look do not."""
        return self._count

    # -- a poll's own calls, in this order: enter, look, wait_for, park, look, …, leave --------------------------------

    def enter(self, key: QueueKey, *, worker_id: str, deadline: float) -> Waiter:
        """Stand in line before looking, so that what becomes ready during the look is not missed.

        `deadline` is of the monotonic clock, in seconds.
        """
        waiter = Waiter(next(self._tickets), key, worker_id, deadline)
        self._lines.setdefault(key, OrderedDict())[waiter.ticket] = waiter
        return waiter

    def wait_for(self, waiter: Waiter, wanted: Wanted) -> None:
        """The first look found nothing: from now on the poll waits, and this is what it can be given."""
        waiter.wanted = wanted
        self._count += 1
        metrics.PARKED_POLLS.set(self._count)

    async def park(self, waiter: Waiter) -> bool:
        """Wait until hinted (True) or out of time (False); clears the hint."""
        if not waiter.is_hinted and not self.is_closing and waiter.deadline > time.monotonic():
            waiter.future = asyncio.get_running_loop().create_future()
            if not waiter.is_timed:
                waiter.is_timed = True
                heapq.heappush(self._deadlines, (waiter.deadline, waiter.ticket, waiter))
            try:
                await waiter.future
            finally:
                waiter.future = None
        hinted, waiter.is_hinted = waiter.is_hinted, False
        return hinted and not self.is_closing

    def leave(self, waiter: Waiter) -> None:
        """The poll is answered or its client is gone; a hint it did not use goes to the next in line."""
        line = self._lines.get(waiter.key)
        if line is None or line.pop(waiter.ticket, None) is None:
            return
        if waiter.wanted is not None:
            self._count -= 1
            metrics.PARKED_POLLS.set(self._count)
        if waiter.is_hinted:
            self.pass_on(waiter)
        if not line:
            self._lines.pop(waiter.key, None)

    # -- waking --------------------------------------------------------------------------------------------------------

    def hint(self, key: QueueKey) -> None:
        """There may be work: the first in line that is not already about to look does so."""
        self._wake_first(key, lambda _: True)

    def pass_on(self, waiter: Waiter) -> None:
        """A woken poll leased nothing: the next one behind it looks."""
        self._wake_first(waiter.key, lambda other: other.ticket > waiter.ticket)

    def hint_wanted(self, wanted: Wanted) -> None:
        """The interval probe saw work for one kind of worker: the first of them in line looks."""
        key = QueueKey(wanted.namespace, wanted.task_queue, wanted.kind)
        self._wake_first(key, lambda waiter: waiter.wanted == wanted)

    def hint_all(self) -> None:
        """After a gap in hearing others: everybody looks."""
        for line in self._lines.values():
            for waiter in line.values():
                waiter.is_hinted = True
                waiter.wake()

    def _wake_first(self, key: QueueKey, suits: Callable[[Waiter], bool]) -> None:
        for waiter in self._lines.get(key, {}).values():
            if not waiter.is_hinted and suits(waiter):
                waiter.is_hinted = True
                waiter.wake()
                return

    def wanted(self) -> list[Wanted]:
        """The kinds of worker that are waiting, each once."""
        every = {waiter.wanted: None for line in self._lines.values() for waiter in line.values()}
        return [wanted for wanted in every if wanted is not None]

    def workers(self) -> set[tuple[str, str]]:
        """(namespace, worker id) of everybody in line."""
        return {(key.namespace, waiter.worker_id) for key, line in self._lines.items() for waiter in line.values()}

    # -- time ----------------------------------------------------------------------------------------------------------

    def end_expired(self) -> None:
        """Wake the polls whose window is over; called on every tick."""
        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            heapq.heappop(self._deadlines)[2].wake()

    def close(self) -> None:
        """Answer every poll at once: the process is stopping."""
        self.is_closing = True
        for line in self._lines.values():
            for waiter in line.values():
                waiter.wake()
