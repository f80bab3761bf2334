"""An engine under random load: worker threads, impatient callers and upkeep on the same runs, then a drain.

A worker here decides from the history it was given, as the published SDK does: it schedules, waits, sends an unresolved
list group again, and ends the run after a number of steps that depends on the run alone.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from django.db import DatabaseError, connection
from django.utils import timezone

from durable.leases import Leased
from durable.models import Run, Task
from durable.operations.deregister_worker import deregister_worker
from durable.operations.heartbeat_activity import heartbeat_activity, renew_activity_lease
from durable.operations.heartbeat_workflow_task import heartbeat_workflow_task
from durable.operations.repair_workflow import repair_workflow
from durable.operations.stop_workflow import cancel_workflow, terminate_workflow
from durable.refusals import Reason, Refusal
from durable.sql import rows
from durable.states import OPEN_RUN, TaskKind, TaskStatus
from durable.upkeep import sweeps
from tests import factories as make
from tests.factories import Lease

WORKERS = ("w-1", "w-2", "w-3", "w-4")
STEP_ENDS = ("ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled")
POLICY = {"retry_policy": {"max_attempts": 3, "backoff_seconds": [0, 1]}}
# What a race may end in for the one who lost it. Anything else is counted as unexpected.
LOST_RACES = {
    Reason.CONFLICTING_COMPLETION, Reason.TASK_NOT_LEASED, Reason.LEASE_EXPIRED, Reason.LEASE_OWNER_MISMATCH,
    Reason.WORKFLOW_TASK_ATTEMPT_MISMATCH, Reason.RUN_CLOSED, Reason.STALE_ATTEMPT, Reason.RUN_CANCELLED,
    Reason.RUN_TERMINATED, Reason.RUN_NOT_ACTIVE, Reason.POLL_CACHED_TASK_EXPIRED, Reason.WORKER_NOT_REGISTERED,
    Reason.STALE_WORKER_REGISTRATION, Reason.WORKER_NOT_FOUND, Reason.INSTANCE_ALREADY_STARTED,
}  # fmt: skip


def next_commands(lease: Lease, rng: random.Random | None) -> list[dict[str, Any]]:
    """What the workflow code would ask for, given this history; nothing at all means that it waits.

    Without dice it asks for nothing new: it ends as soon as nothing is pending.
    """
    scheduled: dict[int, Any] = {}
    ended: set[int] = set()
    for event in lease.history:
        payload = event.payload.parse()
        if event.event_type == "ActivityScheduled":
            scheduled[payload["sequence"]] = payload.get("parallel_group_path")
        elif event.event_type in STEP_ENDS:
            ended.add(payload["sequence"])
    pending = sorted(scheduled.keys() - ended)
    if pending:
        return repeated_group(scheduled[pending[0]]) if rng and rng.random() < 0.5 else []
    if rng is None or len(scheduled) >= 2 + sum(lease.body["run_id"].encode()) % 4:
        return [make.finish(len(scheduled))]
    shape = rng.random()
    if shape < 0.4:
        return [make.schedule(**POLICY)]
    if shape < 0.6:
        return [make.schedule(**POLICY), make.schedule()]
    return make.schedule_list(rng.choice((2, 3)), base=len(scheduled) + 1, **POLICY)


def repeated_group(path: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The commands of an unresolved list group, as a worker sends them again on every replay."""
    if not path:
        return []
    group = path[0]
    return make.schedule_list(group["parallel_group_size"], base=group["parallel_group_base_sequence"], **POLICY)


@dataclass
class Stress:
    """One bout of load. `surfaced` are database errors that reached a caller, deadlocks above all; `faults` are others.

    `done` says what happened how often.
    """

    seed: int
    seconds: float
    most_open_runs: int = 12
    done: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    surfaced: list[str] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    old_leases: list[Lease] = field(default_factory=list)
    poll_ids: list[tuple[str, TaskKind, str]] = field(default_factory=list)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def run(self, threads: int) -> None:
        """Load from several threads, and upkeep beside it, for the time given."""
        deadline = time.monotonic() + self.seconds
        workers = [threading.Thread(target=self._load, args=(number, deadline)) for number in range(threads)]
        workers.append(threading.Thread(target=self._keep_up, args=(deadline,)))
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(self.seconds + 60)

    # -- threads -------------------------------------------------------------------------------------------------------

    def _load(self, number: int, deadline: float) -> None:
        rng = random.Random(f"{self.seed}/{number}")
        moves = [
            (self.start, 10), (self.claim_workflow, 30), (self.claim_activity, 30), (self.report, 60),
            (self.report_late, 4), (self.beat, 8), (self.expire, 4), (self.stop, 1), (self.leave, 1),
        ]  # fmt: skip
        names, weights = zip(*moves, strict=True)
        try:
            while time.monotonic() < deadline:
                self._try(rng.choices(names, weights)[0], rng)
        finally:
            connection.close()

    def _keep_up(self, deadline: float) -> None:
        try:
            while time.monotonic() < deadline:
                for sweep in (sweeps.recover_leases, sweeps.make_tasks_due):
                    passed = sweep()
                    self.done[f"upkeep {sweep.args[0]}"] += passed.handled
                    if passed.failed:
                        self.faults.append(f"upkeep {sweep.args[0]}: {passed.error}")
                time.sleep(0.02)
        finally:
            connection.close()

    def _try(self, move: Any, rng: random.Random) -> None:
        try:
            outcome = move(rng)
            self.done[outcome or f"{move.__name__}: nothing to do"] += 1
        except Refusal as refusal:
            self.done[f"refused {refusal.reason}"] += 1
            if refusal.reason not in LOST_RACES:
                self.faults.append(f"{move.__name__}: {refusal!r}")
        except DatabaseError as error:
            self.surfaced.append(f"{move.__name__}: {type(error).__name__} {error}")
        except Exception as error:
            self.faults.append(f"{move.__name__}: {type(error).__name__} {error}")

    # -- moves ---------------------------------------------------------------------------------------------------------

    def start(self, rng: random.Random) -> str | None:
        if Run.objects.filter(status__in=OPEN_RUN).count() >= self.most_open_runs:
            return None
        make.start(f"wf-{rng.randrange(10_000)}", duplicate_policy="use-existing", priority=rng.randrange(3))
        return "started"

    def claim_workflow(self, rng: random.Random) -> str | None:
        return self._claim(TaskKind.WORKFLOW, rng)

    def claim_activity(self, rng: random.Random) -> str | None:
        return self._claim(TaskKind.ACTIVITY, rng)

    def _claim(self, kind: TaskKind, rng: random.Random) -> str | None:
        worker_id, poll_id = rng.choice(WORKERS), f"p-{rng.randrange(10**9)}" if rng.random() < 0.7 else None
        with self.guard:
            if self.poll_ids and rng.random() < 0.15:
                worker_id, kind, poll_id = rng.choice(self.poll_ids)
            elif poll_id is not None:
                self.poll_ids = [*self.poll_ids[-20:], (worker_id, kind, poll_id)]
        outcome = make.try_poll(make.poll_request(kind, worker_id, poll_request_id=poll_id))
        if not isinstance(outcome, Leased):
            return "poll was busy" if outcome.was_busy else None
        if not outcome.is_replay:
            lease = Lease(outcome.claimed.body, outcome.page.events if outcome.page else [])
            with self.guard:
                self.leases.append(lease)
        return "replayed" if outcome.is_replay else f"claimed {kind}"

    def report(self, rng: random.Random) -> str | None:
        with self.guard:
            if not self.leases:
                return None
            lease = self.leases.pop(rng.randrange(len(self.leases)))
            self.old_leases = [*self.old_leases[-50:], lease]
        return self.report_on(lease, rng)

    def report_late(self, rng: random.Random) -> str | None:
        """A worker that was paused, or lost the answer, reports about a claim that ended long ago."""
        with self.guard:
            lease = rng.choice(self.old_leases) if self.old_leases else None
        if lease is not None:
            self.report_on(lease, rng)
        return "reported late" if lease else None

    def report_on(self, lease: Lease, rng: random.Random | None) -> str:
        dice = rng.random() if rng else 0.5
        if lease.body["task_kind"] == TaskKind.WORKFLOW:
            if dice < 0.04:
                make.report_failure(lease)
                return "failed workflow task"
            if dice < 0.05:
                make.report_failure(lease, "replay failed")
                repair_workflow(make.target(lease.body["workflow_id"], lease.body["run_id"]))
                return "blocked and repaired"
            commands = next_commands(lease, rng)
            if commands and rng and rng.random() < 0.2 and commands[0]["type"] == "schedule_activity":
                types = [event.event_type for event in lease.history]
                make.checkpoint(lease, *commands, start_sequence=types.count("ActivityScheduled") + 1)
                make.report_waiting(lease)
                return "checkpointed, then waiting"
            if commands:
                make.complete(lease, *commands)
                return f"completed with {commands[0]['type']}"
            make.report_waiting(lease)
            return "waiting"
        if dice < 0.1:
            make.fail_step(lease)
            return "failed attempt"
        if dice < 0.13:
            make.fail_step(lease, non_retryable=True)
            return "failed activity"
        make.complete_step(lease, "result")
        return "completed activity"

    def beat(self, rng: random.Random) -> str | None:
        with self.guard:
            lease = rng.choice(self.leases) if self.leases else None
        if lease is None:
            return None
        if lease.body["task_kind"] == TaskKind.WORKFLOW:
            heartbeat_workflow_task(lease.report)
        elif rng.random() < 0.5:
            heartbeat_activity(lease.report, {"current": rng.randrange(100)})
        else:
            renew_activity_lease(lease.report)
        return "heartbeat"

    def expire(self, rng: random.Random) -> str | None:
        """A lease runs out; its worker does not know, and may still report."""
        with self.guard:
            lease = rng.choice(self.leases) if self.leases else None
        if lease is None:
            return None
        where = {"id": lease.task_id, "status": TaskStatus.LEASED}
        return "expired" if rows.update(Task, {"lease_expires_at": timezone.now()}, where) else None

    def stop(self, rng: random.Random) -> str | None:
        run = Run.objects.filter(status__in=OPEN_RUN).order_by("-id").first()
        if run is None:
            return None
        operation = rng.choice((cancel_workflow, terminate_workflow))
        operation(make.target(run.workflow_id), reason="stress")
        return operation.__name__

    def leave(self, rng: random.Random) -> str:
        """A worker deregisters and comes back as a new incarnation."""
        worker_id = rng.choice(WORKERS)
        try:
            deregister_worker("default", worker_id)
        finally:
            make.register(worker_id)
        return "deregistered"

    # -- the end -------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Patient workers finish everything: whatever is still open afterwards, nothing would ever have woken."""
        for worker_id in WORKERS:
            make.register(worker_id)
        for _ in range(60):
            past = timezone.now()
            Task.objects.filter(status=TaskStatus.LEASED).update(lease_expires_at=past)
            Task.objects.filter(due=False).update(due_at=past)
            sweeps.recover_leases()
            sweeps.make_tasks_due()
            if not Run.objects.filter(status__in=OPEN_RUN).exists() or not self._drain_once():
                return

    def _drain_once(self) -> bool:
        progress = False
        for kind in (TaskKind.WORKFLOW, TaskKind.ACTIVITY):
            while isinstance(outcome := make.try_poll(make.poll_request(kind)), Leased):
                lease = Lease(outcome.claimed.body, outcome.page.events if outcome.page else [])
                self.report_on(lease, None)
                progress = True
        return progress
