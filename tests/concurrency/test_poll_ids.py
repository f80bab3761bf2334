"""One poll id asked for at the same time: one lease, and whoever asks gets it (docs/concurrency.md 12)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from durable import claims, metrics
from durable.claims import Nothing
from durable.leases import Leased
from durable.models import PollReceipt, Task
from durable.sql import claiming
from durable.states import TaskKind, TaskStatus
from tests import factories as make
from tests.client import ApiClient
from tests.concurrency.tools import (
    all_at_once,
    eventually,
    gate_after,
    has_row_locks,
    impatient,
    in_thread,
)
from tests.invariants import check_invariants
from tests.parking import parked_count

KINDS = pytest.mark.parametrize("kind", [TaskKind.WORKFLOW, TaskKind.ACTIVITY])


def offer(kind: TaskKind, *, is_registered: bool = False) -> None:
    """One ready task of this kind for `w-1`."""
    if not is_registered:
        make.register()
    make.start()
    if kind == TaskKind.ACTIVITY:
        make.complete(make.lease_workflow(), make.schedule())


@KINDS
@pytest.mark.usefixtures("database")
def test_same_poll_id_twice_finds_the_other_busy_without_waiting_and_then_replays_its_lease(kind: TaskKind) -> None:
    offer(kind)
    request = make.poll_request(kind)

    with gate_after(claiming, "reserve_receipt") as gate:
        first = in_thread(make.try_poll, request)
        gate.wait_until_reached()
        if has_row_locks():
            began = time.monotonic()
            with impatient():
                second = make.try_poll(request)
            assert isinstance(second, Nothing)
            assert second.was_busy
            # MariaDB would give up a lock wait after one whole second.
            assert time.monotonic() - began < 0.9
        gate.open()
        leased = first.result(20)
    replayed = make.try_poll(request)

    assert isinstance(leased, Leased)
    assert isinstance(replayed, Leased)
    assert replayed.is_replay
    assert replayed.claimed.body == leased.claimed.body
    assert Task.objects.filter(status=TaskStatus.LEASED).get().attempt_count == 1


@KINDS
@pytest.mark.usefixtures("database")
def test_same_poll_id_twice_is_free_again_after_the_first_rolled_back(kind: TaskKind) -> None:
    offer(kind)
    request = make.poll_request(kind)

    with gate_after(claiming, "reserve_receipt") as gate, mock.patch.object(claims, "_lock_best", return_value=None):
        first = in_thread(make.try_poll, request)
        gate.wait_until_reached()
        gate.open()
        assert isinstance(first.result(20), Nothing)
    second = make.try_poll(request)

    assert isinstance(second, Leased)
    assert not second.is_replay
    assert PollReceipt.objects.get(kind=kind).task_id == second.claimed.facts.task.id


@KINDS
@pytest.mark.usefixtures("database")
def test_same_poll_id_three_with_rollback_leases_once(kind: TaskKind) -> None:
    offer(kind)
    request = make.poll_request(kind)
    deadlocks = metrics.TRANSACTION_RETRIES._value.get()

    with first_claim_finds_nothing(), gate_after(claiming, "reserve_receipt") as gate:
        polls = [in_thread(poll_until_leased, request)]
        gate.wait_until_reached()
        polls += [in_thread(poll_until_leased, request) for _ in range(2)]
        gate.open()
        outcomes = [poll.result(20) for poll in polls]

    assert sorted(outcome.is_replay for outcome in outcomes) == [False, True, True]
    assert len({outcome.claimed.facts.task.id for outcome in outcomes}) == 1
    assert Task.objects.filter(status=TaskStatus.LEASED).get().attempt_count == 1
    assert metrics.TRANSACTION_RETRIES._value.get() == deadlocks
    check_invariants()


@KINDS
@pytest.mark.usefixtures("database")
def test_same_poll_id_by_eight_at_once_leases_once(kind: TaskKind) -> None:
    offer(kind)
    request = make.poll_request(kind)

    outcomes = all_at_once([lambda: poll_until_leased(request)] * 8)

    assert [outcome.is_replay for outcome in outcomes].count(False) == 1
    assert Task.objects.filter(status=TaskStatus.LEASED).get().attempt_count == 1
    check_invariants()


def poll_until_leased(request: claims.PollRequest) -> Leased:
    """Look again after each empty look, as a waiting poll does when its id is busy."""
    found: list[Leased] = []

    def look() -> bool:
        outcome = make.try_poll(request)
        found.extend([outcome] if isinstance(outcome, Leased) else [])
        return bool(found)

    eventually(look, "the poll has its lease")
    return found[0]


@contextmanager
def first_claim_finds_nothing() -> Iterator[None]:
    """The first claim that gets as far as its row lock is told that others have everything, and rolls back."""
    original, calls = claims._lock_best, []

    def lock_best(*args: Any) -> Any:
        calls.append(args)
        return None if len(calls) == 1 else original(*args)

    with mock.patch.object(claims, "_lock_best", lock_best):
        yield


# -- through the API ---------------------------------------------------------------------------------------------------


def poll_body(poll_request_id: str, **fields: Any) -> dict[str, Any]:
    return {"worker_id": "w-1", "task_queue": make.QUEUE, "poll_request_id": poll_request_id, **fields}


@KINDS
def test_same_poll_id_twice_through_the_api_gives_both_pollers_the_one_lease(api: ApiClient, kind: TaskKind) -> None:
    offer(kind)

    polls = [api.begin("POST", f"/api/worker/{kind}-tasks/poll", poll_body("p-1", timeout_seconds=5)) for _ in range(2)]
    answers = [poll.result(20) for poll in polls]

    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].body["task"] == answers[1].body["task"]
    assert Task.objects.filter(status=TaskStatus.LEASED).get().attempt_count == 1


@KINDS
def test_same_poll_id_twice_gives_both_the_lease_when_both_were_waiting(api: ApiClient, kind: TaskKind) -> None:
    make.register()
    path, body = f"/api/worker/{kind}-tasks/poll", poll_body("p-1", timeout_seconds=20)
    polls = [api.begin("POST", path, body) for _ in range(2)]
    eventually(lambda: parked_count(api) == 2, "both polls are parked")

    offer(kind, is_registered=True)
    answers = [poll.result(10) for poll in polls]

    assert [answer.body["poll_status"] for answer in answers] == ["leased", "leased"]
    assert answers[0].body["task"] == answers[1].body["task"]


def test_same_poll_id_three_with_rollback_through_the_api_gives_all_the_one_lease(api: ApiClient) -> None:
    offer(TaskKind.WORKFLOW)
    body = poll_body("p-1", timeout_seconds=20)

    with first_claim_finds_nothing(), gate_after(claiming, "reserve_receipt") as gate:
        polls = [api.begin("POST", "/api/worker/workflow-tasks/poll", body)]
        gate.wait_until_reached()
        polls += [api.begin("POST", "/api/worker/workflow-tasks/poll", body) for _ in range(2)]
        gate.open()
        answers = [poll.result(10) for poll in polls]

    assert [answer.status for answer in answers] == [200] * 3
    assert len({answer.body["task"]["task_id"] for answer in answers}) == 1
    assert Task.objects.filter(status=TaskStatus.LEASED).get().attempt_count == 1


def test_other_workers_are_not_kept_from_the_queue_by_a_busy_poll_id(api: ApiClient) -> None:
    make.register("w-2")
    offer(TaskKind.WORKFLOW)
    other = make.start()

    with gate_after(claiming, "lock_candidate") as gate:
        first = api.begin("POST", "/api/worker/workflow-tasks/poll", poll_body("p-1", timeout_seconds=5))
        gate.wait_until_reached()
        body = poll_body("p-1", worker_id="w-2", timeout_seconds=5)
        second = api.begin("POST", "/api/worker/workflow-tasks/poll", body)
        if has_row_locks():
            assert second.result(10).body["task"]["run_id"] == other.run.id
        gate.open()

    assert {first.result(10).body["poll_status"], second.result(10).body["poll_status"]} == {"leased"}
