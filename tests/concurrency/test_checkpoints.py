"""Checkpoints against appenders, callers and themselves (docs/concurrency.md 1, 10 and 11)."""

from __future__ import annotations

import pytest

from durable.changes import RunChanges
from durable.models import CheckpointReceipt
from durable.operations.checkpoint_workflow_task import WorkflowTaskCheckpointed
from durable.operations.recover_lease import recover_lease
from durable.operations.stop_workflow import cancel_workflow
from durable.refusals import Reason, Refusal
from tests import factories as make
from tests.concurrency.scenes import run_with_ready_task_and_leased_step
from tests.concurrency.tools import all_at_once, gate_after, in_thread, wait_until_blocked
from tests.invariants import check_invariants

pytestmark = pytest.mark.usefixtures("database")


def test_checkpoint_vs_outcome_owes_the_run_what_committed_while_it_waited() -> None:
    make.register()
    started, step = run_with_ready_task_and_leased_step()
    lease = make.lease_workflow()

    with gate_after(RunChanges, "save") as gate:
        outcome = in_thread(make.complete_step, step)
        gate.wait_until_reached()
        checkpoint = in_thread(make.checkpoint, lease, make.schedule(), start_sequence=3)
        wait_until_blocked()
        gate.open()
        outcome.result(20), checkpoint.result(20)

    assert make.event_types(started.run.id)[-2:] == ["ActivityCompleted", "ActivityScheduled"]
    assert make.task_of(lease).claimed_history_sequence < make.run_of(started).wake_sequence
    assert make.report_waiting(lease).next_task_id == make.lease_workflow().task_id
    check_invariants()


def test_checkpoint_vs_outcome_owes_the_run_what_waited_for_it() -> None:
    make.register()
    started, step = run_with_ready_task_and_leased_step()
    lease = make.lease_workflow()

    with gate_after(RunChanges, "save") as gate:
        checkpoint = in_thread(make.checkpoint, lease, make.schedule(), start_sequence=3)
        gate.wait_until_reached()
        outcome = in_thread(make.complete_step, step)
        wait_until_blocked()
        gate.open()
        checkpoint.result(20), outcome.result(20)

    # What came after the checkpoint is not shown to its claim, only to the next.
    assert make.task_of(lease).visible_sequence == make.run_of(started).wake_sequence - 2
    assert make.report_waiting(lease).next_task_id == make.lease_workflow().task_id
    check_invariants()


def test_same_checkpoint_at_once_is_recorded_once() -> None:
    make.register()
    started = make.start()
    lease = make.lease_workflow()

    outcomes = all_at_once([lambda: make.checkpoint(lease, make.schedule())] * 6)

    answers = [outcome for outcome in outcomes if isinstance(outcome, WorkflowTaskCheckpointed)]
    assert sorted(answer.is_duplicate for answer in answers) == [False] + [True] * 5
    assert len({answer.receipt.recorded_at for answer in answers}) == 1
    assert make.event_types(started.run.id).count("ActivityScheduled") == 1
    check_invariants()


def test_checkpoint_vs_cancel_refuses_the_checkpoint_that_waited_with_its_receipt() -> None:
    make.register()
    started = make.start()
    lease = make.lease_workflow()

    with gate_after(RunChanges, "save") as gate:
        stop = in_thread(cancel_workflow, make.target(started.run.workflow_id), reason=None)
        gate.wait_until_reached()
        checkpoint = in_thread(make.checkpoint, lease, make.schedule())
        wait_until_blocked()
        gate.open()
        stop.result(20)
        with pytest.raises(Refusal) as caught:
            checkpoint.result(20)

    assert (caught.value.reason, caught.value.fields["recorded"]) == (Reason.RUN_CLOSED, False)
    assert not CheckpointReceipt.objects.exists()
    check_invariants()


def test_checkpoint_vs_cancel_cancels_what_was_recorded() -> None:
    make.register()
    started = make.start()
    lease = make.lease_workflow()

    with gate_after(RunChanges, "save") as gate:
        checkpoint = in_thread(make.checkpoint, lease, make.schedule())
        gate.wait_until_reached()
        stop = in_thread(cancel_workflow, make.target(started.run.workflow_id), reason=None)
        wait_until_blocked()
        gate.open()
        checkpoint.result(20), stop.result(20)

    assert make.event_types(started.run.id)[2] == "ActivityScheduled"
    assert make.event_types(started.run.id)[-1] == "WorkflowCancelled"
    assert make.checkpoint(lease, make.schedule()).is_duplicate
    check_invariants()


def test_checkpoint_vs_recovery_one_wins() -> None:
    make.register()
    make.start()
    lease = make.lease_workflow()
    make.expire_lease(lease.task_id)

    outcomes = all_at_once([lambda: make.checkpoint(lease, make.schedule()), lambda: recover_lease(lease.task_id)])

    refused = outcomes[0]
    assert isinstance(refused, Refusal)
    assert refused.reason in (Reason.LEASE_EXPIRED, Reason.TASK_NOT_LEASED)
    check_invariants()
