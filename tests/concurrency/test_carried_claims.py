"""Carried claims beside others: one lease, no waiting, no neighbour lost (docs/concurrency.md 3, 12, 13, 15)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import pytest
from django.db import OperationalError, connection

from durable import claims, metrics
from durable.carried_polls import CarriedOutcome, CarriedPoll, CarriedPolls, CarriedResults, claim_carried
from durable.leases import Leased
from durable.models import ActivityAttempt, CompletionReceipt, PollReceipt, Task
from durable.operations import poll
from durable.operations.complete_activity import complete_activity
from durable.operations.complete_workflow_task import WorkflowTaskCompleted, complete_workflow_task
from durable.refusals import Reason, Refusal
from durable.sql import claiming
from durable.states import TaskKind, TaskStatus
from durable.wakeups import hints
from durable.wakeups.hints import QueueKey
from tests import factories as make
from tests.concurrency.tools import all_at_once, gate_after, has_row_locks, held_run, impatient, in_thread
from tests.factories import Lease
from tests.invariants import check_invariants

pytestmark = pytest.mark.usefixtures("database")


def poll_for(kind: TaskKind, poll_request_id: str = "carried-1", worker_id: str = "w-1", **options: Any) -> CarriedPoll:
    return CarriedPoll(request=make.poll_request(kind, worker_id, poll_request_id=poll_request_id, **options))


def carrying(kind: TaskKind, *args: Any, **options: Any) -> CarriedPolls:
    poll = poll_for(kind, *args, **options)
    return CarriedPolls(activity=poll) if kind == TaskKind.ACTIVITY else CarriedPolls(workflow=poll)


def complete(lease: Lease, carried: CarriedPolls, *commands: dict[str, Any]) -> WorkflowTaskCompleted:
    body = {"commands": list(commands) or [make.finish()]}
    return complete_workflow_task(lease.report, body, carried)


def leased_tasks() -> list[Task]:
    return list(Task.objects.filter(status=TaskStatus.LEASED))


def held(count: int, worker_id: str = "w-1") -> list[Lease]:
    """The worker holds the workflow tasks of so many runs."""
    make.register(worker_id)
    for _ in range(count):
        make.start()
    return [make.lease_workflow(worker_id) for _ in range(count)]


def hinted(work: Callable[[], Any]) -> list[QueueKey]:
    """The hints that go out while the work is done."""
    heard: list[QueueKey] = []
    unsubscribe = hints.subscribe(heard.append)
    try:
        work()
    finally:
        unsubscribe()
    return heard


# -- C21: one poll id --------------------------------------------------------------------------------------------------


def test_c21_leases_one_task_for_two_completions_that_carry_the_same_id() -> None:
    first, second = held(2)
    make.start(), make.start()
    carried = carrying(TaskKind.WORKFLOW)

    outcomes = all_at_once([lambda: complete(first, carried), lambda: complete(second, carried)])

    assert all(isinstance(outcome, WorkflowTaskCompleted) for outcome in outcomes), outcomes
    assert len(leased_tasks()) == 1
    assert PollReceipt.objects.filter(poll_request_id="carried-1").count() == 1
    assert CompletionReceipt.objects.count() == 2
    check_invariants()


def test_c21_leaves_the_key_out_while_another_completion_reserves_the_id() -> None:
    first, second = held(2)
    make.start(), make.start()
    carried = carrying(TaskKind.WORKFLOW)

    with gate_after(claiming, "reserve_receipt") as gate:
        slow = in_thread(complete, first, carried)
        gate.wait_until_reached()
        if has_row_locks():
            with impatient():
                quick = complete(second, carried)
            assert quick.carried.workflow is not None
            assert (quick.carried.workflow.outcome, quick.carried.workflow.reason) == (
                CarriedOutcome.REFUSED,
                Reason.POLL_REQUEST_BUSY,
            )
        gate.open()
        assert slow.result(20).carried.workflow.outcome == CarriedOutcome.LEASED

    assert len(leased_tasks()) == 1 + (not has_row_locks())
    check_invariants()


def test_same_poll_id_twice_is_one_lease_for_a_poll_and_a_carried_claim() -> None:
    [lease] = held(1)
    make.start(), make.start()
    request = make.poll_request(TaskKind.WORKFLOW, poll_request_id="carried-1")

    outcomes = all_at_once([lambda: complete(lease, carrying(TaskKind.WORKFLOW)), lambda: make.try_poll(request)])

    assert not any(isinstance(outcome, Exception) for outcome in outcomes), outcomes
    assert len(leased_tasks()) == 1
    found = make.try_poll(request)
    assert isinstance(found, Leased)
    assert found.is_replay


def test_same_poll_id_three_with_rollback_leaves_the_id_to_the_next() -> None:
    first, second, third = held(3)
    make.start()
    carried = carrying(TaskKind.WORKFLOW)

    with mock.patch.object(claims, "_lease", side_effect=RuntimeError("the first fails")), pytest.raises(RuntimeError):
        complete(first, carried)
    outcomes = all_at_once([lambda: complete(second, carried), lambda: complete(third, carried)])

    assert all(isinstance(outcome, WorkflowTaskCompleted) for outcome in outcomes), outcomes
    # The first completion was rolled back whole, so its task is leased still.
    assert {task.id for task in leased_tasks()} > {first.task_id}
    assert len(leased_tasks()) == 2
    check_invariants()


# -- 13.7: the same completion twice -----------------------------------------------------------------------------------


def test_leases_once_for_identical_completions_at_the_same_time() -> None:
    [lease] = held(1)
    make.start(), make.start()

    outcomes = all_at_once([lambda: complete(lease, carrying(TaskKind.WORKFLOW))] * 4)

    results = [outcome for outcome in outcomes if isinstance(outcome, WorkflowTaskCompleted)]
    assert sorted(result.is_duplicate for result in results) == [False, True, True, True]
    assert [r.carried.workflow.outcome for r in results if r.is_duplicate and r.carried.workflow] == [
        CarriedOutcome.NOT_ATTEMPTED
    ] * 3
    assert len(leased_tasks()) == 1
    check_invariants()


# -- C7: whose task it is ----------------------------------------------------------------------------------------------


def test_c7_refuses_the_completion_when_the_owner_changed_before_the_lock() -> None:
    [lease] = held(1)
    make.register("w-2")
    make.start()
    complete_module = "durable.operations.complete_workflow_task.lock_workflow_task"
    lock = __import__("durable.guards", fromlist=["lock_workflow_task"]).lock_workflow_task

    def moved_first(report: Any) -> Any:
        Task.objects.filter(id=lease.task_id).update(lease_owner="w-2")
        return lock(report)

    with mock.patch(complete_module, moved_first), pytest.raises(Refusal) as refused:
        complete(lease, carrying(TaskKind.WORKFLOW))

    assert refused.value.reason == Reason.LEASE_OWNER_MISMATCH
    assert PollReceipt.objects.filter(poll_request_id="carried-1").count() == 0
    assert Task.objects.filter(status=TaskStatus.READY).count() == 1


@pytest.mark.parametrize("owner", ["w-2", "W-1", "w-1 "])
@pytest.mark.parametrize("kind", [TaskKind.WORKFLOW, TaskKind.ACTIVITY])
def test_c7_claims_nothing_for_a_worker_that_does_not_own_the_locked_row(kind: TaskKind, owner: str) -> None:
    make.register()
    make.start()

    results = claim_carried(carrying(kind), owner=owner)

    result = results.activity or results.workflow
    assert result is not None
    assert result.outcome == CarriedOutcome.FOREIGN
    assert leased_tasks() == []
    assert not PollReceipt.objects.exists()


# -- neighbours --------------------------------------------------------------------------------------------------------


def test_claim_ignores_run_lock_when_it_is_carried() -> None:
    [lease] = held(1)
    other = make.start()

    if not has_row_locks():
        # The one writer would wait for the holder; there is nothing beside it.
        assert complete(lease, carrying(TaskKind.WORKFLOW)).carried.workflow is not None
        return
    with held_run(other.run.id), impatient():
        done = complete(lease, carrying(TaskKind.WORKFLOW))

    assert done.carried.workflow is not None
    assert done.carried.workflow.outcome == CarriedOutcome.LEASED


def test_carried_refusal_keeps_neighbours_ready_and_hints_at_them() -> None:
    [lease] = held(1)
    make.start("next")
    read = claiming.read_task_facts

    def registered_anew(*args: Any, **kwargs: Any) -> Any:
        facts = read(*args, **kwargs)
        facts.worker.registration_token = "another"
        return facts

    with mock.patch.object(claiming, "read_task_facts", registered_anew):
        heard = hinted(lambda: complete(lease, carrying(TaskKind.WORKFLOW)))

    task = Task.objects.get(workflow_id="next")
    assert (task.status, task.attempt_count) == (TaskStatus.READY, 0)
    assert not PollReceipt.objects.filter(poll_request_id="carried-1").exists()
    assert QueueKey("default", make.QUEUE, TaskKind.WORKFLOW) in heard
    assert make.lease_workflow().body["workflow_id"] == "next"


def test_hints_at_a_task_that_a_failed_completion_had_locked() -> None:
    [lease] = held(1)
    make.start("next")

    def fail() -> None:
        with mock.patch.object(claims, "_lease", side_effect=RuntimeError("a fault")), pytest.raises(RuntimeError):
            complete(lease, carrying(TaskKind.WORKFLOW))

    assert hinted(fail) == [QueueKey("default", make.QUEUE, TaskKind.WORKFLOW)]


def test_hints_at_what_the_carried_claim_left_and_not_at_what_it_took() -> None:
    first, second = held(2)
    carried = carrying(TaskKind.ACTIVITY)

    took_all = hinted(lambda: complete(first, carried, make.schedule()))
    left_one = hinted(
        lambda: complete(second, carrying(TaskKind.ACTIVITY, "carried-2"), make.schedule(), make.schedule())
    )

    assert took_all == []
    assert left_one == [QueueKey("default", make.QUEUE, TaskKind.ACTIVITY)]


LOCK_PRESSURE = {
    "postgresql": ("sqlstate", "40P01"),
    "mysql": ("args", (1213, "Deadlock found when trying to get lock; try restarting transaction")),
    "sqlite": ("sqlite_errorcode", 5),
}


def test_deadlock_inside_carried_claim_records_nothing_and_the_retry_one_receipt() -> None:
    [lease] = held(1)
    make.start("next")
    retries = metrics.TRANSACTION_RETRIES._value.get()
    begin, first = claims._lease, threading.Lock()
    seen: list[int] = []

    def deadlocked_once(*args: Any, **kwargs: Any) -> Any:
        if not first.acquire(blocking=False):
            seen.append(CompletionReceipt.objects.count())
            return begin(*args, **kwargs)
        cause = Exception()
        name, value = LOCK_PRESSURE[connection.vendor]
        setattr(cause, name, value)
        raise OperationalError("deadlock") from cause

    with mock.patch.object(claims, "_lease", deadlocked_once):
        done = complete(lease, carrying(TaskKind.WORKFLOW))

    assert metrics.TRANSACTION_RETRIES._value.get() == retries + 1
    # The retry saw its own receipt alone: the first try had left none.
    assert seen == [1]
    assert done.carried.workflow is not None
    assert done.carried.workflow.outcome == CarriedOutcome.LEASED
    assert CompletionReceipt.objects.filter(task_id=lease.task_id).count() == 1
    assert Task.objects.get(workflow_id="next").attempt_count == 1
    check_invariants()


# -- many --------------------------------------------------------------------------------------------------------------

# SQLite has one writer, so nothing meets there: fewer show that it works.
PAIRS = 4 if has_row_locks() else 1
ROUNDS = 125 if has_row_locks() else 100


def lease_without_history(worker: str, task_queue: str) -> Lease:
    """The worker's next workflow task; the test would mostly read histories otherwise."""
    request = make.poll_request(TaskKind.WORKFLOW, worker, task_queue=task_queue)
    seen = claims.look(request)
    assert isinstance(seen, claims.Ready)
    return make.leased(poll.lease(request, seen, history_page_size=1))


def test_two_completions_that_claim_from_each_others_queue_never_deadlock() -> None:
    """A thousand completions in pairs: each claims the activity of the run that the other holds locked."""
    retries = metrics.TRANSACTION_RETRIES._value.get()
    numbers = range(2 * PAIRS)
    barrier = threading.Barrier(len(numbers))
    leases: dict[int, Lease] = {}
    for number in numbers:
        make.register(f"w-{number}", task_queue=f"q-{number}")
        make.start(task_queue=f"q-{number}")
        leases[number] = make.lease_workflow(f"w-{number}", task_queue=f"q-{number}")

    def work(number: int) -> int:
        worker, own, other = f"w-{number}", f"q-{number}", f"q-{number ^ 1}"
        lease, leased_at_once = leases[number], 0
        for turn in range(ROUNDS):
            barrier.wait(60)
            done = complete(
                lease,
                carrying(TaskKind.ACTIVITY, f"{worker}-{turn}", worker, task_queue=own),
                make.schedule(queue=other),
            )
            barrier.wait(60)
            result = done.carried.activity
            assert result is not None
            if result.claimed is not None:
                leased_at_once += 1
                step = Lease(result.claimed.body, [])
            else:
                assert result.outcome == CarriedOutcome.EMPTY
                step = make.lease_activity(worker, task_queue=own)
            complete_activity(step.report, {"result": make.envelope(1)})
            barrier.wait(60)
            lease = lease_without_history(worker, own)
        make.complete(lease, make.finish())
        return leased_at_once

    outcomes = all_at_once([partial(work, number) for number in numbers])

    assert [outcome for outcome in outcomes if not isinstance(outcome, int)] == []
    assert ActivityAttempt.objects.count() == ROUNDS * len(numbers)
    assert set(ActivityAttempt.objects.values_list("attempt_number", flat=True)) == {1}
    assert not Task.objects.exclude(status=TaskStatus.COMPLETED).exists()
    assert metrics.TRANSACTION_RETRIES._value.get() == retries
    check_invariants()


def test_fifty_workers_that_carry_polls_on_one_queue_lose_and_double_nothing() -> None:
    workers = [f"w-{number}" for number in range(50)]
    for worker in workers:
        make.register(worker)
    runs = [make.start().run.id for _ in range(100)]
    taken: dict[str, str] = {}
    guard = threading.Lock()

    def take(lease: Lease, worker: str) -> Lease:
        with guard:
            key = f"{lease.task_id}/{lease.body.get('attempt_number') or lease.body.get('workflow_task_attempt')}"
            assert key not in taken, f"{key} was leased by {taken[key]} and {worker}"
            taken[key] = worker
        return lease

    def next_of(results: CarriedResults) -> Lease | None:
        for result in (results.activity, results.workflow):
            if result is not None and result.claimed is not None:
                return Lease(result.claimed.body, [])
        return None

    def work(mine: list[str]) -> None:
        number = 0
        idle = 0
        while idle < 3:
            idle += 1
            for worker in mine:
                found = make.try_poll(make.poll_request(TaskKind.WORKFLOW, worker))
                if not isinstance(found, Leased):
                    found = make.try_poll(make.poll_request(TaskKind.ACTIVITY, worker))
                lease = make.leased(found) if isinstance(found, Leased) else None
                while lease is not None:
                    idle = 0
                    take(lease, worker)
                    number += 1
                    ids = (f"{worker}-{number}-a", f"{worker}-{number}-w")
                    workflow = poll_for(TaskKind.WORKFLOW, ids[1], worker)
                    if lease.body["task_kind"] == "activity":
                        body = {"result": make.envelope(1)}
                        lease = next_of(complete_activity(lease.report, body, CarriedPolls(workflow=workflow)).carried)
                        continue
                    both = CarriedPolls(activity=poll_for(TaskKind.ACTIVITY, ids[0], worker), workflow=workflow)
                    is_first = lease.body["last_history_sequence"] == 2
                    commands = [make.schedule(), make.schedule()] if is_first else [make.finish()]
                    waits = not is_first and Task.objects.filter(run_id=lease.body["run_id"], kind=TaskKind.ACTIVITY)
                    if waits and waits.exclude(status=TaskStatus.COMPLETED).exists():
                        make.report_waiting(lease)
                        lease = None
                        continue
                    lease = next_of(complete(lease, both, *commands).carried)

    outcomes = all_at_once([partial(work, workers[part::8]) for part in range(8)])

    assert outcomes == [None] * 8
    assert not Task.objects.exclude(status=TaskStatus.COMPLETED).exists()
    assert ActivityAttempt.objects.filter(run_id__in=runs).count() == 200
    check_invariants()
