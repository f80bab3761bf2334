"""What must hold of every run at any moment (docs/protocol/history.md 18, docs/concurrency.md), read from the rows."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db import models

from durable.models import (
    ActivityAttempt,
    ActivityExecution,
    CheckpointReceipt,
    CompletionReceipt,
    Failure,
    HistoryEvent,
    PollReceipt,
    Run,
    Task,
    Timer,
)
from durable.states import (
    OPEN_RUN,
    OPEN_TASK,
    ActivityStatus,
    AttemptStatus,
    ClosedReason,
    TaskKind,
    TaskStatus,
    TimerStatus,
)

RUN_TERMINALS = {
    "WorkflowCompleted", "WorkflowFailed", "WorkflowCancelled", "WorkflowTerminated", "WorkflowTimedOut",
}  # fmt: skip
STEP_TERMINALS = {
    "ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled", "TimerFired", "TimerCancelled",
    "SideEffectRecorded", "VersionMarkerRecorded",
}  # fmt: skip

M = TypeVar("M", bound=models.Model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Everything about one run, each table read once for all runs."""

    run: Run
    events: list[HistoryEvent]
    tasks: list[Task]
    executions: list[ActivityExecution]
    attempts: list[ActivityAttempt]
    receipts: list[CompletionReceipt]
    checkpoints: list[CheckpointReceipt]
    failures: list[Failure]
    timers: list[Timer]
    poll_receipts: dict[str, list[PollReceipt]]

    @property
    def is_open(self) -> bool:
        return self.run.status in OPEN_RUN

    @property
    def open_tasks(self) -> list[Task]:
        return [task for task in self.tasks if task.status in OPEN_TASK]


def check_invariants() -> None:
    """Raise AssertionError at the first run that breaks one; the message names the run."""
    for rows in read_rows():
        try:
            check_history(rows)
            check_open_work(rows)
            check_activities(rows)
            check_timers(rows)
            check_groups(rows)
            check_proofs(rows)
        except AssertionError as broken:
            broken.add_note(f"run {rows.run.id}: {[event.event_type for event in rows.events]}")
            raise


def read_rows() -> list[Rows]:
    events, tasks = _by_run(HistoryEvent.objects.order_by("sequence")), _by_run(Task.objects.order_by("id"))
    executions = _by_run(ActivityExecution.objects.order_by("step_number"))
    attempts = _by_run(ActivityAttempt.objects.order_by("attempt_number"))
    receipts, failures = _by_run(CompletionReceipt.objects.all()), _by_run(Failure.objects.all())
    timers = _by_run(Timer.objects.order_by("step_number"))
    checkpoints = _by_run(CheckpointReceipt.objects.order_by("start_sequence", "next_sequence"))
    poll_receipts: dict[str, list[PollReceipt]] = defaultdict(list)
    for receipt in PollReceipt.objects.all():
        poll_receipts[receipt.task_id].append(receipt)
    return [
        Rows(
            run=run,
            events=events[run.id],
            tasks=tasks[run.id],
            executions=executions[run.id],
            attempts=attempts[run.id],
            receipts=receipts[run.id],
            checkpoints=checkpoints[run.id],
            failures=failures[run.id],
            timers=timers[run.id],
            poll_receipts=poll_receipts,
        )
        for run in Run.objects.all()
    ]


def _by_run(found: Iterable[M]) -> dict[str, list[M]]:
    grouped: dict[str, list[M]] = defaultdict(list)
    for row in found:
        grouped[row.run_id].append(row)  # type: ignore[attr-defined]
    return grouped


# -- history -----------------------------------------------------------------------------------------------------------


def check_history(rows: Rows) -> None:
    """No gaps, time forward, dense steps in order of appearance, one terminal per step, nothing after the run's end."""
    run, events = rows.run, rows.events
    assert [event.sequence for event in events] == list(range(1, run.last_history_sequence + 1))
    times = [event.recorded_at for event in events]
    assert times == sorted(times), "time went back"
    steps = list(dict.fromkeys(s for event in events if (s := event.payload.get("sequence")) is not None))
    assert steps == list(range(1, len(steps) + 1)), f"steps {steps}"
    assert run.next_step_number == len(steps) + 1
    for event in events:
        ends_step = event.event_type in STEP_TERMINALS
        assert event.terminal_step == (event.payload["sequence"] if ends_step else None), event.event_type
    ended = [event.terminal_step for event in events if event.terminal_step is not None]
    assert len(ended) == len(set(ended)), "a step ended twice"
    closing = [event.sequence for event in events if event.event_type in RUN_TERMINALS]
    assert closing == ([] if rows.is_open else [run.last_history_sequence])
    assert run.outcome_sequence == (None if rows.is_open else run.last_history_sequence)
    sizes = [_size(event.payload) for event in events]
    assert [event.payload_bytes for event in events] == sizes
    assert run.history_bytes == sum(sizes)


def _size(payload: Any) -> int:
    return len(json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode())


# -- what is open, and what can wake it --------------------------------------------------------------------------------


def check_open_work(rows: Rows) -> None:
    """At most one open workflow task, which the run names; nothing open on a closed run; no wake is lost."""
    run = rows.run
    decisions = [task for task in rows.open_tasks if task.kind == TaskKind.WORKFLOW]
    assert [task.id for task in decisions] == ([run.open_task_id] if run.open_task_id else [])
    if not rows.is_open:
        assert not rows.open_tasks, "open tasks on a closed run"
        assert run.deadline_at is None
        return
    assert run.open_task_id or run.pending_activity_count or run.pending_timer_count or run.blocked_at, (
        "nothing can wake it"
    )
    assert run.wake_sequence <= run.last_history_sequence
    if not run.open_task_id and not run.blocked_at:
        shown = max(task.claimed_history_sequence for task in rows.tasks if task.kind == TaskKind.WORKFLOW)
        assert run.wake_sequence <= shown, "a wake was lost"
    for task in decisions:
        if task.status == TaskStatus.READY:
            assert task.visible_sequence == run.last_history_sequence, "a claim would miss events"
        else:
            assert task.claimed_history_sequence <= task.visible_sequence <= run.last_history_sequence
    for task in rows.tasks:
        check_task(task)


def check_task(task: Task) -> None:
    """Lease fields as a whole, later means not due, and the sweep's key is the earliest deadline in force."""
    is_leased = task.status == TaskStatus.LEASED
    fields = (task.lease_owner, task.leased_at, task.lease_expires_at)
    assert [field is not None for field in fields] == [is_leased] * 3, task.id
    assert task.due is (task.due_at is None), task.id
    deadlines: list[Any] = []
    if is_leased:
        deadlines = [task.start_to_close_at, task.heartbeat_at, task.schedule_to_close_at]
    elif task.status == TaskStatus.READY:
        deadlines = [task.schedule_to_start_at, task.schedule_to_close_at]
    expected = min((moment for moment in deadlines if moment is not None), default=None)
    assert task.deadline_at == expected, f"{task.id}: the sweep looks for {task.deadline_at}, not {expected}"


# -- activities --------------------------------------------------------------------------------------------------------


def check_activities(rows: Rows) -> None:
    """Each step has one state, told alike by execution, task, attempts and history."""
    run = rows.run
    pending = [execution for execution in rows.executions if execution.status == ActivityStatus.PENDING]
    assert len(pending) == run.pending_activity_count
    ended = {event.terminal_step for event in rows.events if event.terminal_step is not None}
    for execution in rows.executions:
        # A run that ends by itself records nothing about the steps that nobody waits for any more.
        is_silent = _ended_by_itself(run) and execution.status == ActivityStatus.CANCELLED
        is_ended = execution.status != ActivityStatus.PENDING
        assert (execution.step_number in ended) is (is_ended and not is_silent), f"step {execution.step_number}"
    tasks = {task.id: task for task in rows.tasks}
    for execution in pending:
        check_pending(execution, tasks)
    check_attempts(rows, tasks)


def check_timers(rows: Rows) -> None:
    """Each timer has one state, told alike by its row, the run's counter and history."""
    pending = [timer for timer in rows.timers if timer.status == TimerStatus.PENDING]
    assert len(pending) == rows.run.pending_timer_count
    fired = {event.terminal_step for event in rows.events if event.event_type == "TimerFired"}
    cancelled = {event.terminal_step for event in rows.events if event.event_type == "TimerCancelled"}
    for timer in rows.timers:
        assert (timer.step_number in fired) is (timer.status == TimerStatus.FIRED)
        is_silent = _ended_by_itself(rows.run)
        assert (timer.step_number in cancelled) is (timer.status == TimerStatus.CANCELLED and not is_silent)


def _ended_by_itself(run: Run) -> bool:
    return run.closed_reason in (ClosedReason.COMPLETED, ClosedReason.FAILED)


def check_pending(execution: ActivityExecution, tasks: dict[str, Task]) -> None:
    """A pending step is offered by exactly the task it names, under the attempt number that comes next."""
    task = tasks.get(str(execution.task_id))
    assert task is not None, f"step {execution.step_number} has no task"
    assert task.status in OPEN_TASK, f"step {execution.step_number} is {task.status}"
    offered = [t.id for t in tasks.values() if t.activity_execution_id == execution.id and t.status in OPEN_TASK]
    assert offered == [task.id]
    assert execution.attempt_count == task.attempt_count - (task.status == TaskStatus.LEASED)


def check_attempts(rows: Rows, tasks: dict[str, Task]) -> None:
    """One running attempt per leased activity task; what was held back stands in history once the attempt has ended."""
    running = [(a.task_id, a.attempt_number, a.lease_owner) for a in rows.attempts if a.status == AttemptStatus.RUNNING]
    leased = [
        (task.id, task.attempt_count, task.lease_owner)
        for task in rows.tasks
        if task.kind == TaskKind.ACTIVITY and task.status == TaskStatus.LEASED
    ]
    assert sorted(running) == sorted(leased)
    started = Counter(e.payload["activity_attempt_id"] for e in rows.events if e.event_type == "ActivityStarted")
    for attempt in rows.attempts:
        is_silent = _ended_by_itself(rows.run) and attempt.status == AttemptStatus.CANCELLED
        has_ended = attempt.status != AttemptStatus.RUNNING
        assert started[attempt.id] == int(has_ended and not is_silent), f"attempt {attempt.id} is {attempt.status}"
        assert (attempt.closed_at is not None) is has_ended
    assert started.keys() <= {attempt.id for attempt in rows.attempts}
    expired = Counter(a.activity_execution_id for a in rows.attempts if a.status == AttemptStatus.EXPIRED)
    for execution in rows.executions:
        assert execution.lost_lease_count <= expired[execution.id]


def check_groups(rows: Rows) -> None:
    """The run's record of a list group counts its pending leaves."""
    leaves = [execution.group_id for execution in rows.executions if execution.status == ActivityStatus.PENDING]
    leaves += [timer.group_id for timer in rows.timers if timer.status == TimerStatus.PENDING]
    left = Counter(group_id for group_id in leaves if group_id is not None)
    assert left.keys() <= rows.run.open_groups.keys()
    for group_id, record in rows.run.open_groups.items():
        assert record["remaining"] == left[group_id], group_id
        assert (record["resolved_sequence"] is None) is (record["remaining"] > 0), group_id


# -- proofs ------------------------------------------------------------------------------------------------------------


def check_proofs(rows: Rows) -> None:
    """What is recorded has its receipt, its failure row and, while its lease lives, the receipt of its poll."""
    of_attempts = {receipt.id for receipt in rows.receipts if receipt.kind == TaskKind.ACTIVITY}
    reported = (AttemptStatus.COMPLETED, AttemptStatus.FAILED)
    assert of_attempts == {a.id for a in rows.attempts if a.task_id is not None and a.status in reported}
    tasks = {task.id: task for task in rows.tasks}
    for receipt in rows.receipts:
        if receipt.kind == TaskKind.WORKFLOW:
            assert tasks[receipt.id].status == TaskStatus.COMPLETED
    check_checkpoints(rows)
    for failure in rows.failures:
        assert rows.events[failure.sequence - 1].payload["failure_id"] == failure.id
    for task in rows.open_tasks:
        if task.status == TaskStatus.LEASED and task.poll_request_id is not None:
            receipts = rows.poll_receipts[task.id]
            assert task.attempt_count in {receipt.attempt_number for receipt in receipts}, f"{task.id}: no poll receipt"


def check_checkpoints(rows: Rows) -> None:
    """Checkpoints of a run follow one another; each names a claim that there was, and tasks of its own steps."""
    tasks = {task.id: task for task in rows.tasks}
    reached = 1
    for receipt in rows.checkpoints:
        assert reached <= receipt.start_sequence <= receipt.next_sequence <= rows.run.next_step_number, receipt.id
        reached = receipt.next_sequence
        assert receipt.attempt_number <= tasks[receipt.task_id].attempt_count
        created = {tasks[task_id].activity_execution_id for task_id in receipt.created_task_ids}
        steps = {x.id for x in rows.executions if receipt.start_sequence <= x.step_number < receipt.next_sequence}
        assert created <= steps, receipt.id
