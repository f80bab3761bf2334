"""Enforce an activity's time-outs (docs/protocol/history.md 9.3): upkeep calls it for tasks whose deadline passed."""

from __future__ import annotations

from durable.activity_outcomes import end_attempt, end_task, fail_step, schedule_retry
from durable.changes import RunChanges
from durable.commands.retry import is_final
from durable.history.times import stamp
from durable.models import ActivityAttempt, ActivityExecution, Task
from durable.sql import locking
from durable.sql.clock import read_clock
from durable.sql.transactions import transactional
from durable.states import OPEN_TASK, AttemptStatus, TaskStatus, is_terminal


@transactional
def time_out_activity(task_id: str) -> bool:
    """Retry or fail the activity whose deadline is still past under the locks; whether there was one.

    Of several passed deadlines the first counts: schedule_to_close (always final), schedule_to_start, heartbeat,
    start_to_close. A run that somebody holds at this moment is left to the next pass.
    """
    seen = locking.read_task(task_id)
    run = locking.lock_run(seen.run_id, waits=False) if seen else None
    task = locking.lock_task(task_id) if run else None
    if run is None or task is None:
        return False
    changes = RunChanges(run, read_clock())
    if task.status not in OPEN_TASK or is_terminal(run.status):
        return False
    timeout_kind = _passed_deadline(task, changes)
    if timeout_kind is None:
        return False
    execution = ActivityExecution.objects.get(id=task.activity_execution_id)
    attempt = None
    if task.status == TaskStatus.LEASED:
        attempt = ActivityAttempt.objects.get(task_id=task.id, attempt_number=task.attempt_count)
        execution.attempt_count = task.attempt_count
    _time_out(changes, execution, attempt, task, timeout_kind)
    changes.save()
    return True


def _passed_deadline(task: Task, changes: RunChanges) -> str | None:
    deadlines = (
        ("schedule_to_close", task.schedule_to_close_at),
        ("schedule_to_start", task.schedule_to_start_at if task.status == TaskStatus.READY else None),
        ("heartbeat", task.heartbeat_at if task.status == TaskStatus.LEASED else None),
        ("start_to_close", task.start_to_close_at if task.status == TaskStatus.LEASED else None),
    )
    return next((kind for kind, moment in deadlines if moment is not None and moment <= changes.now), None)


def _time_out(
    changes: RunChanges, execution: ActivityExecution, attempt: ActivityAttempt | None, task: Task, timeout_kind: str
) -> None:
    # An attempt that nobody ever claimed counts as well, or it would be offered for ever.
    attempt_number = task.attempt_count if attempt else task.attempt_count + 1
    final = timeout_kind == "schedule_to_close" or is_final(
        execution.retry_policy, after_attempt=attempt_number, non_retryable=False, names=()
    )
    failure = {
        "timeout_kind": timeout_kind,
        "message": f"Activity {timeout_kind.replace('_', '-')} time-out.",
        "exception_type": "ActivityTimeout",
        "exception_class": "ActivityTimeout",
    }
    if final:
        payload = {
            "failure_category": "timeout",
            "non_retryable": False,
            "deadline": stamp(getattr(task, f"{timeout_kind}_at")),
            **failure,
        }
        fail_step(changes, execution, attempt, payload, event_type="ActivityTimedOut")
    else:
        schedule_retry(
            changes, execution, attempt, task, attempt_number=attempt_number, retry_reason="timeout", failure=failure
        )
    end_attempt(attempt, AttemptStatus.EXPIRED, changes.now)
    end_task(task, TaskStatus.CANCELLED if final else TaskStatus.FAILED, changes.now)
