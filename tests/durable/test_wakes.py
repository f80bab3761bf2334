"""When a run gets its next workflow task, and that it never gets two (docs/protocol/history.md 2.1 to 2.3)."""

from __future__ import annotations

import pytest
from django.utils import timezone

from durable.claims import Nothing
from durable.models import Run, Task
from durable.operations.repair_workflow import repair_workflow
from durable.operations.start_workflow import Started
from durable.states import TaskKind, TaskStatus
from durable.upkeep import sweeps
from tests import factories as make
from tests.clock import EngineClock
from tests.concurrency.scenes import open_workflow_tasks, run_with_leased_steps, workflow_tasks
from tests.factories import Lease
from tests.invariants import check_invariants


@pytest.mark.usefixtures("database")
def test_many_outcomes_while_a_task_is_leased_lead_to_one_further_task() -> None:
    make.register()
    started, steps = run_with_leased_steps(6)
    make.complete_step(steps[0])
    decision = make.lease_workflow()
    before = len(workflow_tasks(started))

    for step in steps[1:]:
        assert make.complete_step(step).next_task_id is None
    make.report_waiting(decision)

    assert len(workflow_tasks(started)) == before + 1
    following = make.lease_workflow()
    assert following.history[-1].sequence == make.run_of(started).last_history_sequence
    check_invariants()


@pytest.mark.usefixtures("database")
def test_many_outcomes_while_a_task_is_ready_lead_to_no_further_task() -> None:
    make.register()
    started, steps = run_with_leased_steps(6)

    created = [make.complete_step(step).next_task_id for step in steps]

    assert [task_id for task_id in created if task_id] == [open_workflow_tasks(started)[0].id]
    assert make.lease_workflow().history[-1].sequence == make.run_of(started).last_history_sequence
    check_invariants()


@pytest.mark.usefixtures("database")
def test_part_of_a_group_does_not_wake_the_run() -> None:
    make.register()
    started, (first, second, _) = run_with_leased_steps(3, group=True)

    created = [make.complete_step(first).next_task_id, make.fail_step(second).next_task_id]

    assert created == [None, None]
    assert open_workflow_tasks(started) == []
    check_invariants()


@pytest.mark.usefixtures("database")
def test_list_sent_again_after_its_last_member_closed_during_the_claim_changes_nothing() -> None:
    make.register()
    started, (first, last) = run_with_leased_steps(2, group=True)
    make.complete_step(first)
    decision = force_task(started)
    make.complete_step(last)

    make.complete(decision, *make.schedule_list(2))

    assert make.event_types(started.run.id).count("ActivityScheduled") == 2
    following = make.lease_workflow()
    assert following.history[-1].event_type == "ActivityCompleted"
    check_invariants()


def force_task(started: Started) -> Lease:
    """A workflow task while a list is unresolved: blocked runs get one by repair, and this one passes for blocked."""
    Run.objects.filter(id=started.run.id).update(blocked_at=timezone.now())
    repair_workflow(make.target(started.run.workflow_id))
    return make.lease_workflow()


@pytest.mark.usefixtures("database")
def test_nothing_new_since_the_claim_means_no_further_task() -> None:
    make.register()
    started, steps = run_with_leased_steps(2)
    make.complete_step(steps[0])

    make.report_waiting(make.lease_workflow())

    assert open_workflow_tasks(started) == []
    check_invariants()


def test_failed_task_is_tried_again_at_once_and_then_after_a_back_off_that_doubles(clock: EngineClock) -> None:
    make.register()
    started = make.start()
    delays = []

    for _ in range(8):
        make.report_failure(make.lease_workflow())
        (retry,) = open_workflow_tasks(started)
        delays.append((retry.available_at - clock.now).total_seconds())
        clock.turn_to(retry.available_at)
        sweeps.make_tasks_due()

    assert delays == [0, 2, 4, 8, 16, 32, 60, 60]
    assert make.lease_workflow().body["workflow_task_attempt"] == 9
    assert make.event_types(started.run.id) == ["StartAccepted", "WorkflowStarted"]
    check_invariants()


def test_wake_offers_a_task_that_is_backing_off_at_once(clock: EngineClock) -> None:
    make.register()
    started, steps = run_with_leased_steps(2)
    make.complete_step(steps[0])
    for _ in range(2):
        make.report_failure(make.lease_workflow())
    assert isinstance(make.try_poll(make.poll_request(TaskKind.WORKFLOW)), Nothing)

    make.complete_step(steps[1])

    lease = make.lease_workflow()
    assert lease.history[-1].sequence == make.run_of(started).last_history_sequence
    assert sweeps.make_tasks_due().handled == 0
    check_invariants()


def test_wake_leaves_the_place_of_a_ready_task_in_its_queue(clock: EngineClock) -> None:
    make.register()
    started, steps = run_with_leased_steps(2)
    make.complete_step(steps[0])
    (ready,) = open_workflow_tasks(started)
    clock.advance(5)

    make.complete_step(steps[1])

    assert Task.objects.get(id=ready.id).available_at == ready.available_at


@pytest.mark.usefixtures("database")
def test_replay_failure_blocks_the_run_until_repair() -> None:
    make.register()
    started = make.start()
    make.report_failure(make.lease_workflow(), "Workflow replay failed: mismatch")
    assert open_workflow_tasks(started) == []
    check_invariants()

    repair_workflow(make.target(started.run.workflow_id))

    assert make.run_of(started).blocked_at is None
    assert make.lease_workflow().history[-1].event_type == "RepairRequested"
    check_invariants()


@pytest.mark.usefixtures("database")
def test_outcome_wakes_a_blocked_run() -> None:
    make.register()
    started, steps = run_with_leased_steps(2)
    make.complete_step(steps[0])
    make.report_failure(make.lease_workflow(), "Workflow replay failed: mismatch")
    assert open_workflow_tasks(started) == []

    make.complete_step(steps[1])

    assert make.run_of(started).blocked_at is None
    assert [task.status for task in open_workflow_tasks(started)] == [TaskStatus.READY]
    check_invariants()


@pytest.mark.usefixtures("database")
def test_outcome_during_a_lease_does_not_save_a_run_whose_replay_fails() -> None:
    make.register()
    started, steps = run_with_leased_steps(2)
    make.complete_step(steps[0])
    decision = make.lease_workflow()
    make.complete_step(steps[1])

    make.report_failure(decision, "Workflow replay failed: mismatch")

    assert make.run_of(started).blocked_at is not None
    assert open_workflow_tasks(started) == []
    check_invariants()
