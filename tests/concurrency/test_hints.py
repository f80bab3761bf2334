"""Parked polls and hints through the API, the interval probe off: only hints wake (docs/concurrency.md 17)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from durable import claims
from durable.changes import RunChanges
from durable.models import Task
from durable.operations.deregister_worker import deregister_worker
from durable.operations.recover_lease import recover_lease
from durable.sql import claiming
from tests import factories as make
from tests.client import ApiClient
from tests.concurrency.scenes import run_with_ready_task_and_leased_step
from tests.concurrency.tools import Gate, eventually, fails_once, gate_after
from tests.parking import begin_poll, hint, park_polls, parked_count

# Long enough that no test is rescued by the probe or by the end of its window.
WINDOW_SECONDS = 30
SOON_SECONDS = 10


@pytest.fixture(autouse=True)
def _no_probe(override_durable: Callable[..., None]) -> None:
    override_durable(PROBE_INTERVAL_SECONDS=600)


def test_empty_only_because_locked_is_answered_within_50_ms_of_the_commit(api: ApiClient) -> None:
    make.register()
    delays = []

    # The quickest of three, so that a busy machine does not fail it; a lost hint would miss every time.
    for _ in range(3):
        started, step = run_with_ready_task_and_leased_step()
        body = {**step.body, "result": make.envelope(None)}
        with gate_after(RunChanges, "save") as gate:
            # The appender has touched the ready task and not yet committed.
            outcome = api.begin("POST", f"/api/worker/activity-tasks/{step.task_id}/complete", body)
            gate.wait_until_reached()
            poll = begin_poll(api, seconds=WINDOW_SECONDS)
            if not api.runtime.pool.has_single_writer:
                eventually(lambda: parked_count(api) == 1, "the poll is parked: the only task is locked")
            gate.open()
            opened = time.monotonic()
            leased = poll.result(SOON_SECONDS)
            delays.append(time.monotonic() - opened)
        assert outcome.result(SOON_SECONDS).status == 200
        assert leased.body["task"]["run_id"] == started.run.id

    assert min(delays) < 0.05


def test_hint_subscribe_and_pass_on_leases_what_became_ready_during_the_probe(api: ApiClient) -> None:
    make.register()

    with gate_after(claiming, "probe") as gate:
        poll = begin_poll(api, seconds=WINDOW_SECONDS)
        gate.wait_until_reached()
        started = make.start()
        gate.open()

        assert poll.result(SOON_SECONDS).body["task"]["run_id"] == started.run.id


def test_hint_subscribe_and_pass_on_leases_what_became_ready_during_a_second_look(api: ApiClient) -> None:
    make.register()
    (poll,) = park_polls(api, 1)

    with gate_after(claiming, "probe") as gate:
        hint(api)  # about nothing
        gate.wait_until_reached()
        started = make.start()
        gate.open()

        assert poll.result(SOON_SECONDS).body["task"]["run_id"] == started.run.id


def test_hint_subscribe_and_pass_on_goes_past_workers_of_the_wrong_type(api: ApiClient) -> None:
    make.register()
    make.register("w-other", supported_workflow_types=["other"])
    wrong = park_polls(api, 3, worker_id="w-other")
    (right,) = park_polls(api, 1)

    started = make.start()

    assert right.result(SOON_SECONDS).body["task"]["run_id"] == started.run.id
    assert not any(poll.done() for poll in wrong)


def test_hint_subscribe_and_pass_on_serves_both_the_wrong_and_the_right_type_at_once(api: ApiClient) -> None:
    make.register()
    make.register("w-other", supported_workflow_types=["other"])
    (first,) = park_polls(api, 1, worker_id="w-other")
    (second,) = park_polls(api, 1)

    for_second = make.start()
    for_first = make.start(workflow_type="other")

    assert second.result(SOON_SECONDS).body["task"]["run_id"] == for_second.run.id
    assert first.result(SOON_SECONDS).body["task"]["run_id"] == for_first.run.id


def test_serves_parked_polls_in_order_of_arrival(api: ApiClient) -> None:
    for number in range(3):
        make.register(f"w-{number}")
    polls = [park_polls(api, 1, worker_id=f"w-{number}")[0] for number in range(3)]

    for poll in polls:
        started = make.start()
        assert poll.result(SOON_SECONDS).body["task"]["run_id"] == started.run.id


def test_client_that_leaves_after_it_was_woken_passes_the_hint_on(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    make.register()
    (leaving,) = park_polls(api, 1)
    (staying,) = park_polls(api, 1)
    gate = first_probe_finds_nothing(monkeypatch)

    started = make.start()
    gate.wait_until_reached()
    leaving.cancel()
    eventually(lambda: len(api.runtime.hub) == 1, "the client has left")
    gate.open()

    assert staying.result(SOON_SECONDS).body["task"]["run_id"] == started.run.id


def first_probe_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """The next look stops at the gate and then finds nothing."""
    original, gate, calls = claiming.probe, Gate(), []

    def probe(*args: Any) -> Any:
        calls.append(args)
        if len(calls) > 1:
            return original(*args)
        gate.stop_here()
        return []

    monkeypatch.setattr(claiming, "probe", probe)
    return gate


def test_worker_that_is_refused_after_it_was_woken_passes_the_hint_on(api: ApiClient) -> None:
    make.register()
    make.register("w-2")
    (refused,) = park_polls(api, 1)
    (leased,) = park_polls(api, 1, worker_id="w-2")
    deregister_worker("default", "w-1")

    started = make.start()

    assert leased.result(SOON_SECONDS).body["task"]["run_id"] == started.run.id
    assert refused.result(SOON_SECONDS).status == 412


def test_failed_look_of_a_woken_poll_passes_the_hint_on(api: ApiClient) -> None:
    make.register()
    (broken,) = park_polls(api, 1)
    (leased,) = park_polls(api, 1)

    with fails_once(claiming, "probe"):
        started = make.start()
        answer = broken.result(SOON_SECONDS)

    assert answer.status == 500
    assert leased.result(SOON_SECONDS).body["task"]["run_id"] == started.run.id


def test_each_of_many_starts_wakes_one_poll(api: ApiClient) -> None:
    make.register()
    polls = park_polls(api, 8)

    runs = {make.start().run.id for _ in range(8)}

    assert {poll.result(SOON_SECONDS).body["task"]["run_id"] for poll in polls} == runs


def test_recovered_lease_wakes_a_parked_poll(api: ApiClient) -> None:
    make.register()
    make.start()
    lease = make.lease_workflow()
    make.expire_lease(lease.task_id)
    (poll,) = park_polls(api, 1)

    recover_lease(lease.task_id)

    assert poll.result(SOON_SECONDS).body["task"]["workflow_task_attempt"] == 2


def test_rolled_back_claim_hints_again(api: ApiClient) -> None:
    make.register()
    make.register("w-2")
    make.start()
    body = {"worker_id": "w-1", "task_queue": make.QUEUE, "timeout_seconds": 0}

    with fails_once(claims, "task_body"), gate_after(claims, "_lease") as gate:
        broken = api.begin("POST", "/api/worker/workflow-tasks/poll", body)
        gate.wait_until_reached()
        poll = begin_poll(api, seconds=WINDOW_SECONDS, worker_id="w-2")
        if not api.runtime.pool.has_single_writer:
            eventually(lambda: parked_count(api) == 1, "the poll is parked: the only task is locked")
        gate.open()
        assert broken.result(SOON_SECONDS).status == 500

    assert poll.result(SOON_SECONDS).body["poll_status"] == "leased"
    assert Task.objects.get().lease_owner == "w-2"
