"""Timers fire at their time and never before, wake their run, and end with it (docs/protocol/history.md 5.3, 10.1)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durable.history.times import stamp
from durable.models import HistoryEvent, Run, Timer
from durable.operations.fire_timer import fire_timer
from durable.operations.repair_workflow import repair_workflow
from durable.operations.stop_workflow import cancel_workflow, terminate_workflow
from durable.states import TimerStatus
from durable.upkeep import sweeps
from tests import factories as make
from tests.client import ApiClient
from tests.clock import MICROSECOND, EngineClock
from tests.concurrency.tools import all_at_once
from tests.factories import sleep
from tests.invariants import check_invariants
from tests.protocol.closings import leased_task
from tests.protocol.reports import send
from tests.snapshot import nothing_recorded

Command = dict[str, Any]


def in_list(*commands: Command, kind: str = "mixed", base: int = 1) -> list[Command]:
    """The commands as leaves of one list group."""
    prefix = {"mixed": "parallel-calls", "timer": "parallel-timers"}[kind]
    leaves = []
    for index, command in enumerate(commands):
        entry = {
            "parallel_group_id": f"{prefix}:{base}:{len(commands)}",
            "parallel_group_kind": kind,
            "parallel_group_base_sequence": base,
            "parallel_group_size": len(commands),
            "parallel_group_index": index,
        }
        leaves.append({**command, **entry, "parallel_group_path": [entry]})
    return leaves


def waiting(*commands: Command) -> Run:
    """A run whose code has asked for these, and waits."""
    lease = leased_task()
    make.complete(lease, *commands)
    return Run.objects.get(id=lease.body["run_id"])


def test_fires_at_its_time_and_not_a_microsecond_before(clock: EngineClock) -> None:
    run = waiting(sleep(5))
    fire_at = clock.now + timedelta(seconds=5)

    clock.turn_to(fire_at - MICROSECOND)
    early = sweeps.fire_timers().handled
    clock.turn_to(fire_at)
    in_time = sweeps.fire_timers().handled

    assert (early, in_time, sweeps.fire_timers().handled) == (0, 1, 0)
    timer = Timer.objects.get()
    assert (timer.status, timer.closed_at, timer.due_at) == (TimerStatus.FIRED, fire_at, None)
    scheduled, fired = HistoryEvent.objects.filter(run_id=run.id).order_by("sequence")[2:]
    expected = {"timer_id": timer.id, "sequence": 1, "delay_seconds": 5, "fire_at": stamp(fire_at)}
    assert (scheduled.event_type, scheduled.payload) == ("TimerScheduled", expected)
    assert (fired.event_type, fired.payload) == ("TimerFired", {**expected, "fired_at": stamp(fire_at)})
    assert make.lease_workflow().body["last_history_sequence"] == fired.sequence
    check_invariants()


def test_fires_a_timer_of_no_length_in_a_task_of_its_own(clock: EngineClock) -> None:
    run = waiting(sleep(0))
    assert (run.open_task_id, run.pending_timer_count) == (None, 1)

    assert sweeps.fire_timers().handled == 1

    run.refresh_from_db()
    assert run.open_task_id is not None
    check_invariants()


def test_fires_several_due_timers_of_one_run_for_one_task(clock: EngineClock) -> None:
    run = waiting(sleep(2), sleep(1), sleep(3))
    clock.advance(10)

    assert sweeps.fire_timers().handled == 3

    fired = HistoryEvent.objects.filter(run_id=run.id, event_type="TimerFired").order_by("sequence")
    assert [event.payload["delay_seconds"] for event in fired] == [1, 2, 3]
    assert make.lease_workflow().body["last_history_sequence"] == fired.last().sequence
    check_invariants()


def test_fires_while_a_worker_holds_the_task_and_is_shown_to_the_next(clock: EngineClock) -> None:
    lease = leased_task()
    make.complete(lease, sleep(5), make.schedule())
    make.complete_step(make.lease_activity())
    held = make.lease_workflow()
    clock.advance(5)

    assert sweeps.fire_timers().handled == 1

    assert make.report_waiting(held).next_task_id is not None
    check_invariants()


def test_wakes_only_when_the_whole_list_is_over(clock: EngineClock) -> None:
    run = waiting(*in_list(sleep(1), make.schedule()))
    clock.advance(1)

    assert sweeps.fire_timers().handled == 1
    run.refresh_from_db()
    assert run.open_task_id is None
    make.complete_step(make.lease_activity())

    run.refresh_from_db()
    assert run.open_task_id is not None
    fired = HistoryEvent.objects.get(run_id=run.id, event_type="TimerFired").payload
    assert fired["parallel_group_path"][0]["parallel_group_index"] == 0
    check_invariants()


def test_ignores_a_list_of_timers_that_is_sent_again(clock: EngineClock) -> None:
    leaves = in_list(sleep(1), sleep(2), kind="timer")
    lease = leased_task()
    make.complete(lease, *leaves, make.schedule())
    make.complete_step(make.lease_activity())

    make.complete(make.lease_workflow(), *leaves)

    assert Timer.objects.count() == 2
    check_invariants()


@pytest.mark.parametrize("delay", [None, -1, 1.5, "soon", True, 315_360_001])
def test_refuses_what_is_no_delay(api: ApiClient, delay: Any) -> None:
    lease = leased_task()

    with nothing_recorded():
        response = send(api, lease, "complete", commands=[sleep(delay)])

    assert (response.status, list(response.body["errors"])) == (422, ["commands.0.delay_seconds"])


def test_refuses_a_delay_on_another_command(api: ApiClient) -> None:
    response = send(api, leased_task(), "complete", commands=[make.schedule(delay_seconds=3)])

    assert (response.status, list(response.body["errors"])) == (422, ["commands.0.delay_seconds"])


def test_fails_the_run_over_pending_timers(api: ApiClient, override_durable: Any) -> None:
    override_durable(PENDING_TIMER_COUNT=2)

    response = send(api, leased_task(), "complete", commands=[sleep()] * 3)

    assert (response.status, response.body["run_status"]) == (200, "failed")
    failed = HistoryEvent.objects.get(event_type="WorkflowFailed").payload
    assert (failed["structural_limit_kind"], failed["structural_limit_value"]) == ("pending_timer_count", 3)
    assert not Timer.objects.exists()
    check_invariants()


@pytest.mark.parametrize("is_new", [True, False])
def test_forgets_its_timers_silently_when_the_run_completes(api: ApiClient, is_new: bool) -> None:
    lease = leased_task()
    if is_new:
        make.complete(lease, sleep(), make.finish())
    else:
        make.complete(lease, sleep(), make.schedule())
        make.complete_step(make.lease_activity())
        make.complete(make.lease_workflow(), make.finish())

    assert Timer.objects.get().status == TimerStatus.CANCELLED
    assert "TimerCancelled" not in make.event_types(lease.body["run_id"])
    check_invariants()


@pytest.mark.parametrize("stop", [cancel_workflow, terminate_workflow])
def test_records_the_timers_that_a_stopped_run_loses(clock: EngineClock, stop: Any) -> None:
    run = waiting(sleep())

    stop(make.target(run.workflow_id), reason=None)

    assert Timer.objects.get().status == TimerStatus.CANCELLED
    event = HistoryEvent.objects.get(run_id=run.id, event_type="TimerCancelled")
    assert event.payload["cancelled_at"] == stamp(clock.now)
    clock.advance(10)
    assert sweeps.fire_timers().handled == 0
    check_invariants()


def test_records_the_timers_that_a_timed_out_run_loses(clock: EngineClock) -> None:
    make.register()
    started = make.start(run_timeout_seconds=3)
    make.complete(make.lease_workflow(), sleep(5))
    clock.advance(5)

    assert sweeps.time_out_runs().handled == 1

    assert "TimerCancelled" in make.event_types(make.run_of(started).id)
    assert sweeps.fire_timers().handled == 0
    check_invariants()


def test_does_not_call_a_run_stuck_that_waits_for_a_timer(clock: EngineClock) -> None:
    run = waiting(sleep())

    repair_workflow(make.target(run.workflow_id))

    run.refresh_from_db()
    assert run.open_task_id is None


def test_fires_once_when_two_processes_find_it(clock: EngineClock) -> None:
    run = waiting(sleep(1))
    clock.advance(1)
    timer_id = Timer.objects.get().id

    fired = all_at_once([lambda: fire_timer(timer_id)] * 4)

    assert sorted(fired)[-1] is True
    assert make.event_types(run.id).count("TimerFired") == 1
    check_invariants()


def test_says_that_a_run_waits_for_a_timer(api: ApiClient) -> None:
    run = waiting(sleep())

    described = api.get(f"/api/workflows/{run.workflow_id}")

    assert (described.body["wait_kind"], described.body["wait_reason"]) == ("timer", "Waiting for 1 timers.")
