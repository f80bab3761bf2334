"""What must hold of every run at any moment (docs/protocol/history.md 18)."""

from __future__ import annotations

import json

from django.db.models import Q
from durable.models import ActivityAttempt, ActivityExecution, HistoryEvent, Run, Task
from durable.states import OPEN_RUN, OPEN_TASK, ActivityStatus, AttemptStatus, TaskKind, TaskStatus

RUN_TERMINALS = {
    "WorkflowCompleted", "WorkflowFailed", "WorkflowCancelled", "WorkflowTerminated", "WorkflowTimedOut",
}  # fmt: skip
STEP_TERMINALS = {"ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled"}


def check_invariants() -> None:
    """Raise AssertionError at the first run that breaks one."""
    for run in Run.objects.all():
        check_history(run)
        check_wakeable(run)
    stray = Task.objects.filter(status__in=OPEN_TASK).exclude(
        run_id__in=Run.objects.filter(status__in=OPEN_RUN).values("id")
    )
    assert not stray.exists(), f"open tasks on closed runs: {list(stray.values_list('id', flat=True))}"
    halves = Task.objects.filter(
        Q(status=TaskStatus.LEASED, lease_owner=None) | (~Q(status=TaskStatus.LEASED) & ~Q(lease_owner=None))
    )
    assert not halves.exists()


def check_history(run: Run) -> None:
    """Sequences without gaps, dense step numbers in order of appearance, one terminal per step, nothing after the end."""
    found = list(HistoryEvent.objects.filter(run_id=run.id).order_by("sequence"))
    assert [event.sequence for event in found] == list(range(1, run.last_history_sequence + 1)), run.id
    steps: list[int] = []
    ended: list[int] = []
    previous = None
    for event in found:
        step = event.payload.get("sequence")
        if step is not None and step not in steps:
            steps.append(step)
        if event.event_type in STEP_TERMINALS:
            ended.append(event.payload["sequence"])
        assert previous is None or event.recorded_at >= previous, f"{run.id}: time went back"
        previous = event.recorded_at
    assert steps == list(range(1, len(steps) + 1)), f"{run.id}: steps {steps}"
    assert len(ended) == len(set(ended)), f"{run.id}: a step ended twice"
    closing = [event.sequence for event in found if event.event_type in RUN_TERMINALS]
    if run.status in OPEN_RUN:
        assert not closing, run.id
    else:
        assert closing == [run.last_history_sequence], f"{run.id}: {[event.event_type for event in found]}"
    assert run.history_bytes == sum(
        len(json.dumps(e.payload, separators=(",", ":"), ensure_ascii=False).encode()) for e in found
    )


def check_wakeable(run: Run) -> None:
    """At most one open workflow task, which the run names; an open run has something that can wake it."""
    tasks = list(Task.objects.filter(run_id=run.id, kind=TaskKind.WORKFLOW, status__in=OPEN_TASK))
    assert [task.id for task in tasks] == ([run.open_task_id] if run.open_task_id else []), run.id
    pending = ActivityExecution.objects.filter(run_id=run.id, status=ActivityStatus.PENDING)
    assert pending.count() == run.pending_activity_count, run.id
    if run.status not in OPEN_RUN:
        assert not ActivityAttempt.objects.filter(run_id=run.id, status=AttemptStatus.RUNNING).exists(), run.id
        return
    for execution in pending:
        assert Task.objects.filter(id=execution.task_id, status__in=OPEN_TASK).exists(), f"{execution.id} has no task"
    assert run.open_task_id or run.pending_activity_count or run.blocked_at, f"{run.id}: nothing can wake it"
    for task in tasks:
        if task.status == TaskStatus.READY:
            assert task.visible_sequence == run.last_history_sequence, f"{run.id}: a claim would miss events"
