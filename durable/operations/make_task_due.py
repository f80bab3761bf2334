"""Make a task for later due: from then on claims meet it (docs/concurrency.md 8)."""

from __future__ import annotations

from durable.models import Task
from durable.sql import locking, rows
from durable.sql.clock import read_clock
from durable.sql.transactions import transactional
from durable.states import TaskStatus
from durable.wakeups.hints import hint_after_commit


@transactional
def make_task_due(task_id: str) -> bool:
    """Offer the task if its time has come; whether it had. Never early, not by a microsecond."""
    task = locking.lock_task(task_id)
    if task is None or task.due_at is None or task.due_at > read_clock():
        return False
    rows.update(Task, {"due": True, "due_at": None}, {"id": task.id, "due": False})
    if task.status == TaskStatus.READY:
        hint_after_commit(task)
    return True
