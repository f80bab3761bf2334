"""The interval probe: what no hint told of is found, for all parked polls together (docs/concurrency.md 17)."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest

from durable.models import Task
from durable.sql import claiming
from durable.wakeups import hints
from tests import factories as make
from tests.client import ApiClient
from tests.concurrency.tools import eventually
from tests.parking import park_polls, parked_count

SECONDS = 10


@pytest.fixture
def seldom(override_durable: Callable[..., None]) -> None:
    """Asked for before the API starts: the probe runs when the test says so."""
    override_durable(PROBE_INTERVAL_SECONDS=600)


@pytest.fixture
def often(override_durable: Callable[..., None]) -> None:
    override_durable(PROBE_INTERVAL_SECONDS=0.02)


def test_one_round_finds_what_no_hint_told_of_for_all_parked_polls(seldom: None, api: ApiClient) -> None:
    make.register()
    polls = park_polls(api, 6)
    with mock.patch.object(hints, "publish"):
        runs = {make.start().run.id for _ in range(6)}
    assert parked_count(api) == 6

    api.wait(api.runtime._probe())

    assert {poll.result(SECONDS).body["task"]["run_id"] for poll in polls} == runs
    assert Task.objects.filter(lease_owner="w-1").count() == 6


def test_round_without_work_wakes_nobody(seldom: None, api: ApiClient) -> None:
    make.register()
    park_polls(api, 3)

    with mock.patch.object(claiming, "probe", wraps=claiming.probe) as looks:
        api.wait(api.runtime._probe())

    assert looks.call_count == 0
    assert parked_count(api) == 3


def test_loop_survives_rounds_that_fail(often: None, api: ApiClient) -> None:
    make.register()
    (poll,) = park_polls(api, 1)

    with mock.patch.object(hints, "publish"):
        with mock.patch.object(claiming, "probe_many", side_effect=RuntimeError) as probe:
            eventually(lambda: probe.call_count >= 2, "two rounds have failed")
        started = make.start()

    assert poll.result(SECONDS).body["task"]["run_id"] == started.run.id
