"""Run and execution deadlines: who notices first closes the run, once (docs/protocol/history.md 10.2)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durable.claims import Nothing
from durable.history.times import stamp
from durable.models import ActivityAttempt, CheckpointReceipt, CompletionReceipt, Failure, HistoryEvent, Run
from durable.operations.start_workflow import Started
from durable.operations.time_out_run import time_out_run
from durable.refusals import Reason, Refusal
from durable.states import AttemptStatus, ClosedReason, RunStatus, TaskKind, TaskStatus
from durable.upkeep import sweeps
from tests import factories as make
from tests.clock import MICROSECOND, EngineClock
from tests.concurrency.tools import all_at_once, gate_after, in_thread
from tests.factories import Lease
from tests.invariants import check_invariants
from tests.snapshot import changed_tables, take_snapshot


def claimed(**options: Any) -> tuple[Started, Lease]:
    """A run with a time limit whose workflow task `w-1` holds."""
    make.register()
    started = make.start(**options)
    return started, make.lease_workflow()


def assert_timed_out(started: Started, kind: str) -> None:
    run = make.run_of(started)
    assert (run.status, run.closed_reason) == (RunStatus.FAILED, ClosedReason.TIMED_OUT)
    last = HistoryEvent.objects.filter(run_id=run.id).order_by("sequence").last()
    assert (last.event_type, last.payload["timeout_kind"]) == ("WorkflowTimedOut", kind)
    assert Failure.objects.get().failure_category == "timeout"
    check_invariants()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"run_timeout_seconds": 20}, "run_timeout"),
        ({"execution_timeout_seconds": 20}, "execution_timeout"),
        ({"run_timeout_seconds": 20, "execution_timeout_seconds": 60}, "run_timeout"),
        ({"run_timeout_seconds": 20, "execution_timeout_seconds": 20}, "execution_timeout"),
    ],
)
def test_closes_a_run_at_its_deadline_and_not_a_microsecond_before(
    clock: EngineClock, options: dict[str, int], kind: str
) -> None:
    started = make.start(**options)
    deadline = clock.now + timedelta(seconds=20)

    clock.turn_to(deadline - MICROSECOND)
    early = sweeps.time_out_runs().handled
    clock.turn_to(deadline)
    at_deadline = sweeps.time_out_runs().handled

    assert (early, at_deadline) == (0, 1)
    assert_timed_out(started, kind)


def test_closing_cancels_what_is_open_with_its_events(clock: EngineClock) -> None:
    started, lease = claimed(run_timeout_seconds=20)
    make.complete(lease, make.schedule(), make.schedule(), make.schedule())
    held = make.lease_activity()
    make.complete_step(make.lease_activity())
    decision = make.lease_workflow()

    clock.advance(20)
    sweeps.time_out_runs()

    recorded = make.event_types(started.run.id)[-4:]
    assert sorted(recorded[:3]) == ["ActivityCancelled", "ActivityCancelled", "ActivityStarted"]
    assert recorded[recorded.index("ActivityStarted") + 1] == "ActivityCancelled"
    assert {make.task_of(one).status for one in (held, decision)} == {TaskStatus.CANCELLED}
    assert ActivityAttempt.objects.get(task_id=held.task_id).status == AttemptStatus.CANCELLED
    assert_timed_out(started, "run_timeout")


def test_does_not_offer_a_run_past_its_deadline_before_any_sweep(clock: EngineClock) -> None:
    make.register()
    make.start(run_timeout_seconds=20)
    other = make.start()

    clock.advance(20)

    assert make.lease_workflow().body["run_id"] == other.run.id
    assert isinstance(make.try_poll(make.poll_request(TaskKind.WORKFLOW)), Nothing)


def test_does_not_offer_an_activity_of_a_run_past_its_deadline(clock: EngineClock) -> None:
    started, lease = claimed(run_timeout_seconds=20)
    make.complete(lease, make.schedule())

    clock.advance(20)

    assert isinstance(make.try_poll(make.poll_request(TaskKind.ACTIVITY)), Nothing)
    assert make.run_of(started).status == RunStatus.WAITING


REPORTS = {
    "complete": lambda lease: make.complete(lease, make.finish()),
    "complete badly": lambda lease: make.complete(lease),
    "checkpoint": lambda lease: make.checkpoint(lease, make.schedule()),
    "wait": make.report_waiting,
    "fail": make.report_failure,
}


@pytest.mark.parametrize("report", REPORTS)
def test_report_past_the_deadline_closes_the_run_and_is_refused_with_its_receipt(
    clock: EngineClock, report: str
) -> None:
    started, lease = claimed(run_timeout_seconds=20)
    clock.advance(20)

    with pytest.raises(Refusal) as caught:
        REPORTS[report](lease)

    assert caught.value.reason == Reason.RUN_CLOSED
    expected = {
        "recorded": False,
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
        "run_id": started.run.id,
        "run_status": "failed",
        "run_closed_reason": "timed_out",
        "run_closed_at": stamp(clock.now),
        "stop_reason": "run_failed",
        "task_status": "cancelled",
    }
    assert {name: caught.value.fields[name] for name in expected} == expected
    assert not CompletionReceipt.objects.exists()
    assert not CheckpointReceipt.objects.exists()
    assert_timed_out(started, "run_timeout")


def test_report_in_the_last_microsecond_is_recorded(clock: EngineClock) -> None:
    started, lease = claimed(run_timeout_seconds=20)
    clock.turn_to(make.run_of(started).deadline_at - MICROSECOND)

    make.complete(lease, make.finish())

    assert make.run_of(started).status == RunStatus.COMPLETED


def test_repeat_of_a_recorded_completion_stays_a_duplicate_past_the_deadline(clock: EngineClock) -> None:
    started, lease = claimed(run_timeout_seconds=20)
    make.complete(lease, make.schedule())
    clock.advance(20)

    again = make.complete(lease, make.schedule())

    assert again.is_duplicate
    assert make.run_of(started).status == RunStatus.WAITING


def test_activity_report_after_the_run_timed_out_is_refused(clock: EngineClock) -> None:
    _, lease = claimed(run_timeout_seconds=20)
    make.complete(lease, make.schedule())
    step = make.lease_activity()
    clock.advance(20)
    sweeps.time_out_runs()

    with pytest.raises(Refusal) as caught:
        make.complete_step(step)

    assert caught.value.reason == Reason.RUN_CLOSED
    assert caught.value.fields["run_closed_reason"] == "timed_out"


def test_run_of_a_worker_that_vanished_is_closed_although_its_lease_ran_out_first(clock: EngineClock) -> None:
    started, _ = claimed(run_timeout_seconds=90)
    clock.advance(60)
    assert sweeps.recover_leases().handled == 1

    clock.advance(30)
    sweeps.time_out_runs()

    assert_timed_out(started, "run_timeout")


def test_paused_sweep_leaves_alone_a_run_that_ended_between_its_read_and_its_write(clock: EngineClock) -> None:
    started, lease = claimed(run_timeout_seconds=20)
    deadline = make.run_of(started).deadline_at
    clock.turn_to(deadline - MICROSECOND)
    Run.objects.filter(id=started.run.id).update(deadline_at=clock.now)

    with gate_after(sweeps, "_due_ids") as gate:
        sweep = in_thread(sweeps.time_out_runs)
        gate.wait_until_reached()
        Run.objects.filter(id=started.run.id).update(deadline_at=deadline)
        make.complete(lease, make.finish())
        before = take_snapshot()
        gate.open()
        swept = sweep.result(20)

    assert (swept.handled, swept.failed) == (0, 0)
    assert changed_tables(before, take_snapshot()) == []
    assert make.run_of(started).status == RunStatus.COMPLETED


def test_two_sweeps_at_once_close_a_run_once(clock: EngineClock) -> None:
    started = make.start(run_timeout_seconds=20)
    clock.advance(20)

    outcomes = all_at_once([lambda: time_out_run(started.run.id)] * 4)

    assert sorted(outcomes) == [False, False, False, True]
    assert_timed_out(started, "run_timeout")
