"""The moves of a conversation: what callers, workers, time and upkeep may do, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st

from durable.leases import Leased
from durable.models import HistoryEvent
from durable.operations.complete_activity import complete_activity as complete_activity_of
from durable.operations.deregister_worker import deregister_worker
from durable.operations.heartbeat_activity import heartbeat_activity, renew_activity_lease
from durable.operations.heartbeat_workflow_task import heartbeat_workflow_task
from durable.operations.repair_workflow import repair_workflow
from durable.operations.start_workflow import Started
from durable.operations.stop_workflow import cancel_workflow, terminate_workflow
from durable.states import TaskKind
from durable.upkeep import pruning, sweeps
from tests import factories as make
from tests.clock import MICROSECOND
from tests.durable.conversations import WORKERS, Conversation, Draw, answer_of
from tests.durable.model import RECORDED, Lease, Policy, Run

KINDS = [TaskKind.WORKFLOW, TaskKind.ACTIVITY]
OF_A_CLAIM = ("schedule_to_close", "heartbeat", "start_to_close")

some_worker = st.sampled_from(WORKERS)
some_policy = st.sampled_from(
    [
        Policy(max_attempts=3),
        Policy(max_attempts=2, backoff=30),
        Policy(max_attempts=2, start_to_close=100),
        Policy(max_attempts=2, backoff=10, heartbeat=40, start_to_close=90),
        Policy(max_attempts=2, schedule_to_start=50),
        Policy(max_attempts=9, backoff=60, schedule_to_close=110),
        Policy(heartbeat=400, schedule_to_close=700),
    ]
)


@dataclass(frozen=True)
class Move:
    """Something that may happen, how often, and when it can."""

    weight: int
    applies: Callable[[Conversation], bool]
    make: Callable[[Conversation, Draw], None]

    def __repr__(self) -> str:
        return self.make.__name__


MOVES: list[Move] = []


def move(weight: int, applies: Callable[[Conversation], bool] = lambda _: True) -> Callable[[Any], Any]:
    """Add a function to the moves."""

    def add(make: Any) -> Any:
        MOVES.append(Move(weight, applies, make))
        return make

    return add


# -- callers ----------------------------------------------------------------------------------------------------


@move(5, lambda self: sum(not run.closed for run in self.model.runs.values()) < 4)
def start(self: Conversation, draw: Draw) -> None:
    workflow_id, seconds = self.workflow_id(draw, more=2), draw(st.sampled_from([None, None, 90]))
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


@move(1, lambda self: sum(not run.closed for run in self.model.runs.values()) > 2)
def stop(self: Conversation, draw: Draw) -> None:
    workflow_id, operation = self.workflow_id(draw), draw(st.sampled_from([cancel_workflow, terminate_workflow]))
    run = self.model.runs.get(workflow_id)
    expected = "instance_not_found" if run is None else "run_not_active" if run.closed else RECORDED
    assert answer_of(lambda: operation(make.target(workflow_id), reason=None)) == expected
    if run is not None and expected == RECORDED:
        self.model.close(run, "cancelled" if operation is cancel_workflow else "terminated")


@move(1)
def repair(self: Conversation, draw: Draw) -> None:
    workflow_id = self.workflow_id(draw)
    run = self.model.runs.get(workflow_id)
    if run is None or run.closed:
        expected = "run_not_active" if run else "instance_not_found"
        assert answer_of(lambda: repair_workflow(make.target(workflow_id))) == expected
    else:
        assert repair_workflow(make.target(workflow_id)).outcome == self.model.repaired(run, self.now)


# -- polls ------------------------------------------------------------------------------------------------------


@move(1)
def poll_in_vain(self: Conversation, draw: Draw) -> None:
    """Whether there is something or not."""
    self.poll_as(draw(some_worker), draw(st.sampled_from(KINDS)), None)


@move(30, lambda self: any(self.model.offered(kind, self.now) for kind in KINDS))
def poll(self: Conversation, draw: Draw) -> None:
    kinds = [kind for kind in KINDS if self.model.offered(kind, self.now)]
    self.poll_count += 1
    poll_request_id = f"poll-{self.poll_count}" if draw(st.booleans()) else None
    self.poll_as(draw(some_worker), draw(st.sampled_from(kinds)), poll_request_id)


@move(3, lambda self: any(lease.poll_request_id for lease in self.model.leases))
def poll_with_an_id_again(self: Conversation, draw: Draw) -> None:
    """The same poll id once more: the lease it was granted, if that still lives."""
    with_id = [lease for lease in self.model.leases if lease.poll_request_id]
    live = [lease for lease in with_id if lease.is_live(self.now)] if draw(st.booleans()) else []
    lease = draw(st.sampled_from((live or with_id)[-5:]))
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


# -- workflow tasks ---------------------------------------------------------------------------------------------


def has_decisions(self: Conversation) -> bool:
    return bool(self.claims(TaskKind.WORKFLOW))


@move(6, has_decisions)
def complete_with_steps(self: Conversation, draw: Draw) -> None:
    lease = self.claim(TaskKind.WORKFLOW, draw)
    policies = draw(st.lists(some_policy, min_size=1, max_size=3))
    self.complete(lease, [make.schedule(**p.fields()) for p in policies], steps=[[p] for p in policies])


@move(4, has_decisions)
def complete_with_a_list(self: Conversation, draw: Draw) -> None:
    lease = self.claim(TaskKind.WORKFLOW, draw)
    policy, count = draw(some_policy), draw(st.integers(2, 3))
    commands = make.schedule_list(count, base=lease.next_step, **policy.fields())
    self.complete(lease, commands, steps=[[policy] * count])


@move(6, has_decisions)
def checkpoint(self: Conversation, draw: Draw) -> None:
    """The first commands of a claim that goes on: in step with the run, or with what the claim was shown."""
    lease, checkpoint_id = self.claim(TaskKind.WORKFLOW, draw), draw(st.sampled_from(["c-1", "c-2"]))
    run = lease.task.run
    policies, is_list = [draw(some_policy)] * draw(st.integers(1, 2)), draw(st.booleans())
    start = draw(st.sampled_from([len(run.steps) + 1, lease.next_step]))
    fields = policies[0].fields()
    commands = make.schedule_list(len(policies), base=start, **fields) if is_list else [make.schedule(**fields)]
    policies = policies if is_list else policies[:1]
    body = repr((start, commands))
    expected = self.model.judge_checkpoint(lease, checkpoint_id, body, start, self.now)
    answer = answer_of(
        lambda: make.checkpoint(lease.real, *commands, start_sequence=start, checkpoint_id=checkpoint_id)
    )
    assert answer == expected
    if expected == RECORDED:
        self.model.checkpointed(lease, checkpoint_id, body, policies, is_list, self.now)
        # The claim may read to the end of its checkpoint, and its poll, sent again, says so.
        last = HistoryEvent.objects.filter(run_id=run.id).count()
        lease.real.body.update(total_history_events=last, last_history_sequence=last)


@move(3, lambda self: any(lease.open_lists for lease in self.model.leases))
def complete_with_an_unresolved_list_again(self: Conversation, draw: Draw) -> None:
    """What a worker sends on each replay while a list is unresolved: it changes nothing."""
    lease = draw(st.sampled_from([lease for lease in self.model.leases if lease.open_lists][-3:]))
    first, size = lease.open_lists[-1]
    policy = lease.task.run.steps[first - 1].policy
    self.complete(lease, make.schedule_list(size, base=first, **policy.fields()))


@move(1, has_decisions)
def complete_with_the_end(self: Conversation, draw: Draw) -> None:
    lease = self.claim(TaskKind.WORKFLOW, draw)
    if draw(st.booleans()):
        self.complete(lease, [make.finish("done")], ends="completed")
    else:
        self.complete(lease, [{"type": "fail_workflow", "message": "boom"}], ends="failed")


@move(1, has_decisions)
def complete_badly(self: Conversation, draw: Draw) -> None:
    lease = self.claim(TaskKind.WORKFLOW, draw)
    expected = self.model.judge_workflow(lease, "bad", self.now)
    answer = answer_of(lambda: make.complete(lease.real, make.schedule(), {"type": "unheard_of"}))
    assert answer == ("validation_failed" if expected == RECORDED else expected)


def may_wait(lease: Lease) -> bool:
    """No worker waits for nothing: its run could never go on."""
    return bool(lease.task.run.pending) or lease.task.run.wakes > lease.task.shown


@move(5, lambda self: any(may_wait(lease) for lease in self.claims(TaskKind.WORKFLOW)))
def report_waiting(self: Conversation, draw: Draw) -> None:
    waiting = [lease for lease in self.claims(TaskKind.WORKFLOW) if may_wait(lease)]
    live = [lease for lease in waiting if lease.is_live(self.now)] if draw(st.integers(0, 3)) else []
    lease = draw(st.sampled_from((live or waiting)[-4:]))
    expected = self.model.judge_workflow(lease, None, self.now)
    assert answer_of(lambda: make.report_waiting(lease.real)) == expected
    if expected == RECORDED:
        self.model.claim_ended(lease.task, "completed", self.now)


@move(3, has_decisions)
def report_failure(self: Conversation, draw: Draw) -> None:
    lease, blocks = self.claim(TaskKind.WORKFLOW, draw), draw(st.sampled_from([False, False, True]))
    expected = self.model.judge_workflow(lease, None, self.now)
    message = "Workflow replay failed." if blocks else "boom"
    assert answer_of(lambda: make.report_failure(lease.real, message)) == expected
    if expected == RECORDED and blocks:
        self.model.replay_failed(lease)
    elif expected == RECORDED:
        self.model.task_failed(lease, self.now)


@move(2, has_decisions)
def heartbeat_of_a_workflow_task(self: Conversation, draw: Draw) -> None:
    lease = self.claim(TaskKind.WORKFLOW, draw)
    expected = self.model.judge_workflow(lease, None, self.now, asks_for_deadline=False)
    assert answer_of(lambda: heartbeat_workflow_task(lease.real.report)) == expected
    if expected == RECORDED:
        self.model.renewed(lease, self.now, is_heartbeat=True)


# -- activities -------------------------------------------------------------------------------------------------


def has_steps(self: Conversation) -> bool:
    return bool(self.claims(TaskKind.ACTIVITY))


@move(8, has_steps)
def complete_activity(self: Conversation, draw: Draw) -> None:
    lease, result = self.claim(TaskKind.ACTIVITY, draw), draw(st.sampled_from(["a", "a", "b"]))
    expected = self.model.judge_activity(lease, ("completed", result), self.now)
    assert answer_of(lambda: make.complete_step(lease.real, result)) == expected
    if expected == RECORDED:
        lease.receipt = ("completed", result)
        self.model.step_completed(lease, self.now)


@move(5, has_steps)
def fail_activity(self: Conversation, draw: Draw) -> None:
    lease, non_retryable = self.claim(TaskKind.ACTIVITY, draw), draw(st.sampled_from([False, False, True]))
    expected = self.model.judge_activity(lease, ("failed", non_retryable), self.now)
    assert answer_of(lambda: make.fail_step(lease.real, non_retryable=non_retryable)) == expected
    if expected == RECORDED:
        lease.receipt = ("failed", non_retryable)
        self.model.attempt_failed(lease, self.now, non_retryable=non_retryable)


@move(1, has_steps)
def complete_the_activity_of_another_worker(self: Conversation, draw: Draw) -> None:
    lease = self.claim(TaskKind.ACTIVITY, draw)
    report = replace(lease.real.report, lease_owner="somebody else")
    assert answer_of(lambda: complete_activity_of(report, {"result": None})) == "lease_owner_mismatch"


@move(3, has_steps)
def heartbeat_of_an_activity(self: Conversation, draw: Draw) -> None:
    lease, progress = self.claim(TaskKind.ACTIVITY, draw), draw(st.sampled_from([None, {"current": 1}]))
    expected = self.model.judge_heartbeat(lease, self.now)
    standing = heartbeat_activity(lease.real.report, progress)
    assert (standing.reason, standing.recorded) == (expected, expected is None)
    if expected is None:
        self.model.renewed(lease, self.now, is_heartbeat=True)


@move(2, has_steps)
def renew_the_lease_of_an_activity(self: Conversation, draw: Draw) -> None:
    lease = self.claim(TaskKind.ACTIVITY, draw)
    expected = self.model.judge_activity(lease, None, self.now)
    if expected == RECORDED and (passed := self.model.passed_deadline(lease.task, self.now, *OF_A_CLAIM)):
        expected = f"{passed}_timeout"
    assert answer_of(lambda: renew_activity_lease(lease.real.report)) == expected
    if expected == RECORDED:
        self.model.renewed(lease, self.now, is_heartbeat=False)


# -- workers come and go, time passes, upkeep -------------------------------------------------------------------


@move(1)
def deregister(self: Conversation, draw: Draw) -> None:
    worker = draw(some_worker)
    if worker not in self.model.workers:
        assert answer_of(lambda: deregister_worker("default", worker)) == "worker_not_found"
    else:
        receipt = deregister_worker("default", worker)
        assert receipt.recovered_workflow_task_count == self.model.deregistered(worker, self.now)


@move(20, lambda self: len(self.model.workers) < len(WORKERS))
def register(self: Conversation, draw: Draw) -> None:
    for worker in WORKERS:
        self.register(worker)


@move(2)
def time_passes(self: Conversation, draw: Draw) -> None:
    self.clock.advance(draw(st.sampled_from([1, 15, 61])))


@move(8, lambda self: bool(self.model.moments(self.now)))
def time_passes_until_something_is_due(self: Conversation, draw: Draw) -> None:
    moments = self.model.moments(self.now)
    moment = moments[draw(st.sampled_from([0, 0, 1])) % len(moments)]
    self.clock.turn_to(draw(st.sampled_from([moment, moment, moment - MICROSECOND])))


def is_late(self: Conversation, *names: str) -> bool:
    """Whether an open task's lease, place in time or deadline has passed."""
    open_tasks = [task for run in self.model.runs.values() for task in run.tasks if task.is_open]
    return any(self.model.passed(task, name, self.now) for task in open_tasks for name in names)


@move(12, lambda self: is_late(self, "lease"))
def upkeep_recovers_leases(self: Conversation, draw: Draw) -> None:
    self.sweep(sweeps.recover_leases, self.model.recover)


@move(12, lambda self: is_late(self, "due"))
def upkeep_makes_tasks_due(self: Conversation, draw: Draw) -> None:
    self.sweep(sweeps.make_tasks_due, self.model.make_due)


@move(12, lambda self: is_late(self, *OF_A_CLAIM, "schedule_to_start"))
def upkeep_times_activities_out(self: Conversation, draw: Draw) -> None:
    self.sweep(sweeps.time_out_activities, self.model.time_out_activities)


@move(1)
def upkeep_does_its_round(self: Conversation, draw: Draw) -> None:
    """Whether there is something to do or not."""
    self.sweep(sweeps.recover_leases, self.model.recover)
    self.sweep(sweeps.make_tasks_due, self.model.make_due)
    self.sweep(sweeps.time_out_activities, self.model.time_out_activities)
    self.sweep(sweeps.time_out_runs, self.model.time_out_runs)


@move(1)
def upkeep_prunes_poll_receipts(self: Conversation, draw: Draw) -> None:
    pruning.prune_poll_receipts()
    self.model.pruned_poll_receipts(self.now)


def without_expiry(body: dict[str, Any]) -> dict[str, Any]:
    """A replayed task is the claimed one, except for what heartbeats moved since."""
    return {name: value for name, value in body.items() if name not in ("lease_expires_at", "deadlines", "run_status")}
