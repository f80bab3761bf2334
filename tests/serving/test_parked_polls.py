"""Polls that wait cost memory and nothing else (docs/design.md 5, worker-protocol.md 5.4; field case 74)."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from durable import conf
from tests import factories as make
from tests.budgets.conftest import open_connections
from tests.budgets.statements import Statements
from tests.client import ApiClient
from tests.parking import begin_poll, in_loop, park_polls, parked_count, wait_until
from tests.protocol.reports import poll
from tests.serving.counts import connection_count, most_connections, open_transaction_count, thread_count

MANY, WORKERS, QUEUES = 500, 50, 5
# Half a second between probes and five seconds of waiting, a fifth of each: the number of statements is the same.
SCALED = {"PROBE_INTERVAL_SECONDS": 0.1, "WORKER_SEEN_INTERVAL_SECONDS": 2}
FIVE_SECONDS = 1.0
MOST_STATEMENTS = 20
WINDOW = 6
# A client gives up five seconds after its window; an idle machine answers all of them within one.
LATE = 5.0


class TimedPoll:
    """A poll under way, and how long it took from being sent to being answered."""

    def __init__(self, api: ApiClient, number: int) -> None:
        began = time.monotonic()
        worker = number % WORKERS
        self.took = 0.0
        self.answer = begin_poll(
            api,
            "workflow" if number % 2 else "activity",
            seconds=WINDOW,
            worker_id=f"w-{worker}",
            task_queue=f"queue-{worker % QUEUES}",
            poll_request_id=f"p-{number}",
        )
        self.answer.add_done_callback(lambda _: setattr(self, "took", time.monotonic() - began))


def park_many(api: ApiClient) -> list[TimedPoll]:
    """500 polls of 50 workers on five queues, of both kinds."""
    for number in range(WORKERS):
        make.register(f"w-{number}", task_queue=f"queue-{number % QUEUES}")
    polls = [TimedPoll(api, number) for number in range(MANY)]
    wait_until(lambda: parked_count(api) == MANY)
    return polls


def open_all_connections(api: ApiClient) -> None:
    """The pool's connections and the listener's, after its test of itself."""
    open_connections(api)
    remote = api.runtime.remote
    wait_until(lambda: remote is None or remote.is_connected)
    wait_until(lambda: connection_count() <= conf.current().db_threads + (2 if remote else 0))


def test_parks_five_hundred_polls_for_twenty_statements(
    statements: Statements, override_durable: Any, api: ApiClient
) -> None:
    override_durable(**SCALED)
    open_all_connections(api)
    idle = (thread_count(), connection_count())
    polls = park_many(api)

    with statements.during() as cost:
        threading.Event().wait(FIVE_SECONDS)
        held = (thread_count(), connection_count(), open_transaction_count(), api.runtime.pool.has_free_thread())
    answers = [waiting.answer.result(60) for waiting in polls]

    took = sorted(waiting.took for waiting in polls)
    print(f"{len(cost.statements)} statements; {took[0] - WINDOW:.3f} to {took[-1] - WINDOW:.3f} s after the window")
    assert held == (*idle, 0, True)
    assert 0 < len(cost.statements) <= MOST_STATEMENTS, str(cost)
    # Each kind of worker is looked for once, however many polls of it wait.
    probes = {statement.sql.count(" AS tag") for statement in cost.statements if " AS tag" in statement.sql}
    assert probes == {2 * QUEUES}
    assert {(answer.status, answer.body["poll_status"]) for answer in answers} == {(200, "empty")}
    assert took[0] >= WINDOW
    assert took[-1] < WINDOW + LATE


def test_leaves_no_connection_behind_after_five_hundred_polls(api: ApiClient) -> None:
    make.register()
    waiting = [begin_poll(api, seconds=0) for _ in range(MANY)]

    answers = [one.result(60) for one in waiting]

    assert {answer.body["poll_status"] for answer in answers} == {"empty"}
    assert connection_count() <= most_connections()


def test_frees_the_place_of_a_client_that_left(api: ApiClient, override_durable: Any) -> None:
    override_durable(LONG_POLL_CAPACITY=1)
    make.register()
    (first,) = park_polls(api, 1)

    first.cancel()
    wait_until(lambda: parked_count(api) == 0)

    assert in_loop(api, lambda: len(api.runtime.hub)) == 0
    (second,) = park_polls(api, 1)
    second.cancel()


def test_gives_the_work_to_the_next_in_line_when_the_first_has_left(api: ApiClient) -> None:
    make.register()
    first, second = park_polls(api, 2)
    first.cancel()
    wait_until(lambda: parked_count(api) == 1)

    make.start()

    assert second.result(10).body["poll_status"] == "leased"


# -- windows -----------------------------------------------------------------------------------------------------------


def seconds_of(api: ApiClient, **fields: Any) -> float:
    """How long an empty poll takes."""
    began = time.monotonic()
    assert poll(api, "workflow", **fields).body["poll_status"] == "empty"
    return time.monotonic() - began


def test_answers_at_once_when_asked_not_to_wait(api: ApiClient) -> None:
    make.register()
    poll(api, "workflow")

    took = seconds_of(api, timeout_seconds=0)

    assert took < 1


def test_waits_the_whole_window_that_was_asked_for(api: ApiClient) -> None:
    make.register()

    took = seconds_of(api, timeout_seconds=1)

    assert 1 <= took < 1 + LATE


@pytest.mark.parametrize("asked", [None, 60])
def test_waits_no_longer_than_the_server_allows(api: ApiClient, override_durable: Any, asked: int | None) -> None:
    override_durable(LONG_POLL_SECONDS=1, LONG_POLL_MAX_SECONDS=1)
    make.register()

    took = seconds_of(api, timeout_seconds=asked)

    assert 1 <= took < 1 + LATE
