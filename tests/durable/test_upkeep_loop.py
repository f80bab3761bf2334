"""The upkeep loop as a process runs it: in time, in spite of poison rows, with nothing that a restart loses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from django.utils import timezone

from durable import conf
from durable.models import ActivityExecution, Task, UpkeepPass
from durable.operations import recover_lease
from durable.states import TaskKind, TaskStatus
from durable.upkeep import loop as module
from durable.upkeep import sweeps
from durable.upkeep.items import Pass
from durable.upkeep.loop import UpkeepLoop, all_duties, report_pass
from tests import factories as make
from tests.client import ApiClient
from tests.clock import EngineClock
from tests.concurrency.tools import eventually
from tests.invariants import check_invariants
from tests.parking import begin_poll
from tests.server import ServerProcess


@contextmanager
def upkeep(api: ApiClient) -> Iterator[UpkeepLoop]:
    """A loop on the API's pool, as a serving process has one."""

    async def begin() -> UpkeepLoop:
        loop = UpkeepLoop(api.runtime.pool, may_lead=True)
        loop.start()
        return loop

    running = api.wait(begin())
    try:
        yield running
    finally:
        api.wait(running.stop())


@pytest.mark.parametrize("kind", [TaskKind.WORKFLOW, TaskKind.ACTIVITY])
def test_redelivers_a_lost_lease_within_a_second_of_its_expiry(
    api: ApiClient, override_durable: Callable[..., Any], kind: TaskKind
) -> None:
    override_durable(WORKFLOW_LEASE_SECONDS=1, ACTIVITY_LEASE_SECONDS=1, PROBE_INTERVAL_SECONDS=600)
    make.register()
    make.register("w-2")
    make.start()
    if kind == TaskKind.ACTIVITY:
        make.complete(make.lease_workflow(), make.schedule())
    late = []

    with upkeep(api):
        # The quickest of up to three, so that a busy machine does not fail it.
        while len(late) < 3 and min(late, default=9) > 1:
            expiry = lease(kind)
            answer = begin_poll(api, kind, seconds=20, worker_id="w-2").result(20)
            task = Task.objects.filter(id=answer.body["task"]["task_id"])
            late.append((task.get().leased_at - expiry).total_seconds())
            eventually(lambda task=task: task.get().status == TaskStatus.READY, "the next round can begin")

    assert 0 <= min(late) <= 1


def lease(kind: TaskKind) -> Any:
    """`w-1` takes the task and is not heard of again; when its lease ends."""
    taken = make.lease_workflow() if kind == TaskKind.WORKFLOW else make.lease_activity()
    return make.task_of(taken).lease_expires_at


def test_every_process_recovers_leases_at_least_once_a_second_and_only_the_leader_does_the_rest() -> None:
    duties = {duty.name: duty for duty in all_duties()}

    assert [name for name, duty in duties.items() if not duty.leader_only] == ["recover_leases"]
    assert duties["recover_leases"].every_seconds + conf.current().upkeep_interval_seconds / 2 <= 1


def test_process_that_may_not_lead_still_recovers_leases(api: ApiClient) -> None:
    make.register()
    make.start(run_timeout_seconds=3600)
    held = make.lease_workflow()
    make.expire_lease(held.task_id)

    async def begin() -> UpkeepLoop:
        loop = UpkeepLoop(api.runtime.pool, may_lead=False)
        loop.start()
        return loop

    running = api.wait(begin())

    eventually(lambda: make.task_of(held).status == TaskStatus.READY, "the lease is recovered")
    assert running._is_leader is False
    api.wait(running.stop())


# -- poison ------------------------------------------------------------------------------------------------------------


def test_poison_row_does_not_stop_the_others(clock: EngineClock) -> None:
    make.register()
    for _ in range(3):
        make.start()
    for _ in range(3):
        make.complete(make.lease_workflow(), make.schedule())
    steps = [make.lease_activity() for _ in range(3)]
    poison = Task.objects.get(id=steps[0].task_id)
    # Nothing of ours loses a row that others refer to; a restored backup might have.
    ActivityExecution.objects.filter(id=poison.activity_execution_id).delete()
    clock.turn_to(max(make.task_of(step).lease_expires_at for step in steps))

    done = sweeps.recover_leases()

    assert (done.handled, done.failed, done.error) == (2, 1, "DoesNotExist")
    assert [make.task_of(step).status for step in steps] == [TaskStatus.LEASED, TaskStatus.READY, TaskStatus.READY]


def test_poison_rows_that_fill_a_batch_do_not_keep_a_sweep_from_the_others(
    clock: EngineClock, override_durable: Callable[..., Any]
) -> None:
    override_durable(WORKER_STALE_AFTER_SECONDS=10**8, UPKEEP_BATCH_SIZE=2)
    make.register()
    for _ in range(5):
        make.start()
    for _ in range(5):
        make.complete(make.lease_workflow(), make.schedule())
    poison = [make.lease_activity() for _ in range(4)]
    ActivityExecution.objects.filter(task_id__in=[step.task_id for step in poison]).delete()
    clock.advance(1)
    healthy = make.lease_activity()
    clock.turn_to(make.task_of(healthy).lease_expires_at)

    passes = [sweeps.recover_leases() for _ in range(3)]

    assert [done.failed for done in passes] == [2, 2, 0]
    assert make.task_of(healthy).status == TaskStatus.READY


@pytest.mark.usefixtures("database")
def test_poison_row_is_reported_to_operators_without_making_the_pass_a_failure() -> None:
    report_pass("recover_leases", Pass(handled=2, failed=1, error="DoesNotExist"))

    last = UpkeepPass.objects.get()
    assert (last.handled_count, last.failed_count, last.last_error) == (2, 1, "DoesNotExist")
    assert last.last_success_at == last.last_run_at


@pytest.mark.usefixtures("database")
def test_pass_that_is_broken_as_a_whole_leaves_the_last_success_where_it_was() -> None:
    report_pass("recover_leases", Pass(handled=3))
    succeeded_at = UpkeepPass.objects.get().last_success_at

    report_pass("recover_leases", Pass(failed=1, error="OperationalError", is_broken=True))

    last = UpkeepPass.objects.get()
    assert last.last_success_at == succeeded_at
    assert last.last_run_at >= succeeded_at


def test_duty_that_is_broken_as_a_whole_does_not_stop_the_loop(
    api: ApiClient, override_durable: Callable[..., Any]
) -> None:
    override_durable(UPKEEP_INTERVAL_SECONDS=0.05)
    make.register()
    make.start()
    held = make.lease_workflow()

    with mock.patch.object(module.sweeps, "time_out_runs", side_effect=RuntimeError), upkeep(api):
        eventually(lambda: UpkeepPass.objects.filter(last_error="RuntimeError").exists(), "the broken duty is noted")
        make.expire_lease(held.task_id)

        eventually(lambda: make.task_of(held).status == TaskStatus.READY, "the other duties go on")


def test_round_that_fails_does_not_stop_the_loop(api: ApiClient, override_durable: Callable[..., Any]) -> None:
    override_durable(UPKEEP_INTERVAL_SECONDS=0.05, UPKEEP_LEADER_SECONDS=1)
    make.register()
    make.start()
    held = make.lease_workflow()
    broken = mock.patch.object(module.leader, "take_leadership", side_effect=RuntimeError)

    with upkeep(api):
        with broken as take:
            eventually(lambda: take.call_count, "a round has failed")
        make.expire_lease(held.task_id)

        eventually(lambda: make.task_of(held).status == TaskStatus.READY, "later rounds go on")


# -- restart -----------------------------------------------------------------------------------------------------------


def test_deadlines_fire_after_a_kill_and_a_restart(database: None) -> None:
    process = ServerProcess(DURABLE_ACTIVITY_LEASE_SECONDS="1")
    make.register()
    timed_out = make.start(run_timeout_seconds=3600)
    lost, late = make.start(), make.start()
    for started in (lost, late):
        commands = [make.schedule(start_to_close_timeout=3600)] if started is late else [make.schedule()]
        lease_of(started, commands)
    steps = {step.body["run_id"]: step for step in (make.lease_activity(), make.lease_activity())}
    process.start()
    process.kill()

    # All of it happened while nobody was there; only columns remember it.
    past = timezone.now() - timedelta(seconds=5)
    type(timed_out.run).objects.filter(id=timed_out.run.id).update(run_deadline_at=past, deadline_at=past)
    Task.objects.filter(id=steps[lost.run.id].task_id).update(lease_expires_at=past)
    Task.objects.filter(id=steps[late.run.id].task_id).update(start_to_close_at=past, deadline_at=past)
    process.start()

    try:
        eventually(lambda: make.run_of(timed_out).closed_reason == "timed_out", "the run's deadline has fired")
        eventually(lambda: "ActivityTimedOut" in make.event_types(late.run.id), "the activity's deadline has fired")
        eventually(lambda: make.task_of(steps[lost.run.id]).status == TaskStatus.READY, "the lease is recovered")
    finally:
        process.stop()
    check_invariants()


def lease_of(started: Any, commands: list[dict[str, Any]]) -> None:
    """Let the run's own first task schedule something."""
    held = []
    while True:
        lease = make.lease_workflow()
        if lease.body["run_id"] == started.run.id:
            make.complete(lease, *commands)
            break
        held.append(lease)
    for lease in held:
        make.expire_lease(lease.task_id)
        recover_lease.recover_lease(lease.task_id)
