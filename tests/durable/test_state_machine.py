"""Random conversations with the engine, compared with a model after every request (docs/protocol/history.md 18).

The clock stands still except where a move turns it forward, so every answer can be told beforehand. The same sequences
run each time; DURABLE_STATE_MACHINE_EXAMPLES=500 looks further, with other sequences each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
from django.conf import settings
from django.test import override_settings
from hypothesis import HealthCheck
from hypothesis import settings as profile
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from durable.models import ActivityExecution
from durable.models import Run as RunRow
from durable.models import Task as TaskRow
from durable.operations.complete_activity import complete_activity as complete_activity_of
from durable.operations.deregister_worker import deregister_worker
from durable.operations.heartbeat_activity import heartbeat_activity, renew_activity_lease
from durable.operations.heartbeat_workflow_task import heartbeat_workflow_task
from durable.operations.poll import Leased
from durable.operations.repair_workflow import repair_workflow
from durable.operations.start_workflow import Started
from durable.operations.stop_workflow import cancel_workflow, terminate_workflow
from durable.refusals import Refusal
from durable.states import OPEN_TASK, TaskKind
from durable.upkeep import pruning, sweeps
from tests import factories as make
from tests.clock import MICROSECOND, engine_clock_in_hand
from tests.conftest import clean_database
from tests.durable.model import DUPLICATE, RECORDED, Lease, Model, Policy, Run
from tests.invariants import check_invariants

WORKERS = ("w-1", "w-2")
MAX_LOST_LEASES = 3
EXAMPLES = os.environ.get("DURABLE_STATE_MACHINE_EXAMPLES")

some_worker = st.sampled_from(WORKERS)
some_workflow = st.sampled_from(["order-1", "order-2", "order-3"])
some_policy = st.sampled_from(
    [
        Policy(),
        Policy(max_attempts=3),
        Policy(max_attempts=2, backoff=30),
        Policy(max_attempts=2, start_to_close=100),
        Policy(max_attempts=2, backoff=10, heartbeat=40, start_to_close=90),
        Policy(max_attempts=2, schedule_to_start=50),
        Policy(max_attempts=9, backoff=60, schedule_to_close=110),
        Policy(heartbeat=400, schedule_to_close=700),
    ]
)


def answer_of(call: Any) -> str:
    """How a report was answered, in one word."""
    try:
        outcome = call()
    except Refusal as refusal:
        return str(refusal.reason)
    return DUPLICATE if getattr(outcome, "is_duplicate", False) else RECORDED


Draw = Callable[..., Any]
KINDS = [TaskKind.WORKFLOW, TaskKind.ACTIVITY]
OF_A_CLAIM = ("schedule_to_close", "heartbeat", "start_to_close")


@dataclass(frozen=True)
class Move:
    """Something that may happen, how often, and when it can."""

    weight: int
    applies: Callable[[Conversations], bool]
    make: Callable[[Conversations, Draw], None]

    def __repr__(self) -> str:
        return self.make.__name__


MOVES: list[Move] = []


def move(weight: int, applies: Callable[[Conversations], bool] = lambda _: True) -> Callable[[Any], Any]:
    """Add a function to the moves."""

    def add(make: Any) -> Any:
        MOVES.append(Move(weight, applies, make))
        return make

    return add


class Conversations(RuleBasedStateMachine):
    """Two workers, an impatient operator and upkeep. One rule draws the moves: each has its weight, none is left out."""

    def __init__(self) -> None:
        super().__init__()
        clean_database()
        engine = {**settings.DURABLE, "MAX_LOST_LEASES": MAX_LOST_LEASES, "WORKER_STALE_AFTER_SECONDS": 10**8}
        self._settings = override_settings(DURABLE=engine)
        self._settings.enable()
        self._hand = engine_clock_in_hand()
        self.clock = self._hand.__enter__()
        self.model = Model(max_lost_leases=MAX_LOST_LEASES)
        self.poll_count = 0
        for worker in WORKERS:
            self.register(worker)

    def teardown(self) -> None:
        self._hand.__exit__(None, None, None)
        self._settings.disable()

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        possible = [move for move in MOVES if move.applies(self)]
        weighted = [move for move in possible for _ in range(move.weight)]
        move = data.draw(st.sampled_from(weighted), label="move")
        move.make(self, data.draw)

    @invariant()
    def database_is_as_the_model_says(self) -> None:
        steps = dict(ActivityExecution.objects.values_list("id", "step_number"))
        rows = [
            (
                task.run_id,
                steps.get(task.activity_execution_id, 0),
                task.status,
                task.attempt_count,
                task.lease_owner,
                task.lease_expires_at,
                task.due,
            )
            for task in TaskRow.objects.filter(status__in=OPEN_TASK)
        ]
        assert sorted(rows, key=repr) == self.model.open_rows()
        stored = dict(RunRow.objects.values_list("id", "closed_reason"))
        assert stored == {run.id: run.closed for run in self.model.runs.values()}

    @invariant()
    def invariants_hold(self) -> None:
        check_invariants()

    # -- what moves share ----------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        return self.clock.now

    def register(self, worker: str) -> None:
        make.register(worker)
        self.model.workers.add(worker)

    def claims(self, kind: TaskKind) -> list[Lease]:
        return [lease for lease in self.model.leases if lease.task.kind == kind]

    def claim(self, kind: TaskKind, draw: Draw) -> Lease:
        """One of the claims of this kind, live or long over; mostly one of the newest."""
        claims = self.claims(kind)
        return claims[-1 - draw(st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, 8]), label="claim") % len(claims)]

    def poll_as(self, worker: str, kind: TaskKind, poll_request_id: str | None) -> None:
        request = make.poll_request(kind, worker, poll_request_id=poll_request_id)
        if worker not in self.model.workers:
            assert answer_of(lambda: make.try_poll(request)) == "worker_not_registered"
            return
        offered = self.model.offered(kind, self.now)
        outcome = make.try_poll(request)
        if not isinstance(outcome, Leased):
            assert offered == []
            return
        real = make.Lease(outcome.claimed.body, outcome.page.events if outcome.page else [])
        task = next(task for task in offered if is_task_of(task, real))
        assert task.available_at == min(other.available_at for other in offered)
        self.model.claimed(task, worker, real, poll_request_id, self.now)

    def complete(
        self, lease: Lease, commands: list[Any], *, steps: list[list[Policy]] | None = None, ends: str | None = None
    ) -> None:
        body = repr(commands)
        expected = self.model.judge_workflow(lease, body, self.now)
        assert answer_of(lambda: make.complete(lease.real, *commands)) == expected
        if expected == RECORDED:
            self.model.completed(lease, body, steps or [], ends, self.now)

    def sweep(self, duty: Callable[[], Any], predicted: Callable[[datetime], int]) -> None:
        done = duty()
        assert (done.handled, done.failed) == (predicted(self.now), 0)


def is_task_of(task: Any, real: Any) -> bool:
    """Whether what a worker was given is this task of the model."""
    if task.run.id != real.body["run_id"] or task.step is None:
        return bool(task.run.id == real.body["run_id"])
    execution = ActivityExecution.objects.get(id=real.body["activity_execution_id"])
    return bool(task.step.number == execution.step_number)


# -- moves: callers ----------------------------------------------------------------------------------------------------


@move(4)
def start(self: Conversations, draw: Draw) -> None:
    workflow_id, seconds = draw(some_workflow), draw(st.sampled_from([None, None, 500]))
    policy = draw(st.sampled_from(["fail", "use-existing"]))
    existing, is_new = self.model.runs.get(workflow_id), False

    def begin() -> Started:
        return make.start(workflow_id, run_timeout_seconds=seconds, duplicate_policy=policy)

    if existing is None:
        started, is_new = begin(), True
        deadline = self.now + timedelta(seconds=seconds) if seconds else None
        self.model.started(Run(started.run.id, workflow_id, deadline), self.now)
    elif policy == "fail" or existing.closed:
        assert answer_of(begin) == "instance_already_started"
        return
    else:
        started = begin()
    assert (started.is_new, started.run.id) == (is_new, self.model.runs[workflow_id].id)


@move(1)
def stop(self: Conversations, draw: Draw) -> None:
    workflow_id, operation = draw(some_workflow), draw(st.sampled_from([cancel_workflow, terminate_workflow]))
    run = self.model.runs.get(workflow_id)
    expected = "instance_not_found" if run is None else "run_not_active" if run.closed else RECORDED
    assert answer_of(lambda: operation(make.target(workflow_id), reason=None)) == expected
    if run is not None and expected == RECORDED:
        self.model.close(run, "cancelled" if operation is cancel_workflow else "terminated")


@move(2)
def repair(self: Conversations, draw: Draw) -> None:
    workflow_id = draw(some_workflow)
    run = self.model.runs.get(workflow_id)
    if run is None or run.closed:
        expected = "run_not_active" if run else "instance_not_found"
        assert answer_of(lambda: repair_workflow(make.target(workflow_id))) == expected
    else:
        assert repair_workflow(make.target(workflow_id)).outcome == self.model.repaired(run, self.now)


# -- moves: polls ------------------------------------------------------------------------------------------------------


@move(12)
def poll(self: Conversations, draw: Draw) -> None:
    kinds = [kind for kind in KINDS if self.model.offered(kind, self.now)] or KINDS
    self.poll_count += 1
    poll_request_id = f"poll-{self.poll_count}" if draw(st.booleans()) else None
    self.poll_as(draw(some_worker), draw(st.sampled_from(kinds)), poll_request_id)


@move(3, lambda self: any(lease.poll_request_id for lease in self.model.leases))
def poll_with_an_id_again(self: Conversations, draw: Draw) -> None:
    """The same poll id once more: the lease it was granted, if that still lives."""
    with_id = [lease for lease in self.model.leases if lease.poll_request_id]
    lease = draw(st.sampled_from(with_id[-5:]))
    kind = TaskKind(lease.task.kind)
    request = make.poll_request(kind, lease.owner, poll_request_id=lease.poll_request_id)
    if lease.owner not in self.model.workers or lease.receipt_until is None:
        # Nobody remembers the id any more: it is a new one.
        self.poll_as(lease.owner, kind, lease.poll_request_id)
    elif not lease.is_live(self.now):
        assert answer_of(lambda: make.try_poll(request)) == "poll_cached_task_expired"
    else:
        again = make.try_poll(request)
        assert isinstance(again, Leased)
        assert again.is_replay
        assert without_expiry(again.claimed.body) == without_expiry(lease.real.body)


# -- moves: workflow tasks ---------------------------------------------------------------------------------------------


def has_decisions(self: Conversations) -> bool:
    return bool(self.claims(TaskKind.WORKFLOW))


@move(6, has_decisions)
def complete_with_steps(self: Conversations, draw: Draw) -> None:
    lease = self.claim(TaskKind.WORKFLOW, draw)
    policies = draw(st.lists(some_policy, min_size=1, max_size=3))
    self.complete(lease, [make.schedule(**p.fields()) for p in policies], steps=[[p] for p in policies])


@move(4, has_decisions)
def complete_with_a_list(self: Conversations, draw: Draw) -> None:
    lease = self.claim(TaskKind.WORKFLOW, draw)
    policy, count = draw(some_policy), draw(st.integers(2, 3))
    commands = make.schedule_list(count, base=lease.next_step, **policy.fields())
    self.complete(lease, commands, steps=[[policy] * count])


@move(3, lambda self: any(lease.open_lists for lease in self.model.leases))
def complete_with_an_unresolved_list_again(self: Conversations, draw: Draw) -> None:
    """What a worker sends on each replay while a list is unresolved: it changes nothing."""
    lease = draw(st.sampled_from([lease for lease in self.model.leases if lease.open_lists][-3:]))
    first, size = lease.open_lists[-1]
    policy = lease.task.run.steps[first - 1].policy
    self.complete(lease, make.schedule_list(size, base=first, **policy.fields()))


@move(1, has_decisions)
def complete_with_the_end(self: Conversations, draw: Draw) -> None:
    lease = self.claim(TaskKind.WORKFLOW, draw)
    if draw(st.booleans()):
        self.complete(lease, [make.finish("done")], ends="completed")
    else:
        self.complete(lease, [{"type": "fail_workflow", "message": "boom"}], ends="failed")


@move(1, has_decisions)
def complete_badly(self: Conversations, draw: Draw) -> None:
    lease = self.claim(TaskKind.WORKFLOW, draw)
    expected = self.model.judge_workflow(lease, "bad", self.now)
    answer = answer_of(lambda: make.complete(lease.real, make.schedule(), {"type": "unheard_of"}))
    assert answer == ("validation_failed" if expected == RECORDED else expected)


@move(3, has_decisions)
def report_waiting(self: Conversations, draw: Draw) -> None:
    lease = self.claim(TaskKind.WORKFLOW, draw)
    if not lease.task.run.pending and lease.task.run.wakes <= lease.task.shown:
        # No worker waits for nothing: its run could never go on.
        return
    expected = self.model.judge_workflow(lease, None, self.now)
    assert answer_of(lambda: make.report_waiting(lease.real)) == expected
    if expected == RECORDED:
        self.model.claim_ended(lease.task, "completed", self.now)


@move(3, has_decisions)
def report_failure(self: Conversations, draw: Draw) -> None:
    lease, blocks = self.claim(TaskKind.WORKFLOW, draw), draw(st.sampled_from([False, False, True]))
    expected = self.model.judge_workflow(lease, None, self.now)
    message = "Workflow replay failed." if blocks else "boom"
    assert answer_of(lambda: make.report_failure(lease.real, message)) == expected
    if expected == RECORDED and blocks:
        self.model.replay_failed(lease)
    elif expected == RECORDED:
        self.model.task_failed(lease, self.now)


@move(2, has_decisions)
def heartbeat_of_a_workflow_task(self: Conversations, draw: Draw) -> None:
    lease = self.claim(TaskKind.WORKFLOW, draw)
    expected = self.model.judge_workflow(lease, None, self.now, asks_for_deadline=False)
    assert answer_of(lambda: heartbeat_workflow_task(lease.real.report)) == expected
    if expected == RECORDED:
        self.model.renewed(lease, self.now, is_heartbeat=True)


# -- moves: activities -------------------------------------------------------------------------------------------------


def has_steps(self: Conversations) -> bool:
    return bool(self.claims(TaskKind.ACTIVITY))


@move(8, has_steps)
def complete_activity(self: Conversations, draw: Draw) -> None:
    lease, result = self.claim(TaskKind.ACTIVITY, draw), draw(st.sampled_from(["a", "a", "b"]))
    expected = self.model.judge_activity(lease, ("completed", result), self.now)
    assert answer_of(lambda: make.complete_step(lease.real, result)) == expected
    if expected == RECORDED:
        lease.receipt = ("completed", result)
        self.model.step_completed(lease, self.now)


@move(5, has_steps)
def fail_activity(self: Conversations, draw: Draw) -> None:
    lease, non_retryable = self.claim(TaskKind.ACTIVITY, draw), draw(st.sampled_from([False, False, True]))
    expected = self.model.judge_activity(lease, ("failed", non_retryable), self.now)
    assert answer_of(lambda: make.fail_step(lease.real, non_retryable=non_retryable)) == expected
    if expected == RECORDED:
        lease.receipt = ("failed", non_retryable)
        self.model.attempt_failed(lease, self.now, non_retryable=non_retryable)


@move(1, has_steps)
def complete_the_activity_of_another_worker(self: Conversations, draw: Draw) -> None:
    lease = self.claim(TaskKind.ACTIVITY, draw)
    report = replace(lease.real.report, lease_owner="somebody else")
    assert answer_of(lambda: complete_activity_of(report, {"result": None})) == "lease_owner_mismatch"


@move(3, has_steps)
def heartbeat_of_an_activity(self: Conversations, draw: Draw) -> None:
    lease, progress = self.claim(TaskKind.ACTIVITY, draw), draw(st.sampled_from([None, {"current": 1}]))
    expected = self.model.judge_heartbeat(lease, self.now)
    standing = heartbeat_activity(lease.real.report, progress)
    assert (standing.reason, standing.recorded) == (expected, expected is None)
    if expected is None:
        self.model.renewed(lease, self.now, is_heartbeat=True)


@move(2, has_steps)
def renew_the_lease_of_an_activity(self: Conversations, draw: Draw) -> None:
    lease = self.claim(TaskKind.ACTIVITY, draw)
    expected = self.model.judge_activity(lease, None, self.now)
    if expected == RECORDED and (passed := self.model.passed_deadline(lease.task, self.now, *OF_A_CLAIM)):
        expected = f"{passed}_timeout"
    assert answer_of(lambda: renew_activity_lease(lease.real.report)) == expected
    if expected == RECORDED:
        self.model.renewed(lease, self.now, is_heartbeat=False)


# -- moves: workers come and go, time passes, upkeep -------------------------------------------------------------------


@move(1)
def deregister(self: Conversations, draw: Draw) -> None:
    worker = draw(some_worker)
    if worker not in self.model.workers:
        assert answer_of(lambda: deregister_worker("default", worker)) == "worker_not_found"
    else:
        receipt = deregister_worker("default", worker)
        assert receipt.recovered_workflow_task_count == self.model.deregistered(worker, self.now)


@move(3, lambda self: len(self.model.workers) < len(WORKERS))
def register(self: Conversations, draw: Draw) -> None:
    for worker in WORKERS:
        self.register(worker)


@move(3)
def time_passes(self: Conversations, draw: Draw) -> None:
    self.clock.advance(draw(st.sampled_from([1, 15, 61])))


@move(4, lambda self: bool(self.model.moments(self.now)))
def time_passes_until_something_is_due(self: Conversations, draw: Draw) -> None:
    moments = self.model.moments(self.now)
    moment = moments[draw(st.sampled_from([0, 0, 1])) % len(moments)]
    self.clock.turn_to(draw(st.sampled_from([moment, moment, moment - MICROSECOND])))


@move(4)
def upkeep_recovers_leases(self: Conversations, draw: Draw) -> None:
    self.sweep(sweeps.recover_leases, self.model.recover)


@move(4)
def upkeep_makes_tasks_due(self: Conversations, draw: Draw) -> None:
    self.sweep(sweeps.make_tasks_due, self.model.make_due)


@move(4)
def upkeep_times_activities_out(self: Conversations, draw: Draw) -> None:
    self.sweep(sweeps.time_out_activities, self.model.time_out_activities)


@move(1)
def upkeep_times_runs_out(self: Conversations, draw: Draw) -> None:
    self.sweep(sweeps.time_out_runs, self.model.time_out_runs)


@move(1)
def upkeep_prunes_poll_receipts(self: Conversations, draw: Draw) -> None:
    pruning.prune_poll_receipts()
    self.model.pruned_poll_receipts(self.now)


def without_expiry(body: dict[str, Any]) -> dict[str, Any]:
    """A replayed task is the claimed one, except for what heartbeats moved since."""
    return {name: value for name, value in body.items() if name not in ("lease_expires_at", "deadlines", "run_status")}


@pytest.mark.usefixtures("database")
def test_answers_every_request_as_the_model_says_and_keeps_the_invariants() -> None:
    run_state_machine_as_test(
        Conversations,
        settings=profile(
            max_examples=int(EXAMPLES or 20),
            stateful_step_count=60,
            derandomize=EXAMPLES is None,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
