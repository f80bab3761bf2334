"""The hub alone: who is woken, in which order, and that no hint is lost on the way (docs/concurrency.md 17)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from durable.sql.claiming import Wanted
from durable.states import TaskKind
from durable.wakeups.hints import QueueKey
from durable.wakeups.hub import Hub, Waiter

KEY = QueueKey("default", "orders", TaskKind.WORKFLOW)
OTHER_KEY = QueueKey("default", "other", TaskKind.WORKFLOW)
Test = Callable[["Line"], Awaitable[None]]


def wanted(*types: str) -> Wanted:
    return Wanted("default", "orders", TaskKind.WORKFLOW, types, "")


class Line:
    """A hub and the polls that stand in it."""

    def __init__(self) -> None:
        self.hub = Hub()

    def enter(self, *types: str, seconds: float = 60, key: QueueKey = KEY, **fields: Any) -> Waiter:
        """A poll that has looked once, found nothing, and is about to park."""
        waiter = self.hub.enter(key, deadline=time.monotonic() + seconds, **{"worker_id": "w-1", **fields})
        self.hub.wait_for(waiter, wanted(*(types or ("five",))))
        return waiter

    async def park(self, waiter: Waiter) -> asyncio.Task[bool]:
        """Park a poll and return once it is parked, or has left the park again."""
        parking = asyncio.ensure_future(self.hub.park(waiter))
        await settled()
        return parking

    async def parked(self, count: int, *types: str) -> list[tuple[Waiter, asyncio.Task[bool]]]:
        found = []
        for _ in range(count):
            waiter = self.enter(*types)
            found.append((waiter, await self.park(waiter)))
        return found


async def settled() -> None:
    """Let everything that is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


def woken(parked: list[tuple[Waiter, asyncio.Task[bool]]]) -> list[bool]:
    return [parking.done() for _, parking in parked]


def in_line(test: Test) -> Callable[[], None]:
    """A test that runs in an event loop of its own, with a fresh hub."""

    def run() -> None:
        async def begin() -> None:
            line = Line()
            await test(line)
            line.hub.close()
            await settled()

        asyncio.run(begin())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


# -- order -------------------------------------------------------------------------------------------------------------


@in_line
async def test_hint_wakes_the_first_in_line_and_nobody_else(line: Line) -> None:
    parked = await line.parked(3)

    line.hub.hint(KEY)
    await settled()

    assert woken(parked) == [True, False, False]
    assert parked[0][1].result() is True


@in_line
async def test_each_hint_wakes_one_more(line: Line) -> None:
    parked = await line.parked(3)

    line.hub.hint(KEY)
    line.hub.hint(KEY)
    await settled()

    assert woken(parked) == [True, True, False]


@in_line
async def test_hint_of_another_queue_wakes_nobody(line: Line) -> None:
    parked = await line.parked(1)

    line.hub.hint(OTHER_KEY)
    line.hub.hint(QueueKey("default", "orders", TaskKind.ACTIVITY))
    await settled()

    assert woken(parked) == [False]


@in_line
async def test_probe_wakes_the_first_of_the_kind_that_it_saw_work_for(line: Line) -> None:
    first, second = await line.parked(1, "other"), await line.parked(2, "five")

    line.hub.hint_wanted(wanted("five"))
    await settled()

    assert woken(first + second) == [False, True, False]


@in_line
async def test_gap_in_hearing_others_wakes_everybody(line: Line) -> None:
    parked = await line.parked(2, "other") + await line.parked(2, "five")

    line.hub.hint_all()
    await settled()

    assert woken(parked) == [True] * 4


@in_line
async def test_each_kind_of_worker_that_waits_is_probed_for_once(line: Line) -> None:
    await line.parked(3, "five")
    await line.parked(2, "other")
    line.hub.enter(KEY, worker_id="w-9", deadline=time.monotonic() + 60)

    assert line.hub.wanted() == [wanted("five"), wanted("other")]
    assert line.hub.workers() == {("default", "w-1"), ("default", "w-9")}
    assert len(line.hub) == 5


# -- no hint is lost ---------------------------------------------------------------------------------------------------


@in_line
async def test_hint_before_the_poll_parks_is_not_lost(line: Line) -> None:
    waiter = line.enter()

    line.hub.hint(KEY)

    assert await line.hub.park(waiter) is True


@in_line
async def test_hint_during_the_first_look_is_not_lost(line: Line) -> None:
    waiter = line.hub.enter(KEY, worker_id="w-1", deadline=time.monotonic() + 60)

    line.hub.hint(KEY)
    line.hub.wait_for(waiter, wanted("five"))

    assert await line.hub.park(waiter) is True


@in_line
async def test_hint_during_a_later_look_is_not_lost(line: Line) -> None:
    ((waiter, parking),) = await line.parked(1)
    line.hub.hint(KEY)
    await parking

    line.hub.hint(KEY)
    line.hub.pass_on(waiter)

    assert await line.hub.park(waiter) is True


@in_line
async def test_hint_is_used_up_by_the_look_it_caused(line: Line) -> None:
    ((waiter, parking),) = await line.parked(1)
    line.hub.hint(KEY)
    await parking

    line.hub.pass_on(waiter)

    assert not (await line.park(waiter)).done()


@in_line
async def test_look_without_a_hint_wakes_nobody_else(line: Line) -> None:
    looking = line.enter()
    parked = await line.parked(1, "other")

    line.hub.pass_on(looking)
    await settled()

    assert woken(parked) == [False]


# -- passing on --------------------------------------------------------------------------------------------------------


@in_line
async def test_woken_poll_that_finds_nothing_passes_the_hint_to_another_kind(line: Line) -> None:
    parked = await line.parked(2, "other") + await line.parked(1, "five")
    line.hub.hint(KEY)
    await settled()

    line.hub.pass_on(parked[0][0])
    await settled()

    assert woken(parked) == [True, False, True]


@in_line
async def test_hint_that_nobody_can_use_asks_each_kind_once_however_many_wait(line: Line) -> None:
    parked = [one for _ in range(50) for kind in ("a", "b", "c") for one in await line.parked(1, kind)]
    line.hub.hint(KEY)
    looked = 0

    while True:
        await settled()
        awake = [waiter for waiter, parking in parked if parking.done() and waiter.following]
        if not awake:
            break
        looked += len(awake)
        for waiter in awake:
            line.hub.pass_on(waiter)

    assert looked == 3


@in_line
async def test_poll_whose_id_was_busy_passes_the_hint_to_its_own_kind_too(line: Line) -> None:
    first, second = await line.parked(1), await line.parked(1)
    line.hub.hint(KEY)
    await settled()

    line.hub.pass_on(first[0][0], has_looked=False)
    await settled()

    assert woken(first + second) == [True, True]


@in_line
async def test_client_that_leaves_with_an_unused_hint_passes_it_on(line: Line) -> None:
    leaving = line.enter()
    parked = await line.parked(1)
    line.hub.hint(KEY)

    line.hub.leave(leaving, has_leased=False)
    await settled()

    assert woken(parked) == [True]


@in_line
async def test_client_that_leaves_while_it_looks_passes_the_hint_on(line: Line) -> None:
    first, second = await line.parked(1), await line.parked(1)
    line.hub.hint(KEY)
    await settled()

    line.hub.leave(first[0][0], has_leased=False)
    await settled()

    assert woken(second) == [True]


@in_line
async def test_client_that_leaves_while_parked_leaves_the_next_hint_to_others(line: Line) -> None:
    first, second = await line.parked(1), await line.parked(1)
    first[0][1].cancel()
    await settled()
    line.hub.leave(first[0][0], has_leased=False)

    line.hub.hint(KEY)
    await settled()

    assert woken(second) == [True]
    assert len(line.hub) == 1


@in_line
async def test_poll_that_leased_keeps_the_hint_it_followed_and_passes_on_a_newer_one(line: Line) -> None:
    first, second, third = await line.parked(1), await line.parked(1), await line.parked(1)
    line.hub.hint(KEY)
    await settled()
    line.hub.leave(first[0][0], has_leased=True)
    await settled()
    assert woken(second) == [False]

    line.hub.hint(KEY)
    await settled()
    line.hub.hint(KEY)
    line.hub.leave(second[0][0], has_leased=True)
    await settled()

    assert woken(third) == [True]


@in_line
async def test_hint_that_may_stand_for_many_goes_on_with_every_lease(line: Line) -> None:
    parked = await line.parked(4)
    line.hub.hint(KEY, may_be_many=True)

    for waiter, parking in parked[:3]:
        await parking
        line.hub.leave(waiter, has_leased=True)
    await settled()

    assert woken(parked) == [True] * 4


@in_line
async def test_chain_of_leases_ends_when_a_look_finds_nothing(line: Line) -> None:
    parked = await line.parked(4)
    line.hub.hint_wanted(wanted("five"))
    await settled()
    line.hub.leave(parked[0][0], has_leased=True)
    await settled()

    line.hub.pass_on(parked[1][0])
    await settled()

    assert woken(parked) == [True, True, False, False]


# -- one poll id, two polls --------------------------------------------------------------------------------------------


@in_line
async def test_lease_wakes_the_other_poll_of_its_id_and_no_other(line: Line) -> None:
    first = line.enter(poll_request_id="p-1")
    twin = line.enter(poll_request_id="p-1")
    others = [
        line.enter(poll_request_id="p-2"),
        line.enter(poll_request_id="p-1", worker_id="w-2"),
        line.enter(poll_request_id="p-1", key=OTHER_KEY),
        line.enter(),
    ]
    parking, parked = await line.park(twin), [(one, await line.park(one)) for one in others]

    line.hub.leave(first, has_leased=True)
    await settled()

    assert parking.result() is True
    assert twin.is_answered
    assert woken(parked) == [False] * 4


@in_line
async def test_poll_that_leased_nothing_leaves_the_other_of_its_id_alone(line: Line) -> None:
    first, twin = line.enter(poll_request_id="p-1"), line.enter(poll_request_id="p-1")
    parking = await line.park(twin)

    line.hub.leave(first, has_leased=False)
    await settled()

    assert not parking.done()


# -- time --------------------------------------------------------------------------------------------------------------


@in_line
async def test_poll_whose_window_is_over_is_answered_and_others_wait_on(line: Line) -> None:
    short, long = line.enter(seconds=0.02), line.enter(seconds=60)
    parked = [(short, await line.park(short)), (long, await line.park(long))]
    line.hub.end_expired()
    await settled()
    assert woken(parked) == [False, False]

    while time.monotonic() < short.deadline:
        await asyncio.sleep(0.005)
    line.hub.end_expired()
    await settled()

    assert woken(parked) == [True, False]
    assert parked[0][1].result() is False


@in_line
async def test_poll_without_time_left_does_not_park(line: Line) -> None:
    waiter = line.enter(seconds=0)

    assert await line.hub.park(waiter) is False


@in_line
async def test_closing_answers_everybody_and_whoever_comes_later(line: Line) -> None:
    parked = await line.parked(3)

    line.hub.close()
    await settled()

    assert [parking.result() for _, parking in parked] == [False] * 3
    assert await line.hub.park(line.enter()) is False


@in_line
async def test_nothing_is_left_of_polls_that_left(line: Line) -> None:
    for _ in range(100):
        waiter = line.enter(poll_request_id="p-1")
        line.hub.leave(waiter, has_leased=False)
        line.hub.leave(waiter, has_leased=False)

    assert len(line.hub) == 0
    assert (line.hub._lines, line.hub._by_poll_id, line.hub._deadlines) == ({}, {}, [])
