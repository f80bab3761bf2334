"""It forgets old poll receipts whole, and no receipt of a live lease, however often pruning is killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.utils import timezone

from durable.claims import PollRequest
from durable.leases import Leased
from durable.models import PollReceipt
from durable.states import TaskKind
from durable.upkeep.pruning import prune_poll_receipts
from tests import factories as make
from tests.crash.dying import COMMIT, Call, ForkServer
from tests.crash.scenarios import wait_for_the_dead_session

# Small batches: pruning commits several times, and is killed between and inside them.
BATCH = {"PRUNE_BATCH_SIZE": 2}
PRUNE = Call(function=prune_poll_receipts, settings=BATCH)
RECEIPTS, LIVE = 5, 2
# What is left after no batch, after the first, the second and the third.
AFTER_BATCHES = [[0, 1, 2, 3, 4], [2, 3, 4], [2, 4], [2]]


def lease_some() -> list[PollRequest]:
    """Polls that leased a task each; only the one at LIVE still holds it, and all receipts are past their time."""
    polls = []
    for number in range(RECEIPTS):
        request = make.poll_request(TaskKind.WORKFLOW)
        make.start()
        lease = make.leased(make.try_poll(request))
        if number != LIVE:
            make.complete(lease, make.finish())
        past = timezone.now() - timedelta(seconds=60 - number)
        PollReceipt.objects.filter(id=request.receipt_id).update(expires_at=past)
        polls.append(request)
    return polls


def kept(polls: list[PollRequest]) -> list[int]:
    """Which of the polls still have their receipt, oldest first."""
    found = set(PollReceipt.objects.values_list("id", flat=True))
    return [number for number, request in enumerate(polls) if request.receipt_id in found]


def killed_prunings(forks: ForkServer) -> Iterator[list[PollRequest]]:
    """The polls as they stand after pruning was killed at its first point, at its second, and so on."""
    points = forks.run(PRUNE).points
    assert points.count(COMMIT) > 1, points
    for die_at in range(len(points)):
        polls = lease_some()
        assert forks.run(PRUNE, die_at=die_at).signal == signal.SIGKILL
        wait_for_the_dead_session()
        yield polls
        prune_poll_receipts()


@pytest.mark.usefixtures("database")
def test_replays_a_live_lease_after_any_killed_pruning(forks: ForkServer) -> None:
    make.register()
    lease_some()

    for polls in killed_prunings(forks):
        replayed = make.try_poll(polls[LIVE])

        assert isinstance(replayed, Leased)
        assert replayed.is_replay
        make.complete(make.leased(replayed), make.finish())


@pytest.mark.usefixtures("database")
def test_removes_the_oldest_receipts_first_and_the_rest_the_next_time(forks: ForkServer) -> None:
    make.register()
    lease_some()

    for polls in killed_prunings(forks):
        assert kept(polls) in AFTER_BATCHES
        prune_poll_receipts()
        assert kept(polls) == [LIVE]


@pytest.mark.usefixtures("database")
def test_takes_a_pruned_poll_id_for_a_new_one(forks: ForkServer) -> None:
    make.register()
    lease_some()

    for polls in killed_prunings(forks):
        prune_poll_receipts()
        started = make.start()
        leased = make.leased(make.try_poll(polls[0]))

        assert leased.body["run_id"] == started.run.id
        make.complete(leased, make.finish())
