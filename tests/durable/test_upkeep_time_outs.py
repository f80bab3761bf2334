"""The four time-outs of an activity and the retries after them, to the microsecond (history.md 9.2 and 9.3)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from durable.claims import Nothing
from durable.history.times import stamp
from durable.leases import Leased
from durable.models import ActivityAttempt, ActivityExecution, Failure, HistoryEvent, Task
from durable.operations.heartbeat_activity import heartbeat_activity
from durable.operations.make_task_due import make_task_due
from durable.operations.start_workflow import Started
from durable.refusals import Reason, Refusal
from durable.states import ActivityStatus, AttemptStatus, TaskKind, TaskStatus
from durable.upkeep import sweeps
from tests import factories as make
from tests.clock import MICROSECOND, EngineClock
from tests.concurrency.tools import gate_after, in_thread
from tests.factories import Lease
from tests.invariants import check_invariants
from tests.snapshot import changed_tables, take_snapshot

TWO_ATTEMPTS = {"max_attempts": 2, "backoff_seconds": [7]}


def scheduled(**fields: Any) -> Started:
    """A run with one activity that nobody has taken yet."""
    make.register()
    started = make.start()
    make.complete(make.lease_workflow(), make.schedule(**fields))
    return started


def claimed(**fields: Any) -> tuple[Started, Lease]:
    """A run with one activity, held by `w-1`."""
    started = scheduled(**fields)
    return started, make.lease_activity()


def activity_task() -> Task:
    """The newest task of the one activity."""
    return Task.objects.filter(kind=TaskKind.ACTIVITY).order_by("created_at", "id").last()


def last_event(started: Started) -> HistoryEvent:
    return HistoryEvent.objects.filter(run_id=started.run.id).order_by("sequence").last()


def poll_activity() -> Leased | Nothing:
    return make.try_poll(make.poll_request(TaskKind.ACTIVITY))


def sweep_at(clock: EngineClock, moment: datetime) -> tuple[int, int]:
    """How many time-outs a sweep enforces a microsecond before the moment, and at it."""
    clock.turn_to(moment - MICROSECOND)
    before = sweeps.time_out_activities().handled
    clock.turn_to(moment)
    return before, sweeps.time_out_activities().handled


# -- each clock --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["start_to_close", "heartbeat", "schedule_to_close"])
def test_fails_a_claimed_activity_whose_time_is_over(clock: EngineClock, kind: str) -> None:
    started, step = claimed(**{f"{kind}_timeout": 20})
    deadline = clock.now + timedelta(seconds=20)

    early, at_deadline = sweep_at(clock, deadline)

    assert (early, at_deadline) == (0, 1)
    ended = last_event(started)
    assert ended.event_type == "ActivityTimedOut"
    expected = {
        "timeout_kind": kind,
        "failure_category": "timeout",
        "activity_attempt_id": step.body["activity_attempt_id"],
        "attempt_number": 1,
        "deadline": stamp(deadline),
        "failure_id": Failure.objects.get().id,
    }
    assert {name: ended.payload[name] for name in expected} == expected
    assert make.event_types(started.run.id)[-2] == "ActivityStarted"
    assert ActivityAttempt.objects.get().status == AttemptStatus.EXPIRED
    assert ActivityExecution.objects.get().status == ActivityStatus.FAILED
    assert make.task_of(step).status == TaskStatus.CANCELLED
    assert make.run_of(started).open_task_id
    check_invariants()


@pytest.mark.parametrize("kind", ["schedule_to_start", "schedule_to_close"])
def test_fails_an_activity_that_nobody_polled_for(clock: EngineClock, kind: str) -> None:
    started = scheduled(**{f"{kind}_timeout": 20})

    early, at_deadline = sweep_at(clock, clock.now + timedelta(seconds=20))

    assert (early, at_deadline) == (0, 1)
    ended = last_event(started)
    assert (ended.event_type, ended.payload["timeout_kind"]) == ("ActivityTimedOut", kind)
    assert "ActivityStarted" not in make.event_types(started.run.id)
    assert isinstance(poll_activity(), Nothing)
    assert make.run_of(started).open_task_id
    check_invariants()


def test_claim_ends_the_wait_that_schedule_to_start_bounds(clock: EngineClock) -> None:
    started, _ = claimed(schedule_to_start_timeout=20)

    clock.advance(40)

    assert sweeps.time_out_activities().handled == 0
    assert last_event(started).event_type == "ActivityScheduled"


def test_activity_without_time_outs_waits_for_ever(clock: EngineClock) -> None:
    started = scheduled()

    clock.advance(timedelta(days=365))

    assert sweeps.time_out_activities().handled == 0
    assert activity_task().deadline_at is None
    assert last_event(started).event_type == "ActivityScheduled"


def test_heartbeat_moves_its_own_deadline_and_no_other(clock: EngineClock) -> None:
    started, step = claimed(heartbeat_timeout=20, start_to_close_timeout=50)
    begun = clock.now
    clock.advance(15)
    heartbeat_activity(step.report, None)
    clock.advance(15)
    assert sweeps.time_out_activities().handled == 0
    heartbeat_activity(step.report, None)

    early, at_deadline = sweep_at(clock, begun + timedelta(seconds=50))

    assert (early, at_deadline) == (0, 1)
    # 20 s after the last heartbeat and 50 s after the claim are the same moment: the shorter of the two kinds counts.
    assert last_event(started).payload["timeout_kind"] == "heartbeat"


@pytest.mark.parametrize(
    ("fields", "is_claimed", "expected"),
    [
        (("schedule_to_close", "schedule_to_start"), False, "schedule_to_close"),
        (("schedule_to_start",), False, "schedule_to_start"),
        (("schedule_to_close", "heartbeat", "start_to_close"), True, "schedule_to_close"),
        (("schedule_to_close", "start_to_close"), True, "schedule_to_close"),
        (("heartbeat", "start_to_close"), True, "heartbeat"),
        (("start_to_close", "schedule_to_start"), True, "start_to_close"),
    ],
)
def test_counts_the_first_of_several_passed_deadlines(
    clock: EngineClock, fields: tuple[str, ...], is_claimed: bool, expected: str
) -> None:
    started = scheduled(**{f"{name}_timeout": 20 for name in fields})
    if is_claimed:
        make.lease_activity()

    clock.advance(60)
    sweeps.time_out_activities()

    assert last_event(started).payload["timeout_kind"] == expected


# -- retries -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["start_to_close", "heartbeat", "schedule_to_start"])
def test_tries_again_while_attempts_remain(clock: EngineClock, kind: str) -> None:
    started = scheduled(**{f"{kind}_timeout": 20}, retry_policy=TWO_ATTEMPTS)
    step = None if kind == "schedule_to_start" else make.lease_activity()

    clock.advance(20)
    sweeps.time_out_activities()

    retry, task = last_event(started), activity_task()
    expected = {
        "retry_reason": "timeout",
        "timeout_kind": kind,
        "retry_after_attempt": 1,
        "retry_backoff_seconds": 7,
        "max_attempts": 2,
        "activity_attempt_id": step.body["activity_attempt_id"] if step else None,
        "retry_task_id": task.id,
        "retry_available_at": stamp(clock.now + timedelta(seconds=7)),
    }
    assert retry.event_type == "ActivityRetryScheduled"
    assert {name: retry.payload[name] for name in expected} == expected
    assert (task.status, task.due, task.attempt_count) == (TaskStatus.READY, False, 1)
    assert (task.start_to_close_at, task.heartbeat_at) == (None, None)
    assert ActivityExecution.objects.get().status == ActivityStatus.PENDING
    assert make.run_of(started).open_task_id is None
    check_invariants()


@pytest.mark.parametrize("kind", ["start_to_close", "heartbeat", "schedule_to_start"])
def test_fails_when_the_last_attempt_times_out(clock: EngineClock, kind: str) -> None:
    started = scheduled(**{f"{kind}_timeout": 20}, retry_policy=TWO_ATTEMPTS)
    for _ in range(2):
        if kind != "schedule_to_start":
            make.lease_activity()
        clock.advance(20)
        sweeps.time_out_activities()
        clock.advance(7)
        sweeps.make_tasks_due()

    assert last_event(started).event_type == "ActivityTimedOut"
    assert make.event_types(started.run.id).count("ActivityRetryScheduled") == 1
    check_invariants()


def test_schedule_to_close_is_final_however_many_attempts_remain(clock: EngineClock) -> None:
    started, _ = claimed(schedule_to_close_timeout=20, retry_policy={"max_attempts": 9})

    clock.advance(20)
    sweeps.time_out_activities()

    assert last_event(started).event_type == "ActivityTimedOut"


def test_schedule_to_start_of_a_retry_counts_from_its_back_off(clock: EngineClock) -> None:
    started, step = claimed(schedule_to_start_timeout=20, retry_policy=TWO_ATTEMPTS)
    make.fail_step(step)

    early, at_deadline = sweep_at(clock, clock.now + timedelta(seconds=7 + 20))

    assert (early, at_deadline) == (0, 1)
    assert last_event(started).payload["timeout_kind"] == "schedule_to_start"


@pytest.mark.parametrize("reason", ["failure", "timeout"])
def test_offers_a_retry_at_its_time_and_never_a_microsecond_early(clock: EngineClock, reason: str) -> None:
    started, step = claimed(start_to_close_timeout=20, retry_policy={"max_attempts": 3, "backoff_seconds": [7]})
    if reason == "failure":
        clock.advance(timedelta(microseconds=123_457))
        make.fail_step(step)
    else:
        clock.advance(20)
        sweeps.time_out_activities()
    available_at = clock.now + timedelta(seconds=7)

    clock.turn_to(available_at - MICROSECOND)
    before = take_snapshot()
    assert sweeps.make_tasks_due().handled == 0
    assert make_task_due(activity_task().id) is False
    assert isinstance(poll_activity(), Nothing)
    assert changed_tables(before, take_snapshot()) == []
    clock.turn_to(available_at)
    assert sweeps.make_tasks_due().handled == 1

    again = make.lease_activity()
    assert again.body["attempt_number"] == 2
    make.complete_step(again)
    assert last_event(started).payload["attempt_number"] == 2
    check_invariants()


def test_schedule_to_close_during_back_off_times_the_step_out_with_one_wake(clock: EngineClock) -> None:
    started, step = claimed(schedule_to_close_timeout=20, retry_policy={"max_attempts": 3, "backoff_seconds": [60]})
    deadline = clock.now + timedelta(seconds=20)
    clock.advance(5)
    make.fail_step(step)

    early, at_deadline = sweep_at(clock, deadline)
    clock.advance(120)
    sweeps.make_tasks_due()
    sweeps.time_out_activities()

    assert (early, at_deadline) == (0, 1)
    assert make.event_types(started.run.id)[-2:] == ["ActivityRetryScheduled", "ActivityTimedOut"]
    assert Task.objects.filter(run_id=started.run.id, kind=TaskKind.WORKFLOW, status=TaskStatus.READY).count() == 1
    assert isinstance(poll_activity(), Nothing)
    check_invariants()


# -- reports and races -------------------------------------------------------------------------------------------------


def test_late_report_of_a_timed_out_attempt_is_stale(clock: EngineClock) -> None:
    _, step = claimed(start_to_close_timeout=20, retry_policy=TWO_ATTEMPTS)
    clock.advance(20)
    sweeps.time_out_activities()

    with pytest.raises(Refusal) as caught:
        make.complete_step(step)

    assert caught.value.reason == Reason.STALE_ATTEMPT


def test_heartbeat_after_a_passed_deadline_stops_the_attempt_before_any_sweep(clock: EngineClock) -> None:
    _, step = claimed(start_to_close_timeout=20, heartbeat_timeout=20)
    clock.advance(20)
    before = take_snapshot()

    standing = heartbeat_activity(step.report, {"current": 1})

    assert (standing.can_continue, standing.reason) == (False, "heartbeat_timeout")
    assert changed_tables(before, take_snapshot()) == []


@pytest.mark.parametrize("kind", ["start_to_close", "heartbeat", "schedule_to_close"])
def test_paused_sweep_leaves_alone_what_completed_between_its_read_and_its_write(clock: EngineClock, kind: str) -> None:
    started, step = claimed(**{f"{kind}_timeout": 20})
    clock.advance(20)

    with gate_after(sweeps, "_due_ids") as gate:
        sweep = in_thread(sweeps.time_out_activities)
        gate.wait_until_reached()
        make.complete_step(step)
        before = take_snapshot()
        gate.open()
        swept = sweep.result(20)

    assert (swept.handled, swept.failed) == (0, 0)
    assert changed_tables(before, take_snapshot()) == []
    assert last_event(started).event_type == "ActivityCompleted"


def test_lost_lease_keeps_schedule_to_close_and_drops_the_attempts_own_deadlines(clock: EngineClock) -> None:
    started, step = claimed(start_to_close_timeout=350, heartbeat_timeout=320, schedule_to_close_timeout=900)
    close_at = clock.now + timedelta(seconds=900)
    clock.turn_to(make.task_of(step).lease_expires_at)

    sweeps.recover_leases()

    task = make.task_of(step)
    assert (task.start_to_close_at, task.heartbeat_at, task.deadline_at) == (None, None, close_at)
    early, at_deadline = sweep_at(clock, close_at)
    assert (early, at_deadline) == (0, 1)
    assert last_event(started).payload["timeout_kind"] == "schedule_to_close"
    check_invariants()
