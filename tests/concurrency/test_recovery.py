"""Recovery of expired leases against late reports, heartbeats, itself, deregistration (docs/concurrency.md 9, 20)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from unittest import mock

import pytest

from durable.changes import RunChanges
from durable.models import ActivityAttempt, HistoryEvent, Task, WorkerIncarnation
from durable.operations import heartbeat_activity, recover_lease
from durable.operations.deregister_worker import WorkerDeregistered, deregister_worker
from durable.operations.heartbeat_workflow_task import heartbeat_workflow_task
from durable.refusals import Reason, Refusal
from durable.sql.clock import read_clock
from durable.states import AttemptStatus, TaskKind, TaskStatus
from tests import factories as make
from tests.concurrency.scenes import expire_and_recover, run_with_leased_steps, workflow_tasks
from tests.concurrency.tools import all_at_once, gate_after, has_row_locks, in_thread, wait_until_blocked
from tests.factories import Lease
from tests.invariants import check_invariants

pytestmark = pytest.mark.usefixtures("database")

KINDS = pytest.mark.parametrize("kind", [TaskKind.WORKFLOW, TaskKind.ACTIVITY])


def leased(kind: TaskKind) -> Lease:
    """A lease of this kind, of a run of its own."""
    make.register()
    if kind == TaskKind.ACTIVITY:
        return run_with_leased_steps(1)[1][0]
    make.start()
    return make.lease_workflow()


def report(lease: Lease) -> object:
    """What its worker has to say at the end: the run goes on with the next step, or the step has its result."""
    if lease.body["task_kind"] == "workflow":
        return make.complete(lease, make.schedule())
    return make.complete_step(lease)


@contextmanager
def recovery_reads_clock(*, ahead: timedelta) -> Iterator[None]:
    """Recovery thinks that it is later: the lease ran out between a report's look at the clock and recovery's."""

    def later() -> datetime:
        return read_clock() + ahead

    with mock.patch.object(recover_lease, "read_clock", later):
        yield


@KINDS
def test_late_report_vs_recovery_leaves_a_report_that_was_in_time(kind: TaskKind) -> None:
    lease = leased(kind)

    with recovery_reads_clock(ahead=timedelta(hours=1)), gate_after(RunChanges, "save") as gate:
        reporting_ = in_thread(report, lease)
        gate.wait_until_reached()
        recovery = in_thread(recover_lease.recover_lease, lease.task_id)
        if has_row_locks():
            # Upkeep waits for nobody's run: there are others to look after.
            assert recovery.result(20) is False
        gate.open()
        reporting_.result(20)
        was_recovered = recovery.result(20) or recover_lease.recover_lease(lease.task_id)

    assert was_recovered is False
    assert make.task_of(lease).status == TaskStatus.COMPLETED
    check_invariants()


@KINDS
def test_late_report_vs_recovery_refuses_the_report_that_waited_for_recovery(kind: TaskKind) -> None:
    lease = leased(kind)
    make.expire_lease(lease.task_id)

    with gate_after(recover_lease, "_offer_again") as gate:
        recovery = in_thread(recover_lease.recover_lease, lease.task_id)
        gate.wait_until_reached()
        reporting_ = in_thread(report, lease)
        wait_until_blocked()
        gate.open()
        was_recovered = recovery.result(20)
        with pytest.raises(Refusal) as caught:
            reporting_.result(20)

    assert was_recovered is True
    expected = {TaskKind.WORKFLOW: Reason.TASK_NOT_LEASED, TaskKind.ACTIVITY: Reason.STALE_ATTEMPT}
    assert caught.value.reason == expected[kind]
    assert make.task_of(lease).status == TaskStatus.READY
    check_invariants()


@KINDS
def test_heartbeat_vs_recovery_leaves_the_lease_that_was_renewed_first(kind: TaskKind) -> None:
    lease = leased(kind)
    # Live by the heartbeat's clock; run out by recovery's, had there been no heartbeat.
    soon = make.task_of(lease).leased_at + timedelta(seconds=20)
    Task.objects.filter(id=lease.task_id).update(lease_expires_at=soon)

    with recovery_reads_clock(ahead=timedelta(seconds=30)), gate_after(*heartbeat_point(kind)) as gate:
        beat = in_thread(heartbeat, lease)
        gate.wait_until_reached()
        recovery = in_thread(recover_lease.recover_lease, lease.task_id)
        wait_until_blocked()
        gate.open()
        beat.result(20)
        was_recovered = recovery.result(20)

    assert was_recovered is False
    task = make.task_of(lease)
    assert task.status == TaskStatus.LEASED
    assert task.lease_expires_at > soon
    check_invariants()


@KINDS
def test_heartbeat_vs_recovery_stops_the_worker_whose_lease_was_recovered_first(kind: TaskKind) -> None:
    lease = leased(kind)
    make.expire_lease(lease.task_id)

    with gate_after(recover_lease, "_offer_again") as gate:
        recovery = in_thread(recover_lease.recover_lease, lease.task_id)
        gate.wait_until_reached()
        beat = in_thread(heartbeat, lease)
        wait_until_blocked()
        gate.open()
        was_recovered = recovery.result(20)
        stopped = beat.exception(20) or beat.result(20)

    assert was_recovered is True
    assert stopped.reason == (Reason.TASK_NOT_LEASED if kind == TaskKind.WORKFLOW else "attempt_closed")
    assert make.task_of(lease).status == TaskStatus.READY
    check_invariants()


def heartbeat(lease: Lease) -> object:
    if lease.body["task_kind"] == "workflow":
        return heartbeat_workflow_task(lease.report)
    return heartbeat_activity.heartbeat_activity(lease.report, {"current": 1})


def heartbeat_point(kind: TaskKind) -> tuple[object, str]:
    """Where a heartbeat has written the later expiry and not yet committed it."""
    if kind == TaskKind.ACTIVITY:
        return heartbeat_activity, "extend_lease"
    from durable.operations import heartbeat_workflow_task as module

    return module, "extend_lease"


def test_expiry_twice_leaves_attempts_and_events_in_order() -> None:
    make.register()
    make.register("w-2")
    started, (first,) = run_with_leased_steps(1)
    heartbeat_activity.heartbeat_activity(first.report, {"current": 7})
    expire_and_recover(first)
    second = make.lease_activity("w-2")
    expire_and_recover(second)
    third = make.lease_activity()

    make.complete_step(third, "done")

    attempts = ActivityAttempt.objects.order_by("attempt_number")
    assert [(a.id, a.lease_owner, a.status) for a in attempts] == [
        (first.report.activity_attempt_id, "w-1", AttemptStatus.EXPIRED),
        (second.report.activity_attempt_id, "w-2", AttemptStatus.EXPIRED),
        (third.report.activity_attempt_id, "w-1", AttemptStatus.COMPLETED),
    ]
    recorded = HistoryEvent.objects.filter(run_id=started.run.id, sequence__gt=3).order_by("sequence")
    assert [(event.event_type, event.payload["attempt_number"]) for event in recorded] == [
        ("ActivityStarted", 1),
        ("ActivityHeartbeatRecorded", 1),
        ("ActivityStarted", 2),
        ("ActivityStarted", 3),
        ("ActivityCompleted", 3),
    ]
    check_invariants()


def test_expiry_twice_recovers_a_workflow_task_under_new_attempts() -> None:
    make.register()
    started = make.start()
    for _ in range(2):
        expire_and_recover(make.lease_workflow())

    lease = make.lease_workflow()

    assert lease.body["workflow_task_attempt"] == 3
    assert [task.id for task in workflow_tasks(started)] == [lease.task_id]
    assert make.event_types(started.run.id) == ["StartAccepted", "WorkflowStarted"]
    check_invariants()


@KINDS
def test_expiry_twice_at_the_same_moment_is_recovered_once(kind: TaskKind) -> None:
    lease = leased(kind)
    make.expire_lease(lease.task_id)

    outcomes = all_at_once([lambda: recover_lease.recover_lease(lease.task_id)] * 6)

    assert sorted(outcomes) == [False] * 5 + [True]
    assert ActivityAttempt.objects.filter(status=AttemptStatus.EXPIRED).count() == (kind == TaskKind.ACTIVITY)
    check_invariants()


def test_deregister_vs_completions_ends_each_lease_once_and_counts_right() -> None:
    make.register()
    runs = [make.start() for _ in range(20)]
    leases = [make.lease_workflow() for _ in runs]

    outcomes = all_at_once(
        [lambda: deregister_worker("default", "w-1"), *(lambda lease=lease: report(lease) for lease in leases)]
    )

    receipt, *reports = outcomes
    assert isinstance(receipt, WorkerDeregistered)
    refused = [outcome for outcome in reports if isinstance(outcome, Refusal)]
    assert {refusal.reason for refusal in refused} <= {Reason.LEASE_EXPIRED}
    assert not [outcome for outcome in reports if isinstance(outcome, Exception) and outcome not in refused]
    assert receipt.recovered_workflow_task_count == len(refused)
    assert WorkerIncarnation.objects.get().recovered_workflow_task_count == len(refused)
    expired = Task.objects.filter(kind=TaskKind.WORKFLOW, status=TaskStatus.LEASED).values_list("id", flat=True)
    assert sum(recover_lease.recover_lease(task_id) for task_id in expired) == len(refused)
    check_invariants()


def test_deregister_vs_completions_expires_what_an_uncommitted_completion_leaves() -> None:
    make.register()
    make.start()
    make.start()
    first, second = make.lease_workflow(), make.lease_workflow()

    with gate_after(RunChanges, "save") as gate:
        completion = in_thread(report, first)
        gate.wait_until_reached()
        deregistration = in_thread(deregister_worker, "default", "w-1")
        wait_until_blocked()
        gate.open()
        completion.result(20)
        receipt = deregistration.result(20)

    assert receipt.recovered_workflow_task_count == 1
    assert recover_lease.recover_lease(first.task_id) is False
    assert recover_lease.recover_lease(second.task_id) is True
    check_invariants()
