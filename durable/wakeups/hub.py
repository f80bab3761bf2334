"""The hub: where polls park. One per process; lives in the event loop's thread (docs/concurrency.md 17).

A parked poll is one small object: no thread, no connection, no timer and no query of its own. It is woken by a hint, by
the interval probe that looks for all parked polls together, or by its deadline. A hint wakes one poll; a woken poll
that leases nothing passes it on to the next one in line that can be given something else, so that each kind of worker
is asked at most once, however many of them wait.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from durable import metrics
from durable.sql.claiming import Wanted
from durable.wakeups.hints import QueueKey

TICK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Hint:
    """A reason to look. `tried` are the kinds of worker that looked because of it and found nothing.

    `may_be_many`: it stands for an unknown number of tasks, so that whoever leases one of them passes it on.
    """

    tried: frozenset[Wanted] = frozenset()
    may_be_many: bool = False


class Waiter:
    """One poll between its arrival and its answer.

    `hint`: why to look again before parking. `following`: the hint because of which it is looking now.
    `is_answered`: another poll with its id, sent by the same worker, has been given a lease that it can fetch.
    """

    __slots__ = (
        "deadline", "following", "future", "hint", "is_answered", "is_timed", "key", "poll_request_id", "ticket",
        "wanted", "worker_id",
    )  # fmt: skip

    def __init__(
        self, ticket: int, key: QueueKey, worker_id: str, poll_request_id: str | None, deadline: float
    ) -> None:
        self.ticket = ticket
        self.key = key
        self.worker_id = worker_id
        self.poll_request_id = poll_request_id
        # Known once the first look admitted the worker; until then the poll does not count as waiting.
        self.wanted: Wanted | None = None
        self.deadline = deadline
        self.hint: Hint | None = None
        self.following: Hint | None = None
        self.is_answered = False
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
        self._by_poll_id: dict[tuple[QueueKey, str, str], list[Waiter]] = {}
        self._deadlines: list[tuple[float, int, Waiter]] = []
        self._count = 0
        self.is_closing = False

    def __len__(self) -> int:
        """How many polls wait; those that are still at their first look do not."""
        return self._count

    # -- a poll's own calls, in this order: enter, look, wait_for, park, look, …, leave --------------------------------

    def enter(self, key: QueueKey, *, worker_id: str, deadline: float, poll_request_id: str | None = None) -> Waiter:
        """Stand in line before looking, so that what becomes ready during the look is not missed.

        `deadline` is of the monotonic clock, in seconds.
        """
        waiter = Waiter(next(self._tickets), key, worker_id, poll_request_id, deadline)
        self._lines.setdefault(key, OrderedDict())[waiter.ticket] = waiter
        if poll_request_id is not None:
            self._by_poll_id.setdefault((key, worker_id, poll_request_id), []).append(waiter)
        return waiter

    def wait_for(self, waiter: Waiter, wanted: Wanted) -> None:
        """The first look found nothing: from now on the poll waits, and this is what it can be given."""
        waiter.wanted = wanted
        self._count += 1
        metrics.PARKED_POLLS.set(self._count)

    async def park(self, waiter: Waiter) -> bool:
        """Wait until there is a reason to look (True) or no time left (False)."""
        if not (waiter.hint or waiter.is_answered or self.is_closing) and waiter.deadline > time.monotonic():
            waiter.future = asyncio.get_running_loop().create_future()
            if not waiter.is_timed:
                waiter.is_timed = True
                heapq.heappush(self._deadlines, (waiter.deadline, waiter.ticket, waiter))
            try:
                await waiter.future
            finally:
                waiter.future = None
        waiter.following, waiter.hint = waiter.hint, None
        return (waiter.following is not None or waiter.is_answered) and not self.is_closing

    def pass_on(self, waiter: Waiter, *, has_looked: bool = True) -> None:
        """A woken poll leased nothing: somebody else looks, and if it did look, somebody of another kind."""
        hint, waiter.following = waiter.following, None
        if hint is None:
            return
        if has_looked and waiter.wanted is not None:
            hint = Hint(hint.tried | {waiter.wanted}, hint.may_be_many)
        self._hand_over(waiter, hint)

    def leave(self, waiter: Waiter, *, has_leased: bool) -> None:
        """The poll is answered or its client is gone; the hints it did not use up go to others in line."""
        line = self._lines.get(waiter.key)
        if line is None or line.pop(waiter.ticket, None) is None:
            return
        if waiter.wanted is not None:
            self._count -= 1
            metrics.PARKED_POLLS.set(self._count)
        followed, unused = waiter.following, waiter.hint
        if followed is not None and (followed.may_be_many or not has_leased):
            self._hand_over(waiter, followed)
        if unused is not None:
            self._hand_over(waiter, unused)
        self._leave_poll_id(waiter, has_leased=has_leased)
        if not line:
            self._lines.pop(waiter.key, None)

    def _leave_poll_id(self, waiter: Waiter, *, has_leased: bool) -> None:
        """A client that lost patience asks again under the same id: the lease must reach the poll it still hears."""
        if waiter.poll_request_id is None:
            return
        key = (waiter.key, waiter.worker_id, waiter.poll_request_id)
        others = self._by_poll_id.get(key, [])
        others.remove(waiter)
        if not others:
            self._by_poll_id.pop(key, None)
        elif has_leased:
            for other in others:
                other.is_answered = True
                other.wake()

    # -- waking --------------------------------------------------------------------------------------------------------

    def hint(self, key: QueueKey, *, may_be_many: bool = False) -> None:
        """There may be work: the first in line that is not already about to look does so."""
        self._wake_first(key, lambda _: True, Hint(may_be_many=may_be_many))

    def hint_wanted(self, wanted: Wanted) -> None:
        """The interval probe saw work for one kind of worker: the first of them in line looks."""
        key = QueueKey(wanted.namespace, wanted.task_queue, wanted.kind)
        self._wake_first(key, lambda waiter: waiter.wanted == wanted, Hint(may_be_many=True))

    def hint_all(self) -> None:
        """After a gap in hearing others: everybody looks."""
        for line in self._lines.values():
            for waiter in line.values():
                waiter.hint = waiter.hint or Hint()
                waiter.wake()

    def _hand_over(self, waiter: Waiter, hint: Hint) -> None:
        self._wake_first(waiter.key, lambda other: other is not waiter and other.wanted not in hint.tried, hint)

    def _wake_first(self, key: QueueKey, suits: Callable[[Waiter], bool], hint: Hint) -> None:
        for waiter in self._lines.get(key, {}).values():
            if waiter.hint is None and suits(waiter):
                waiter.hint = hint
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
