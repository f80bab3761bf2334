"""Claims against appenders, run locks and other claims (docs/concurrency.md, "Claims" and "Barrier tests")."""

from __future__ import annotations

import pytest

from durable.changes import RunChanges
from durable.leases import Leased
from durable.models import Task
from durable.sql import claiming, locking
from durable.states import TaskKind
from tests import factories as make
from tests.concurrency.scenes import open_workflow_tasks, run_with_leased_steps, run_with_ready_task_and_leased_step
from tests.concurrency.tools import (
    all_at_once,
    gate_after,
    gate_before,
    has_row_locks,
    held_by_reader,
    held_run,
    impatient,
    in_thread,
    wait_until_blocked,
)
from tests.invariants import check_invariants

pytestmark = pytest.mark.usefixtures("database")


def test_claim_snapshot_vs_append_includes_what_was_committed_before_the_row_lock() -> None:
    make.register()
    started, step = run_with_ready_task_and_leased_step()
    # SQLite's claim holds the only write transaction by then: it is stopped between its look and its transaction.
    before_lock = "lock_candidate" if has_row_locks() else "probe"
    gated = gate_before if has_row_locks() else gate_after

    with gated(claiming, before_lock) as gate:
        claim = in_thread(make.lease_workflow)
        gate.wait_until_reached()
        make.complete_step(step)
        gate.open()
        lease = claim.result(20)

    run, task = make.run_of(started), make.task_of(lease)
    assert task.claimed_history_sequence == run.last_history_sequence
    assert [event.sequence for event in lease.history] == list(range(1, run.last_history_sequence + 1))


def test_claim_snapshot_vs_append_shows_what_came_after_the_row_lock_to_the_next_claim() -> None:
    make.register()
    started, step = run_with_ready_task_and_leased_step()

    with gate_after(claiming, "lock_candidate") as gate:
        claim = in_thread(make.lease_workflow)
        gate.wait_until_reached()
        outcome = in_thread(make.complete_step, step)
        wait_until_blocked()
        gate.open()
        lease, _ = claim.result(20), outcome.result(20)

    run, task = make.run_of(started), make.task_of(lease)
    assert task.claimed_history_sequence < run.wake_sequence
    assert lease.history[-1].sequence == task.claimed_history_sequence
    make.report_waiting(lease)
    following = make.lease_workflow()
    assert following.history[-1].sequence == run.last_history_sequence
    check_invariants()


def test_activity_outcome_vs_claim_creates_the_next_task_after_the_waiting_report() -> None:
    make.register()
    started, step = run_with_ready_task_and_leased_step()

    with gate_after(locking, "lock_task") as gate:
        outcome = in_thread(make.complete_step, step)
        gate.wait_until_reached()
        claim = in_thread(make.lease_workflow)
        if has_row_locks():
            # The task is ready and nobody holds its row: the claim takes it under the appender's nose.
            lease = claim.result(20)
        gate.open()
        outcome.result(20)
    lease = claim.result(20)

    if has_row_locks():
        assert make.task_of(lease).claimed_history_sequence < make.run_of(started).wake_sequence
        make.report_waiting(lease)
        lease = make.lease_workflow()
    assert lease.history[-1].sequence == make.run_of(started).wake_sequence
    check_invariants()


def test_two_leaves_one_wake_when_the_second_waits_for_the_first() -> None:
    make.register()
    started, (first, second) = run_with_leased_steps(2, group=True)

    with gate_after(RunChanges, "save") as gate:
        one = in_thread(make.complete_step, first)
        gate.wait_until_reached()
        other = in_thread(make.complete_step, second)
        wait_until_blocked()
        gate.open()
        created = [one.result(20).next_task_id, other.result(20).next_task_id]

    assert created == [None, open_workflow_tasks(started)[0].id]
    check_invariants()


def test_two_leaves_one_wake_when_all_members_of_a_group_complete_at_once() -> None:
    make.register()
    started, steps = run_with_leased_steps(6, group=True)

    outcomes = all_at_once([lambda step=step: make.complete_step(step) for step in steps])

    created = [outcome.next_task_id for outcome in outcomes if outcome.next_task_id]
    assert created == [task.id for task in open_workflow_tasks(started)]
    assert len(created) == 1
    check_invariants()


def test_second_claim_gets_next_while_the_first_is_uncommitted() -> None:
    make.register()
    make.register("w-2", supported_workflow_types=["five", "other"])
    expired = make.start()
    make.expire_lease(make.lease_workflow().task_id)
    first, *following = make.start(), make.start(workflow_type="other"), make.start()

    with gate_after(claiming, "lock_candidate") as gate:
        one = in_thread(make.lease_workflow)
        gate.wait_until_reached()
        if has_row_locks():
            with impatient():
                others = [make.lease_workflow("w-2"), make.lease_workflow("w-2")]
        gate.open()
        one.result(20)
    if not has_row_locks():
        others = [make.lease_workflow("w-2"), make.lease_workflow("w-2")]

    assert one.result().body["run_id"] == first.run.id
    assert {lease.body["run_id"] for lease in others} == {started.run.id for started in following}
    assert Task.objects.get(run_id=expired.run.id).lease_owner == "w-1"


def test_second_claim_gets_next_when_every_poller_comes_at_once() -> None:
    make.register()
    runs = {make.start().run.id for _ in range(12)}

    leases = all_at_once([make.lease_workflow] * 12)

    assert {lease.body["run_id"] for lease in leases} == runs
    check_invariants()


@pytest.mark.parametrize("kind", [TaskKind.WORKFLOW, TaskKind.ACTIVITY])
def test_claim_ignores_run_lock_of_its_task(kind: TaskKind) -> None:
    make.register()
    started = make.start()
    if kind == TaskKind.ACTIVITY:
        make.complete(make.lease_workflow(), make.schedule())

    hold = held_run if has_row_locks() else held_by_reader
    with hold(started.run.id), impatient():
        outcome = make.try_poll(make.poll_request(kind))

    assert isinstance(outcome, Leased)
    assert outcome.claimed.facts.run.id == started.run.id
