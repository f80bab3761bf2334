"""One process leads upkeep at a time; when it is gone another one does (docs/design.md, "Upkeep")."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from durable import metrics
from durable.models import UpkeepLeader
from durable.upkeep import leader
from durable.upkeep.leader import give_up_leadership, take_leadership
from durable.upkeep.loop import UpkeepLoop
from tests import factories as make
from tests.client import ApiClient
from tests.clock import MICROSECOND, EngineClock
from tests.concurrency.tools import all_at_once, eventually

LEASE = timedelta(seconds=5)


def test_first_to_ask_leads_and_others_do_not(clock: EngineClock) -> None:
    assert take_leadership("a") is True
    assert take_leadership("b") is False
    assert take_leadership("a") is True


def test_leader_that_renews_keeps_the_leadership(clock: EngineClock) -> None:
    take_leadership("a")
    for _ in range(5):
        clock.advance(LEASE - MICROSECOND)
        assert take_leadership("a") is True

    assert take_leadership("b") is False


def test_leader_that_is_silent_is_followed_at_its_expiry_and_not_before(clock: EngineClock) -> None:
    take_leadership("a")

    clock.advance(LEASE - MICROSECOND)
    early = take_leadership("b")
    clock.advance(MICROSECOND)
    at_expiry = take_leadership("b")

    assert (early, at_expiry) == (False, True)
    assert take_leadership("a") is False


def test_leader_that_stops_is_followed_at_once(clock: EngineClock) -> None:
    take_leadership("a")

    give_up_leadership("a")

    assert take_leadership("b") is True


def test_giving_up_what_another_holds_changes_nothing(clock: EngineClock) -> None:
    take_leadership("a")

    give_up_leadership("b")

    assert UpkeepLeader.objects.get().holder == "a"


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("predecessor", ["nobody", "expired"])
def test_of_many_that_ask_at_once_one_leads_without_a_deadlock(predecessor: str) -> None:
    if predecessor == "expired":
        take_leadership("gone")
        UpkeepLeader.objects.update(expires_at=UpkeepLeader.objects.get().expires_at - 2 * LEASE)
    retries = metrics.TRANSACTION_RETRIES._value.get()

    outcomes = all_at_once([lambda name=name: take_leadership(f"p-{name}") for name in range(8)])

    assert sorted(outcomes) == [False] * 7 + [True]
    assert metrics.TRANSACTION_RETRIES._value.get() == retries


# -- whole loops -------------------------------------------------------------------------------------------------------


def begin_loop(api: ApiClient) -> UpkeepLoop:
    """Upkeep as a serving process runs it."""

    async def begin() -> UpkeepLoop:
        loop = UpkeepLoop(api.runtime.pool, may_lead=True)
        loop.start()
        return loop

    return api.wait(begin())


def kill_loop(api: ApiClient, loop: UpkeepLoop) -> None:
    """As the end of its process would: nothing is given up."""

    async def kill() -> None:
        loop._task.cancel()
        await asyncio.gather(loop._task, return_exceptions=True)

    api.wait(kill())


def test_another_process_takes_over_when_the_leader_is_killed(
    api: ApiClient, override_durable: Callable[..., Any]
) -> None:
    override_durable(UPKEEP_LEADER_SECONDS=1, UPKEEP_INTERVAL_SECONDS=0.05)
    first = begin_loop(api)
    eventually(lambda: first._is_leader, "the first leads")
    second = begin_loop(api)
    assert second._is_leader is False

    kill_loop(api, first)
    started = make.start(run_timeout_seconds=1)

    # A duty of the leader alone, carried out by the one that is left.
    eventually(lambda: make.run_of(started).closed_reason == "timed_out", "the run's deadline is enforced")
    assert UpkeepLeader.objects.get(name=leader.NAME).holder == second._holder
    api.wait(second.stop())


def test_stopped_loop_leaves_the_leadership_free(api: ApiClient) -> None:
    loop = begin_loop(api)
    eventually(lambda: loop._is_leader, "it leads")

    api.wait(loop.stop())

    assert not UpkeepLeader.objects.exists()
