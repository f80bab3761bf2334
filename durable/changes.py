"""What one transaction writes for the one run it has locked, collected in memory and written together at its end.

Operations, commands and upkeep all change a run through this object, so that the rules about sequences, the open
workflow task and wake-ups stand in one place (docs/concurrency.md 1, 5, 10 and 11). Nothing is written before `save`:
whoever decides that the whole batch must not be applied just drops the object.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from durable.history.events import NewEvent
from durable.ids import new_id
from durable.jsontext import JSONText, dump_json
from durable.models import ActivityAttempt, ActivityExecution, Failure, HistoryEvent, Run, Task, Timer
from durable.sql import rows
from durable.states import OPEN_RUN, TaskKind, TaskStatus
from durable.wakeups.hints import hint_after_commit


class RunChangedError(AssertionError):
    """A locked run was not as it was read when it was written: a broken invariant, and a fault unless it is caught."""


class RunChanges:
    """The pending writes of one locked, open run."""

    def __init__(self, run: Run, now: datetime) -> None:
        self.run = run
        self.now = now
        self.events: list[HistoryEvent] = []
        self.executions: list[ActivityExecution] = []
        self.tasks: list[Task] = []
        self.timers: list[Timer] = []
        self.attempts: list[ActivityAttempt] = []
        self.failures: list[Failure] = []
        self.next_task_id: str | None = None
        self._locked_at_sequence = run.last_history_sequence
        self._columns: dict[str, Any] = {}
        self._wakes = False
        self._next_task: dict[str, Any] = {}
        self._kept_claim: Task | None = None

    # -- the run's row -------------------------------------------------------------------------------------------------

    def set(self, **columns: Any) -> None:
        """Change columns of the run; seen at once on `run`, written by `save`."""
        for name, value in columns.items():
            setattr(self.run, name, value)
        self._columns.update(columns)

    def take_step_number(self) -> int:
        """The next step number; steps are dense, because workers predict them (docs/protocol/history.md 3.1)."""
        number = self.run.next_step_number
        self.set(next_step_number=number + 1)
        return number

    # -- history -------------------------------------------------------------------------------------------------------

    def append(self, event: NewEvent) -> int:
        """Number an event and keep it for `save`; returns its sequence."""
        sequence = self.run.last_history_sequence + 1
        text = dump_json(event.payload)
        size = len(text.encode())
        self.set(last_history_sequence=sequence, history_bytes=self.run.history_bytes + size)
        self.events.append(
            HistoryEvent(
                id=new_id(),
                run_id=self.run.id,
                sequence=sequence,
                event_type=event.event_type,
                payload=JSONText(text),
                payload_bytes=size,
                recorded_at=self.now,
                workflow_task_id=event.workflow_task_id,
                workflow_command_id=event.workflow_command_id,
                terminal_step=event.terminal_step,
            )
        )
        return sequence

    def add_failure(self, *, source_kind: str, source_id: str, sequence: int, payload: dict[str, Any]) -> None:
        """The row that lists and filters read; the event at `sequence` holds the whole failure."""
        self.failures.append(
            Failure(
                id=payload["failure_id"],
                namespace=self.run.namespace,
                run_id=self.run.id,
                source_kind=source_kind,
                source_id=source_id,
                failure_category=payload["failure_category"],
                exception_type=str(payload.get("exception_type") or "")[:255],
                message=str(payload.get("message") or "")[:1000],
                non_retryable=bool(payload.get("non_retryable")),
                sequence=sequence,
                created_at=self.now,
            )
        )

    # -- the open workflow task ----------------------------------------------------------------------------------------

    def wake(self, sequence: int) -> None:
        """Make sure that a workflow task will show the event at `sequence` to a worker."""
        self.set(wake_sequence=sequence)
        self._wakes = True

    def end_claim(self, task: Task, *, create_next: bool = True, **next_task: Any) -> None:
        """The run's workflow task ended. The next one follows if something happened that its claim was not shown.

        `next_task` are columns for a successor that is created in any case (a failed task's retry); `create_next`
        false means none at all, the run is blocked.
        """
        self.set(open_task_id=None)
        if not create_next:
            self._wakes = False
        elif next_task or self.run.wake_sequence > task.claimed_history_sequence:
            self._wakes = True
            self._next_task = next_task

    def keep_claim(self, task: Task) -> None:
        """The run's workflow task stays leased, and its claim may read what is appended here and before."""
        self._kept_claim = task

    def close(self, *, status: str, closed_reason: str) -> None:
        """Close the run; its last event must be appended already."""
        self.set(
            status=status,
            closed_reason=closed_reason,
            closed_at=self.now,
            deadline_at=None,
            open_task_id=None,
            pending_activity_count=0,
            pending_timer_count=0,
            open_groups={},
            blocked_at=None,
            blocked_reason="",
            outcome_sequence=self.run.last_history_sequence,
        )
        self._wakes = False

    # -- writing -------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write everything, keep the open task's snapshot up with history, and hint after the commit.

        Raises RunChangedError if the run is closed or has grown since it was locked.
        """
        open_task_id = self.run.open_task_id
        if self._wakes and open_task_id is None and self.run.status in OPEN_RUN:
            self._create_workflow_task()
        self.set(last_progress_at=self.now)
        rows.insert(self.events)
        rows.insert(self.executions)
        rows.insert(self.tasks)
        rows.insert(self.timers)
        rows.insert(self.attempts)
        rows.insert(self.failures)
        if self._kept_claim is not None:
            self._extend_claim(self._kept_claim)
        elif open_task_id is not None and self.events:
            self._touch_open_task(open_task_id)
        changed = rows.update(
            Run,
            self._columns,
            {"id": self.run.id, "last_history_sequence": self._locked_at_sequence, "status": OPEN_RUN},
        )
        if changed != 1:
            raise RunChangedError(f"run {self.run.id} changed under its lock")
        for task in self.tasks:
            if task.due and task.status == TaskStatus.READY:
                hint_after_commit(task)

    def note_leased(self, task_ids: Collection[str]) -> None:
        """Tasks that this transaction has leased: nobody is told of those that it created itself."""
        for task in self.tasks:
            if task.id in task_ids:
                task.status = TaskStatus.LEASED

    def _create_workflow_task(self) -> None:
        task = new_workflow_task(self.run, self.now, **self._next_task)
        self.tasks.append(task)
        self.next_task_id = task.id
        self.set(open_task_id=task.id, blocked_at=None, blocked_reason="")

    def _extend_claim(self, task: Task) -> None:
        # `claimed_history_sequence` stays: what happened since may not have been read, so it must still wake the run.
        extended = rows.update(
            Task,
            {"visible_sequence": self.run.last_history_sequence},
            {
                "id": task.id,
                "status": TaskStatus.LEASED,
                "lease_owner": task.lease_owner,
                "attempt_count": task.attempt_count,
            },
        )
        if extended != 1:
            raise AssertionError(f"task {task.id} changed under its lock")

    def _touch_open_task(self, task_id: str) -> None:
        # 0 rows: a claim has it; what it was not shown is found by wake_sequence when the claim ends.
        touched = rows.update(
            Task,
            {"visible_sequence": self.run.last_history_sequence},
            {"id": task_id, "status": TaskStatus.READY},
        )
        if touched and self._wakes:
            # A failed task's retry that is still backing off: something happened, so it is tried at once.
            at_once = {"due": True, "due_at": None, "available_at": self.now}
            rows.update(Task, at_once, {"id": task_id, "due": False})
        if touched:
            hint_after_commit(
                Task(namespace=self.run.namespace, task_queue=self.run.task_queue, kind=TaskKind.WORKFLOW)
            )


def new_workflow_task(run: Run, now: datetime, **columns: Any) -> Task:
    """A ready workflow task of the run that shows its whole history so far."""
    values: dict[str, Any] = {
        "id": new_id(),
        "namespace": run.namespace,
        "task_queue": run.task_queue,
        "kind": TaskKind.WORKFLOW,
        "type": run.workflow_type,
        "status": TaskStatus.READY,
        "priority": run.priority,
        "available_at": now,
        "build_id": run.build_id,
        "run_id": run.id,
        "workflow_id": run.workflow_id,
        "visible_sequence": run.last_history_sequence,
        "run_deadline_at": run.deadline_at,
        "created_at": now,
        **columns,
    }
    return make_later(Task(**values), now)


def make_later(task: Task, now: datetime) -> Task:
    """Mark a task whose time has not come, so that claims do not meet it before upkeep makes it due."""
    if task.available_at > now:
        task.due = False
        task.due_at = task.available_at
    return task
