"""Recover an expired lease: the only way out of one (docs/concurrency.md 9, docs/protocol/worker-protocol.md 6.5)."""

from __future__ import annotations

from durable import conf
from durable.activity_outcomes import NOT_LEASED, end_attempt, end_task, fail_step
from durable.changes import RunChanges
from durable.history import events
from durable.models import ActivityAttempt, ActivityExecution, Task
from durable.sql import locking, rows
from durable.sql.clock import earliest, read_clock
from durable.sql.transactions import transactional
from durable.states import ActivityStatus, AttemptStatus, TaskKind, TaskStatus, is_terminal
from durable.wakeups.hints import hint_after_commit


@transactional
def recover_lease(task_id: str) -> bool:
    """Make the task ready again if its lease is still expired under the locks; whether it was.

    The lost attempt is marked expired and what was held back of it is appended. An activity that lost too many leases
    fails with `lease_lost`. A task that was completed, renewed or recovered meanwhile is left alone, and so is one
    whose run somebody holds at this moment: the next pass looks again, and no other run waits for this one.
    """
    seen = locking.read_task(task_id)
    run = locking.lock_run(seen.run_id, waits=False) if seen else None
    task = locking.lock_task(task_id) if run else None
    if run is None or task is None:
        return False
    now = read_clock()
    if task.status != TaskStatus.LEASED or task.lease_expires_at is None or task.lease_expires_at > now:
        return False
    if is_terminal(run.status):
        end_task(task, TaskStatus.CANCELLED, now)
        return True
    changes = RunChanges(run, now)
    if task.kind == TaskKind.WORKFLOW:
        _offer_again(task, visible_sequence=run.last_history_sequence)
    else:
        _recover_activity(changes, task)
    return True


def _recover_activity(changes: RunChanges, task: Task) -> None:
    execution = ActivityExecution.objects.get(id=task.activity_execution_id)
    attempt = ActivityAttempt.objects.get(task_id=task.id, attempt_number=task.attempt_count)
    execution.lost_lease_count += 1
    execution.attempt_count = task.attempt_count
    end_attempt(attempt, AttemptStatus.EXPIRED, changes.now)
    most = conf.current().max_lost_leases
    if execution.lost_lease_count >= most:
        failure = {
            "failure_category": "internal",
            "non_retryable": True,
            "exception_type": "lease_lost",
            "exception_class": "lease_lost",
            "message": f"The activity lost its lease {execution.lost_lease_count} times.",
        }
        fail_step(changes, execution, attempt, failure)
        end_task(task, TaskStatus.FAILED, changes.now)
        changes.save()
        return
    for event in events.held_back(execution, attempt):
        changes.append(event)
    rows.update(
        ActivityExecution,
        {"lost_lease_count": execution.lost_lease_count, "attempt_count": execution.attempt_count},
        {"id": execution.id, "status": ActivityStatus.PENDING},
    )
    changes.save()
    _offer_again(
        task,
        start_to_close_at=None,
        heartbeat_at=None,
        deadline_at=earliest(task.schedule_to_close_at),
    )


def _offer_again(task: Task, **columns: object) -> None:
    recovered = rows.update(
        Task,
        {"status": TaskStatus.READY, **NOT_LEASED, **columns},
        {
            "id": task.id,
            "status": TaskStatus.LEASED,
            "lease_owner": task.lease_owner,
            "attempt_count": task.attempt_count,
        },
    )
    if recovered != 1:
        raise AssertionError(f"task {task.id} changed under its lock")
    task.status = TaskStatus.READY
    hint_after_commit(task)
