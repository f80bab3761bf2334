"""A small model of the engine: what must come of every request, in plain Python (docs/protocol/history.md 1 to 10).

It knows runs, steps, tasks and leases, and nothing of tables, locks or payloads. `Model` is told of each request and
says what the answer must be; afterwards its tasks must be the database's.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import datetime, timedelta

WORKFLOW_LEASE = timedelta(seconds=60)
ACTIVITY_LEASE = timedelta(seconds=300)
RECEIPT = timedelta(seconds=120)
RECORDED, DUPLICATE = "recorded", "duplicate"


@dataclass(frozen=True)
class Policy:
    """What a step was scheduled with, in seconds."""

    max_attempts: int = 1
    backoff: int = 0
    start_to_close: int | None = None
    heartbeat: int | None = None
    schedule_to_start: int | None = None
    schedule_to_close: int | None = None

    def fields(self) -> dict[str, object]:
        """The fields of `schedule_activity`."""
        names = ("start_to_close", "heartbeat", "schedule_to_start", "schedule_to_close")
        time_outs = {f"{name}_timeout": seconds for name in names if (seconds := getattr(self, name)) is not None}
        return {
            "retry_policy": {"max_attempts": self.max_attempts, "backoff_seconds": [self.backoff]},
            **time_outs,
        }


@dataclass(eq=False)
class Step:
    """One activity. `group` counts the leaves of its list that are still pending."""

    number: int
    policy: Policy
    group: list[int] | None
    close_at: datetime | None
    status: str = "pending"
    lost_leases: int = 0


@dataclass(eq=False)
class Task:
    """One row of work, `number` in order of creation. `shown` is how many of the run's wakes its last claim knew of."""

    number: int = field(default_factory=itertools.count().__next__, init=False)
    run: Run
    step: Step | None
    available_at: datetime
    is_due: bool = True
    status: str = "ready"
    attempt: int = 0
    failures: int = 0
    owner: str | None = None
    expires_at: datetime | None = None
    shown: int = 0
    deadlines: dict[str, datetime] = field(default_factory=dict)
    receipt: tuple[str, int, object] | None = None

    @property
    def kind(self) -> str:
        return "workflow" if self.step is None else "activity"

    @property
    def is_open(self) -> bool:
        return self.status in ("ready", "leased")

    def row(self) -> tuple[object, ...]:
        """What the database must say of an open task."""
        number = self.step.number if self.step else 0
        return (self.run.id, number, self.status, self.attempt, self.owner, self.expires_at, self.is_due)


@dataclass(eq=False)
class Run:
    """One run. `wakes` counts what a worker must still be shown; `groups` are lists that a worker may send again."""

    id: str
    workflow_id: str
    deadline: datetime | None
    closed: str | None = None
    is_blocked: bool = False
    wakes: int = 0
    steps: list[Step] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)

    @property
    def decision(self) -> Task | None:
        return next((task for task in self.tasks if task.kind == "workflow" and task.is_open), None)

    @property
    def pending(self) -> list[Step]:
        return [step for step in self.steps if step.status == "pending"]


@dataclass(eq=False, repr=False)
class Lease:
    """One claim, for as long as its worker may report about it. `real` is what the worker was given."""

    task: Task
    attempt: int
    owner: str
    real: object
    poll_request_id: str | None
    # How far the run was when the claim was made: what the worker bases its commands on.
    next_step: int = 1
    # Until when the receipt of its poll is kept; None without one, or once it is gone.
    receipt_until: datetime | None = None
    open_lists: list[tuple[int, int]] = field(default_factory=list)
    attempt_status: str = "running"
    receipt: tuple[str, object] | None = None

    def __repr__(self) -> str:
        step = f"step {self.task.step.number}" if self.task.step else "decision"
        return f"<claim {self.attempt} by {self.owner}: {step} of {self.task.run.workflow_id}, {self.task.status}>"

    def is_live(self, now: datetime) -> bool:
        task = self.task
        is_held = task.status == "leased" and (task.owner, task.attempt) == (self.owner, self.attempt)
        return is_held and task.expires_at is not None and task.expires_at > now


class Model:
    """The state, and what follows from each request."""

    def __init__(self, *, max_lost_leases: int) -> None:
        self.max_lost_leases = max_lost_leases
        self.runs: dict[str, Run] = {}
        self.leases: list[Lease] = []
        self.workers: set[str] = set()
        # (task, owner, attempt, checkpoint id) -> body.
        self.checkpoints: dict[tuple[Task, str, int, str], object] = {}

    # -- looking -------------------------------------------------------------------------------------------------------

    def open_rows(self) -> list[tuple[object, ...]]:
        return sorted((task.row() for task in self._tasks() if task.is_open), key=repr)

    def _tasks(self) -> list[Task]:
        return [task for run in self.runs.values() for task in run.tasks]

    def offered(self, kind: str, now: datetime) -> list[Task]:
        """What polls may be given, in this order; nothing else."""
        tasks = [
            task
            for task in self._tasks()
            if (task.kind, task.status, task.is_due) == (kind, "ready", True)
            and (task.run.deadline is None or task.run.deadline > now)
        ]
        return sorted(tasks, key=lambda task: (task.available_at, task.number))

    def lease_of(self, task: Task) -> Lease:
        """The newest claim of a task."""
        return next(lease for lease in reversed(self.leases) if lease.task is task)

    def moments(self, now: datetime) -> list[datetime]:
        """When something may happen by itself."""
        found = [run.deadline for run in self.runs.values() if run.deadline and not run.closed]
        for task in self._tasks():
            if task.is_open:
                found += [*task.deadlines.values(), *([task.expires_at] if task.expires_at else [])]
                found += [] if task.is_due else [task.available_at]
        return sorted({moment for moment in found if moment > now})

    # -- runs ----------------------------------------------------------------------------------------------------------

    def started(self, run: Run, now: datetime) -> None:
        self.runs[run.workflow_id] = run
        self._wake(run, now)

    def _wake(self, run: Run, now: datetime) -> None:
        """Something happened that a worker must see: there is a workflow task, now or when the claim ends."""
        run.wakes += 1
        task = run.decision
        if task is None:
            run.is_blocked = False
            run.tasks.append(Task(run, None, now))
        elif task.status == "ready" and not task.is_due:
            task.is_due, task.available_at = True, now

    def close(self, run: Run, reason: str) -> None:
        """The run is over, and with it everything that hangs on it."""
        run.closed, run.is_blocked = reason, False
        for task in run.tasks:
            if task.is_open:
                if task.step is not None and task.status == "leased":
                    self.lease_of(task).attempt_status = "cancelled"
                self._end(task, "cancelled")
        for step in run.pending:
            step.status = "cancelled"

    @staticmethod
    def _end(task: Task, status: str) -> None:
        task.status, task.owner, task.expires_at, task.is_due, task.deadlines = status, None, None, True, {}

    # -- claims --------------------------------------------------------------------------------------------------------

    def claimed(self, task: Task, owner: str, real: object, poll_request_id: str | None, now: datetime) -> None:
        task.status, task.owner, task.attempt, task.shown = "leased", owner, task.attempt + 1, task.run.wakes
        task.expires_at = now + (WORKFLOW_LEASE if task.step is None else ACTIVITY_LEASE)
        lease = Lease(task, task.attempt, owner, real, poll_request_id, next_step=len(task.run.steps) + 1)
        if poll_request_id is not None:
            lease.receipt_until = max(task.expires_at, now + RECEIPT)
        if task.step is None:
            lists = {id(s.group): (s.number, s.group) for s in reversed(task.run.steps) if s.group is not None}
            lease.open_lists = [(first, len(self._leaves(task.run, g))) for first, g in lists.values() if g[0] > 0]
        else:
            task.deadlines.pop("schedule_to_start", None)
            for name in ("start_to_close", "heartbeat"):
                if (seconds := getattr(task.step.policy, name)) is not None:
                    task.deadlines[name] = now + timedelta(seconds=seconds)
        self.leases.append(lease)

    @staticmethod
    def _leaves(run: Run, group: list[int]) -> list[Step]:
        return [step for step in run.steps if step.group is group]

    # -- reports about workflow tasks ----------------------------------------------------------------------------------

    def judge_workflow(
        self, lease: Lease, body: object | None, now: datetime, *, asks_for_deadline: bool = True
    ) -> str:
        """What a report must be answered; `body` is None for one that leaves no receipt.

        A report past the run's deadline closes the run; a heartbeat does not ask for it.
        """
        task = lease.task
        if body is not None and task.receipt is not None and task.receipt[:2] == (lease.owner, lease.attempt):
            return DUPLICATE if task.receipt[2] == body else "conflicting_completion"
        if task.status != "leased":
            return "run_closed" if task.run.closed else "task_not_leased"
        if task.expires_at <= now:
            return "lease_expired"
        if task.owner != lease.owner:
            return "lease_owner_mismatch"
        if task.attempt != lease.attempt:
            return "workflow_task_attempt_mismatch"
        if asks_for_deadline and task.run.deadline is not None and task.run.deadline <= now:
            self.close(task.run, "timed_out")
            return "run_closed"
        return RECORDED

    def completed(self, lease: Lease, body: object, steps: list[list[Policy]], ends: str | None, now: datetime) -> None:
        """A recorded completion; each inner list is a list group, or a single step."""
        task, run = lease.task, lease.task.run
        task.receipt = (lease.owner, lease.attempt, body)
        for policies in steps:
            group = [len(policies)] if len(policies) > 1 else None
            for policy in policies:
                self._schedule(run, policy, group, now)
        if ends is None:
            self.claim_ended(task, "completed", now)
        else:
            self._end(task, "completed")
            self.close(run, ends)

    def judge_checkpoint(
        self, lease: Lease, checkpoint_id: str, body: object, start_sequence: int, now: datetime
    ) -> str:
        """What a checkpoint must be answered."""
        recorded = self.checkpoints.get((lease.task, lease.owner, lease.attempt, checkpoint_id))
        if recorded is not None:
            return DUPLICATE if recorded == body else "conflicting_completion"
        answer = self.judge_workflow(lease, None, now)
        if answer == RECORDED and start_sequence != len(lease.task.run.steps) + 1:
            return "checkpoint_sequence_mismatch"
        return answer

    def checkpointed(
        self, lease: Lease, checkpoint_id: str, body: object, policies: list[Policy], is_list: bool, now: datetime
    ) -> None:
        """A recorded checkpoint: the claim goes on, and knows no more of what happened than before."""
        run = lease.task.run
        self.checkpoints[lease.task, lease.owner, lease.attempt, checkpoint_id] = body
        group = [len(policies)] if is_list else None
        if is_list:
            lease.open_lists.append((len(run.steps) + 1, len(policies)))
        for policy in policies:
            self._schedule(run, policy, group, now)

    def _schedule(self, run: Run, policy: Policy, group: list[int] | None, now: datetime) -> None:
        close_at = None if policy.schedule_to_close is None else now + timedelta(seconds=policy.schedule_to_close)
        step = Step(len(run.steps) + 1, policy, group, close_at)
        run.steps.append(step)
        self._offer(run, step, now, now)

    @staticmethod
    def _offer(run: Run, step: Step, now: datetime, available_at: datetime, attempt: int = 0) -> None:
        task = Task(run, step, available_at, is_due=available_at <= now, attempt=attempt)
        if step.policy.schedule_to_start is not None:
            task.deadlines["schedule_to_start"] = available_at + timedelta(seconds=step.policy.schedule_to_start)
        if step.close_at is not None:
            task.deadlines["schedule_to_close"] = step.close_at
        run.tasks.append(task)

    def claim_ended(self, task: Task, status: str, now: datetime) -> None:
        """The next task follows if the claim was not shown everything."""
        self._end(task, status)
        if task.run.wakes > task.shown:
            task.run.tasks.append(Task(task.run, None, now))

    def task_failed(self, lease: Lease, now: datetime) -> None:
        """An ordinary failure is tried again, from the second on after a back-off."""
        task = lease.task
        self._end(task, "failed")
        failures = task.failures + 1
        delay = timedelta(seconds=min(60, 2 ** (failures - 1)) if failures > 1 else 0)
        retry = Task(task.run, None, now + delay, is_due=not delay, attempt=task.attempt, failures=failures)
        task.run.tasks.append(retry)

    def replay_failed(self, lease: Lease) -> None:
        self._end(lease.task, "failed")
        lease.task.run.is_blocked = True

    def repaired(self, run: Run, now: datetime) -> str:
        if run.decision is None and (run.is_blocked or not run.pending):
            self._wake(run, now)
            return "repair_dispatched"
        return "repair_not_needed"

    # -- reports about activities --------------------------------------------------------------------------------------

    def judge_activity(self, lease: Lease, report: tuple[str, object] | None, now: datetime) -> str:
        """What a complete or fail report must be answered; `report` is its outcome and body, None for a renewal."""
        task, run = lease.task, lease.task.run
        if report is not None and lease.receipt is not None:
            return DUPLICATE if lease.receipt == report else "conflicting_completion"
        if run.closed:
            return {"cancelled": "run_cancelled", "terminated": "run_terminated"}.get(run.closed, "run_closed")
        if lease.attempt_status != "running" or lease.attempt != task.attempt:
            return "stale_attempt"
        return "lease_expired" if task.expires_at <= now else RECORDED

    @staticmethod
    def passed(task: Task, name: str, now: datetime) -> bool:
        """Whether the task's `lease` ran out, its time to be offered (`due`) has come, or a deadline has passed."""
        later = None if task.is_due else task.available_at
        moment = {"lease": task.expires_at, "due": later, **task.deadlines}.get(name)
        return moment is not None and moment <= now

    def passed_deadline(self, task: Task, now: datetime, *names: str) -> str | None:
        return next((name for name in names if self.passed(task, name, now)), None)

    def judge_heartbeat(self, lease: Lease, now: datetime) -> str | None:
        """Why an attempt must stop; None while it may go on."""
        if lease.task.run.closed in ("cancelled", "terminated"):
            return f"run_{lease.task.run.closed}"
        if lease.attempt_status != "running":
            return "attempt_closed"
        if lease.task.expires_at <= now:
            return "lease_expired"
        passed = self.passed_deadline(lease.task, now, "schedule_to_close", "heartbeat", "start_to_close")
        return f"{passed}_timeout" if passed else None

    def renewed(self, lease: Lease, now: datetime, *, is_heartbeat: bool) -> None:
        task = lease.task
        length = WORKFLOW_LEASE if task.step is None else ACTIVITY_LEASE
        task.expires_at = max(task.expires_at, now + length)
        if is_heartbeat and task.step is not None and task.step.policy.heartbeat is not None:
            task.deadlines["heartbeat"] = now + timedelta(seconds=task.step.policy.heartbeat)

    def step_completed(self, lease: Lease, now: datetime) -> None:
        lease.attempt_status = "completed"
        self._end(lease.task, "completed")
        self._close_step(lease.task, "completed", now)

    def attempt_failed(self, lease: Lease, now: datetime, *, non_retryable: bool) -> None:
        lease.attempt_status = "failed"
        self._end(lease.task, "completed")
        if non_retryable or lease.attempt >= lease.task.step.policy.max_attempts:
            self._close_step(lease.task, "failed", now)
        else:
            self._retry(lease.task, lease.attempt, now)

    def _retry(self, task: Task, attempt: int, now: datetime) -> None:
        self._offer(task.run, task.step, now, now + timedelta(seconds=task.step.policy.backoff), attempt)

    def _close_step(self, task: Task, status: str, now: datetime) -> None:
        step = task.step
        step.status = status
        if step.group is not None:
            step.group[0] -= 1
            if step.group[0] > 0:
                return
        self._wake(task.run, now)

    # -- upkeep --------------------------------------------------------------------------------------------------------

    def recover(self, now: datetime) -> int:
        """Every lease that has run out is taken back; how many there were."""
        expired = [task for task in self._tasks() if task.status == "leased" and task.expires_at <= now]
        for task in expired:
            if task.step is None:
                task.status, task.owner, task.expires_at = "ready", None, None
                continue
            self.lease_of(task).attempt_status = "expired"
            task.step.lost_leases += 1
            if task.step.lost_leases >= self.max_lost_leases:
                self._end(task, "failed")
                self._close_step(task, "failed", now)
                continue
            task.status, task.owner, task.expires_at = "ready", None, None
            task.deadlines = {name: at for name, at in task.deadlines.items() if name == "schedule_to_close"}
        return len(expired)

    def make_due(self, now: datetime) -> int:
        later = [task for task in self._tasks() if task.is_open and not task.is_due and task.available_at <= now]
        for task in later:
            task.is_due = True
        return len(later)

    def time_out_activities(self, now: datetime) -> int:
        late = [task for task in self._tasks() if task.is_open and any(at <= now for at in task.deadlines.values())]
        for task in late:
            passed = self.passed_deadline(
                task, now, "schedule_to_close", "schedule_to_start", "heartbeat", "start_to_close"
            )
            attempt = task.attempt if task.status == "leased" else task.attempt + 1
            if task.status == "leased":
                self.lease_of(task).attempt_status = "expired"
            self._end(task, "ended")
            if passed == "schedule_to_close" or attempt >= task.step.policy.max_attempts:
                self._close_step(task, "failed", now)
            else:
                self._retry(task, attempt, now)
        return len(late)

    def time_out_runs(self, now: datetime) -> int:
        late = [run for run in self.runs.values() if not run.closed and run.deadline and run.deadline <= now]
        for run in late:
            self.close(run, "timed_out")
        return len(late)

    def deregistered(self, worker: str, now: datetime) -> int:
        wanted = ("workflow", "leased", worker)
        held = [task for task in self._tasks() if (task.kind, task.status, task.owner) == wanted]
        for task in held:
            task.expires_at = now
        self.workers.discard(worker)
        return len(held)

    def pruned_poll_receipts(self, now: datetime) -> None:
        """Receipts past their time are gone, except those of leases that nobody took back yet."""
        for lease in self.leases:
            if lease.receipt_until is not None and lease.receipt_until <= now:
                task = lease.task
                is_held = task.status == "leased" and (task.owner, task.attempt) == (lease.owner, lease.attempt)
                lease.receipt_until = now + RECEIPT if is_held else None
