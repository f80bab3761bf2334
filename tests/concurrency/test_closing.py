"""Whoever closes a run or a step against whoever reports about it: one end, one typed refusal (docs/concurrency.md)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction

from durable.changes import RunChanges
from durable.models import ActivityAttempt, HistoryEvent, Task
from durable.operations.start_workflow import Started
from durable.operations.stop_workflow import cancel_workflow, terminate_workflow
from durable.operations.time_out_activity import time_out_activity
from durable.refusals import Reason, Refusal
from durable.sql import claiming
from durable.states import AttemptStatus, RunStatus, TaskStatus
from tests import factories as make
from tests.concurrency.scenes import run_with_leased_steps
from tests.concurrency.tools import (
    Gate,
    all_at_once,
    gate_after,
    has_row_locks,
    impatient,
    in_thread,
    wait_until_blocked,
)
from tests.factories import Lease
from tests.invariants import check_invariants

pytestmark = pytest.mark.usefixtures("database")


def cancel(started: Started) -> object:
    return cancel_workflow(make.target(started.run.workflow_id), reason=None)


def terminal_events(started: Started) -> list[str]:
    ends = ("WorkflowCompleted", "WorkflowFailed", "WorkflowCancelled", "WorkflowTerminated", "WorkflowTimedOut")
    return [event for event in make.event_types(started.run.id) if event in ends]


def refusal_of(future: object) -> Refusal:
    with pytest.raises(Refusal) as caught:
        future.result(20)  # type: ignore[attr-defined]
    return caught.value


def test_complete_vs_cancel_refuses_the_cancel_that_waited_for_the_completion() -> None:
    make.register()
    started = make.start()
    lease = make.lease_workflow()

    with gate_after(RunChanges, "save") as gate:
        completion = in_thread(make.complete, lease, make.finish())
        gate.wait_until_reached()
        stop = in_thread(cancel, started)
        wait_until_blocked()
        gate.open()
        completed, refusal = completion.result(20), refusal_of(stop)

    assert completed.run_status == RunStatus.COMPLETED
    assert refusal.reason == Reason.RUN_NOT_ACTIVE
    assert refusal.fields["run_status"] == RunStatus.COMPLETED
    assert terminal_events(started) == ["WorkflowCompleted"]
    check_invariants()


def test_complete_vs_cancel_refuses_the_completion_that_waited_for_the_cancel_with_its_receipt() -> None:
    make.register()
    started = make.start()
    lease = make.lease_workflow()

    with gate_after(RunChanges, "save") as gate:
        stop = in_thread(cancel, started)
        gate.wait_until_reached()
        completion = in_thread(make.complete, lease, make.finish())
        wait_until_blocked()
        gate.open()
        stop.result(20)
        refusal = refusal_of(completion)

    assert refusal.reason == Reason.RUN_CLOSED
    receipt = {name: refusal.fields[name] for name in ("recorded", "task_id", "workflow_task_attempt", "run_id")}
    assert receipt == {
        "recorded": False,
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
        "run_id": started.run.id,
    }
    assert terminal_events(started) == ["WorkflowCancelled"]
    check_invariants()


def test_complete_vs_cancel_ends_once_when_everybody_comes_at_once() -> None:
    make.register()
    started, (step,) = run_with_leased_steps(1)
    reference = make.target(started.run.workflow_id)

    outcomes = all_at_once(
        [
            lambda: cancel_workflow(reference, reason=None),
            lambda: terminate_workflow(reference, reason=None),
            lambda: cancel_workflow(reference, reason="again"),
            lambda: make.complete_step(step),
        ]
    )

    reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, Refusal)]
    assert reasons.count(Reason.RUN_NOT_ACTIVE) == 2
    assert set(reasons) <= {Reason.RUN_NOT_ACTIVE, Reason.RUN_CANCELLED, Reason.RUN_TERMINATED}
    assert len(terminal_events(started)) == 1
    check_invariants()


def test_activity_complete_vs_timeout_leaves_a_completed_step_alone() -> None:
    make.register()
    started, step = run_with_deadline_ahead()

    with gate_after(RunChanges, "save") as gate:
        completion = in_thread(make.complete_step, step)
        gate.wait_until_reached()
        sweep = in_thread(time_out_activity, step.task_id)
        if has_row_locks():
            # Upkeep waits for nobody's run: there are others to look after.
            assert sweep.result(20) is False
        gate.open()
        completed, was_timed_out = completion.result(20), sweep.result(20) or time_out_activity(step.task_id)

    assert completed.outcome == "completed"
    assert was_timed_out is False
    assert make.event_types(started.run.id)[-1] == "ActivityCompleted"
    check_invariants()


def test_activity_complete_vs_timeout_refuses_the_report_that_waited_for_the_time_out() -> None:
    make.register()
    started, step = run_with_deadline_ahead()

    with gate_after(RunChanges, "save") as gate:
        sweep = in_thread(time_out_activity, step.task_id)
        gate.wait_until_reached()
        completion = in_thread(make.complete_step, step)
        wait_until_blocked()
        gate.open()
        was_timed_out, refusal = sweep.result(20), refusal_of(completion)

    assert was_timed_out is True
    assert refusal.reason == Reason.STALE_ATTEMPT
    assert refusal.fields["recorded"] is False
    assert make.event_types(started.run.id)[-2:] == ["ActivityStarted", "ActivityTimedOut"]
    check_invariants()


def run_with_deadline_ahead() -> tuple[Started, Lease]:
    """A leased activity whose start-to-close deadline has just passed, before anybody noticed."""
    started = make.start()
    make.complete(make.lease_workflow(), make.schedule(start_to_close_timeout=60))
    step = make.lease_activity()
    past = make.task_of(step).leased_at - timedelta(seconds=1)
    Task.objects.filter(id=step.task_id).update(start_to_close_at=past, deadline_at=past)
    return started, step


@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_cancel_vs_uncommitted_claim_cancels_what_the_claim_leased(kind: str) -> None:
    make.register()
    started = make.start()
    if kind == "activity":
        make.complete(make.lease_workflow(), make.schedule())
    claim_of = make.lease_workflow if kind == "workflow" else make.lease_activity

    with gate_after(claiming, "lock_candidate") as gate:
        claim = in_thread(claim_of)
        gate.wait_until_reached()
        stop = in_thread(cancel, started)
        wait_until_blocked()
        gate.open()
        lease = claim.result(20)
        stop.result(20)

    report = make.report_waiting if kind == "workflow" else make.complete_step
    with pytest.raises(Refusal) as caught:
        report(lease)
    assert caught.value.reason == (Reason.RUN_CLOSED if kind == "workflow" else Reason.RUN_CANCELLED)
    assert caught.value.fields["recorded"] is False
    assert make.task_of(lease).status == TaskStatus.CANCELLED
    assert terminal_events(started) == ["WorkflowCancelled"]
    if kind == "activity":
        assert ActivityAttempt.objects.get().status == AttemptStatus.CANCELLED
        recorded = make.event_types(started.run.id)
        assert recorded[-4:] == ["CancelRequested", "ActivityStarted", "ActivityCancelled", "WorkflowCancelled"]
    check_invariants()


def test_completion_that_ends_the_run_cancels_what_an_uncommitted_claim_leased() -> None:
    make.register()
    started = make.start()
    make.complete(make.lease_workflow(), make.schedule(), make.schedule())
    make.complete_step(make.lease_activity())
    last = make.lease_workflow()

    with gate_after(claiming, "lock_candidate") as gate:
        claim = in_thread(make.lease_activity)
        gate.wait_until_reached()
        completion = in_thread(make.complete, last, make.finish())
        wait_until_blocked()
        gate.open()
        step = claim.result(20)
        completion.result(20)

    with pytest.raises(Refusal) as caught:
        make.complete_step(step)
    assert caught.value.reason == Reason.RUN_CLOSED
    assert make.task_of(step).status == TaskStatus.CANCELLED
    assert ActivityAttempt.objects.get(task_id=step.task_id).status == AttemptStatus.CANCELLED
    assert make.run_of(started).status == RunStatus.COMPLETED
    check_invariants()


def test_close_reopen_neighbours_wait_for_nobody() -> None:
    make.register()
    first, second = make.start(), make.start()
    leases = [make.lease_workflow(), make.lease_workflow()]
    starting = Gate()

    def start_and_stay() -> None:
        with transaction.atomic():
            make.start()
            starting.stop_here()

    third = in_thread(start_and_stay)
    starting.wait_until_reached()
    if not has_row_locks():
        # The one writer: nothing is written beside it, so there is nobody to wait beside.
        starting.open()
        third.result(20)
    with gate_after(RunChanges, "save") as gate:
        # Its task is closed and the next one exists, uncommitted.
        reopening = in_thread(make.report_failure, leases[0])
        gate.wait_until_reached()
        if not has_row_locks():
            gate.open()
            reopening.result(20)
        with impatient():
            make.report_failure(leases[1])
            make.complete(make.lease_workflow(), make.schedule())
            make.complete_step(make.lease_activity())
        gate.open()
        reopening.result(20)
    starting.open()
    third.result(20)

    assert make.run_of(first).open_task_id
    assert make.run_of(second).open_task_id
    assert HistoryEvent.objects.filter(event_type="ActivityCompleted").count() == 1
    check_invariants()
