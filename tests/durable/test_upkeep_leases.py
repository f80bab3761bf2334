"""Upkeep takes back leases that ran out, and only those (docs/protocol/worker-protocol.md 6.5, history.md 9.2)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from durable.claims import Nothing
from durable.models import ActivityAttempt, ActivityExecution, Failure, HistoryEvent, Task, WorkerRegistration
from durable.operations.deregister_worker import deregister_worker
from durable.operations.heartbeat_activity import heartbeat_activity, renew_activity_lease
from durable.operations.heartbeat_worker import heartbeat_worker
from durable.operations.heartbeat_workflow_task import heartbeat_workflow_task
from durable.operations.recover_lease import recover_lease
from durable.operations.start_workflow import Started
from durable.refusals import Reason, Refusal
from durable.states import ActivityStatus, AttemptStatus, TaskKind, TaskStatus
from durable.upkeep import sweeps
from tests import factories as make
from tests.clock import MICROSECOND, EngineClock
from tests.concurrency.tools import gate_after, in_thread
from tests.factories import Lease
from tests.invariants import check_invariants

WORKFLOW_LEASE_SECONDS, ACTIVITY_LEASE_SECONDS = 60, 300
KINDS = pytest.mark.parametrize("kind", [TaskKind.WORKFLOW, TaskKind.ACTIVITY])


def leased(kind: TaskKind, **options: object) -> tuple[Started, Lease]:
    """A run with one lease of this kind, held by `w-1`; `w-2` is about."""
    make.register()
    make.register("w-2")
    started = make.start()
    lease = make.lease_workflow()
    if kind == TaskKind.ACTIVITY:
        make.complete(lease, make.schedule(**options))
        lease = make.lease_activity()
    return started, lease


def is_offered(kind: TaskKind, worker_id: str = "w-2") -> bool:
    """Whether another worker's poll sees something."""
    from durable.operations import poll

    return not isinstance(poll.look(make.poll_request(kind, worker_id)), Nothing)


@KINDS
def test_takes_a_lease_back_at_its_expiry_and_not_a_microsecond_before(clock: EngineClock, kind: TaskKind) -> None:
    _, lease = leased(kind)
    expiry = make.task_of(lease).lease_expires_at

    clock.turn_to(expiry - MICROSECOND)
    too_early = sweeps.recover_leases().handled
    clock.turn_to(expiry)
    in_time = sweeps.recover_leases().handled

    assert (too_early, in_time) == (0, 1)
    task = make.task_of(lease)
    assert (task.status, task.lease_owner, task.attempt_count) == (TaskStatus.READY, None, 1)
    check_invariants()


@KINDS
def test_offers_a_recovered_task_as_a_new_attempt_and_refuses_the_old_one(clock: EngineClock, kind: TaskKind) -> None:
    _, old = leased(kind)
    clock.turn_to(make.task_of(old).lease_expires_at)
    sweeps.recover_leases()

    again = make.lease_workflow("w-2") if kind == TaskKind.WORKFLOW else make.lease_activity("w-2")
    with pytest.raises(Refusal) as caught:
        make.report_waiting(old) if kind == TaskKind.WORKFLOW else make.complete_step(old)

    assert again.task_id == old.task_id
    if kind == TaskKind.WORKFLOW:
        assert again.body["workflow_task_attempt"] == 2
        assert caught.value.reason == Reason.LEASE_OWNER_MISMATCH
    else:
        assert again.body["activity_attempt_id"] != old.body["activity_attempt_id"]
        assert caught.value.reason == Reason.STALE_ATTEMPT
    check_invariants()


def test_takes_back_only_what_has_run_out(clock: EngineClock) -> None:
    make.register()
    for _ in range(3):
        make.start()
    early, renewed, late = make.lease_workflow(), make.lease_workflow(), None
    clock.advance(30)
    heartbeat_workflow_task(renewed.report)
    late = make.lease_workflow()

    clock.turn_to(make.task_of(early).lease_expires_at)
    sweeps.recover_leases()

    statuses = [make.task_of(lease).status for lease in (early, renewed, late)]
    assert statuses == [TaskStatus.READY, TaskStatus.LEASED, TaskStatus.LEASED]


def test_fails_an_activity_that_lost_too_many_leases(clock: EngineClock, override_durable: Callable[..., None]) -> None:
    override_durable(MAX_LOST_LEASES=3, WORKER_STALE_AFTER_SECONDS=10**8)
    started, lease = leased(TaskKind.ACTIVITY, retry_policy={"max_attempts": 5})
    lost = []
    for number in range(3):
        lease = lease if number == 0 else make.lease_activity()
        clock.turn_to(make.task_of(lease).lease_expires_at)
        lost.append(sweeps.recover_leases().handled)

    assert lost == [1, 1, 1]
    failed = HistoryEvent.objects.get(run_id=started.run.id, event_type="ActivityFailed")
    details = {name: failed.payload[name] for name in ("exception_type", "failure_category", "attempt_number")}
    assert details == {"exception_type": "lease_lost", "failure_category": "internal", "attempt_number": 3}
    assert (ActivityExecution.objects.get().status, make.task_of(lease).status) == (
        ActivityStatus.FAILED,
        TaskStatus.FAILED,
    )
    assert Failure.objects.get().failure_category == "internal"
    assert [attempt.status for attempt in ActivityAttempt.objects.all()] == [AttemptStatus.EXPIRED] * 3
    assert make.run_of(started).open_task_id
    check_invariants()


def test_lost_lease_is_no_failure_of_an_activity_that_has_one_attempt(clock: EngineClock) -> None:
    started, lease = leased(TaskKind.ACTIVITY)
    clock.turn_to(make.task_of(lease).lease_expires_at)
    sweeps.recover_leases()

    again = make.lease_activity("w-2")
    make.complete_step(again)

    assert again.body["attempt_number"] == 2
    assert make.event_types(started.run.id)[-1] == "ActivityCompleted"
    check_invariants()


def test_ten_lost_leases_are_the_default() -> None:
    from durable.conf import DurableSettings

    assert DurableSettings().max_lost_leases == 10


# -- a living worker is left alone -------------------------------------------------------------------------------------


@pytest.mark.parametrize("renew", ["heartbeat", "renew-lease"])
def test_activity_that_is_renewed_for_ten_lease_lengths_is_never_offered_again(clock: EngineClock, renew: str) -> None:
    started, lease = leased(TaskKind.ACTIVITY)

    for _ in range(20):
        clock.advance(ACTIVITY_LEASE_SECONDS / 2)
        if renew == "heartbeat":
            heartbeat_activity(lease.report, {"current": 1})
        else:
            renew_activity_lease(lease.report)
        assert sweeps.recover_leases().handled == 0
        assert not is_offered(TaskKind.ACTIVITY)

    make.complete_step(lease)
    recorded = make.event_types(started.run.id)
    assert recorded.count("ActivityStarted") == recorded.count("ActivityCompleted") == 1
    check_invariants()


def test_activity_that_stops_renewing_is_offered_after_one_lease_length(clock: EngineClock) -> None:
    _, lease = leased(TaskKind.ACTIVITY)
    clock.advance(ACTIVITY_LEASE_SECONDS - 1)
    heartbeat_activity(lease.report, None)

    clock.advance(ACTIVITY_LEASE_SECONDS)
    sweeps.recover_leases()

    assert is_offered(TaskKind.ACTIVITY)
    assert not HistoryEvent.objects.filter(event_type="ActivityHeartbeatRecorded").exists()


@pytest.mark.parametrize("renew", ["heartbeat", "renew-lease", "workflow heartbeat"])
def test_renewal_after_the_expiry_revives_nothing(clock: EngineClock, renew: str) -> None:
    _, lease = leased(TaskKind.WORKFLOW if renew == "workflow heartbeat" else TaskKind.ACTIVITY)
    clock.turn_to(make.task_of(lease).lease_expires_at)
    before = rows_of(lease)

    if renew == "heartbeat":
        assert heartbeat_activity(lease.report, {"current": 1}).reason == "lease_expired"
    else:
        operation = renew_activity_lease if renew == "renew-lease" else heartbeat_workflow_task
        with pytest.raises(Refusal) as caught:
            operation(lease.report)
        assert caught.value.reason == Reason.LEASE_EXPIRED

    assert rows_of(lease) == before
    assert sweeps.recover_leases().handled == 1


def test_lease_length_and_start_to_close_are_independent(clock: EngineClock) -> None:
    _, lease = leased(TaskKind.ACTIVITY, start_to_close_timeout=10 * ACTIVITY_LEASE_SECONDS)
    deadline = make.task_of(lease).start_to_close_at

    clock.turn_to(make.task_of(lease).lease_expires_at)
    recovered = sweeps.recover_leases().handled
    timed_out = sweeps.time_out_activities().handled

    assert (recovered, timed_out) == (1, 0)
    assert deadline - timedelta(seconds=10 * ACTIVITY_LEASE_SECONDS) == make.task_of(lease).created_at
    again = make.lease_activity("w-2")
    assert make.task_of(again).start_to_close_at == clock.now + timedelta(seconds=10 * ACTIVITY_LEASE_SECONDS)


# -- the sweep read, and the world went on before it wrote (field case 1) ----------------------------------------------


@KINDS
@pytest.mark.parametrize("meanwhile", ["claimed again", "completed"])
def test_paused_sweep_leaves_alone_what_happened_between_its_read_and_its_write(
    clock: EngineClock, kind: TaskKind, meanwhile: str
) -> None:
    _, lease = leased(kind)
    clock.turn_to(make.task_of(lease).lease_expires_at)

    with gate_after(sweeps, "_due_ids") as gate:
        sweep = in_thread(sweeps.recover_leases)
        gate.wait_until_reached()
        assert recover_lease(lease.task_id)
        again = make.lease_workflow("w-2") if kind == TaskKind.WORKFLOW else make.lease_activity("w-2")
        if meanwhile == "completed":
            make.complete(again, make.schedule()) if kind == TaskKind.WORKFLOW else make.complete_step(again)
        before = rows_of(lease)
        gate.open()
        swept = sweep.result(20)

    assert (swept.handled, swept.failed) == (0, 0)
    assert rows_of(lease) == before
    check_invariants()


def rows_of(lease: Lease) -> object:
    """Everything about the task that a sweep might overwrite."""
    run_id = Task.objects.get(id=lease.task_id).run_id
    return (
        list(Task.objects.filter(run_id=run_id).order_by("id").values()),
        list(ActivityAttempt.objects.filter(run_id=run_id).order_by("id").values()),
        list(HistoryEvent.objects.filter(run_id=run_id).order_by("sequence").values()),
    )


# -- the worker's row says nothing about its leases (field case 2) -----------------------------------------------------


@KINDS
@pytest.mark.parametrize("fate", ["deregistered", "row deleted", "registered anew", "heartbeating"])
def test_leases_run_out_whatever_happens_to_the_workers_row(clock: EngineClock, kind: TaskKind, fate: str) -> None:
    _, lease = leased(kind)
    expiry = make.task_of(lease).lease_expires_at
    clock.advance(1)

    if fate == "deregistered":
        deregister_worker("default", "w-1")
    elif fate == "row deleted":
        WorkerRegistration.objects.filter(worker_id="w-1").delete()
    elif fate == "registered anew":
        make.register()
    else:
        heartbeat_worker("default", "w-1")
    clock.turn_to(expiry)
    sweeps.recover_leases()

    assert is_offered(kind)
    check_invariants()


def test_deregistration_frees_workflow_leases_at_once_and_lets_activity_leases_run_out(clock: EngineClock) -> None:
    _, step = leased(TaskKind.ACTIVITY)
    make.start()
    decision = make.lease_workflow()

    deregister_worker("default", "w-1")
    sweeps.recover_leases()

    assert make.task_of(decision).status == TaskStatus.READY
    assert make.task_of(step).status == TaskStatus.LEASED
