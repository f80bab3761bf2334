"""The reads of reports: where a task belongs, and, after the locks, the clock with what the guard needs.

None of them locks. Each runs after the last lock of its operation, so its clock is not older than a lock wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from durable.ids import is_id
from durable.models import ActivityAttempt, ActivityExecution, CheckpointReceipt, CompletionReceipt, Run, Task
from durable.sql.claiming import RUN_FACTS
from durable.sql.clock import clock_sql, clock_value
from durable.sql.rows import Columns, fetch_one

RECEIPT = Columns(CompletionReceipt, "c")
CHECKPOINT = Columns(CheckpointReceipt, "k")
EXECUTION = Columns(ActivityExecution, "x")
ATTEMPT = Columns(ActivityAttempt, "a")

_TASKS, _RUNS, _RECEIPTS = Task._meta.db_table, Run._meta.db_table, CompletionReceipt._meta.db_table
_CHECKPOINTS = CheckpointReceipt._meta.db_table
_EXECUTIONS, _ATTEMPTS = ActivityExecution._meta.db_table, ActivityAttempt._meta.db_table

_FIND_RUN = f"SELECT run_id FROM {_TASKS} WHERE id = %s AND namespace = %s AND kind = %s"

# Where tasks belong, which never changes: most reports reach the process that leased their task.
_places: dict[tuple[str, str, str], str] = {}
_MOST_PLACES = 20_000


def note_place(task: Task) -> None:
    """Remember the run of a task that is being leased, so that the report about it need not ask."""
    if len(_places) >= _MOST_PLACES:
        _places.clear()
    _places[task.id, task.namespace, task.kind] = task.run_id


def find_run_of_task(task_id: str, namespace: str, kind: str) -> str | None:
    """The run of a task; None if this namespace has no such task of that kind. The task may be gone once it is locked.

    One read, or none for a task that this process has leased.
    """
    if (run_id := _places.get((task_id, namespace, kind))) is not None:
        return run_id
    row = fetch_one(_FIND_RUN, (task_id, namespace, kind)) if is_id(task_id) else None
    return None if row is None else str(row[0])


def read_clock_and_receipt(receipt_id: str) -> tuple[datetime, CompletionReceipt | None]:
    """The time, and the completion receipt of a task or attempt: one read."""
    sql = f"SELECT {clock_sql()}, {RECEIPT.sql} FROM (SELECT 1 AS one) o LEFT JOIN {_RECEIPTS} c ON c.id = %s"
    row = fetch_one(sql, (receipt_id,))
    return clock_value(row[0]), RECEIPT.decode_joined(row, 1)


def read_clock_and_checkpoint(receipt_id: str) -> tuple[datetime, CheckpointReceipt | None]:
    """The time, and the receipt of a checkpoint: one read."""
    sql = f"SELECT {clock_sql()}, {CHECKPOINT.sql} FROM (SELECT 1 AS one) o LEFT JOIN {_CHECKPOINTS} k ON k.id = %s"
    row = fetch_one(sql, (receipt_id,))
    return clock_value(row[0]), CHECKPOINT.decode_joined(row, 1)


def read_clock_and_run(run_id: str) -> tuple[datetime, Run | None]:
    """The time and a run's row, unlocked: for reports that write no history."""
    sql = f"SELECT {clock_sql()}, {RUN_FACTS.sql} FROM (SELECT 1 AS one) o LEFT JOIN {_RUNS} r ON r.id = %s"
    row = fetch_one(sql, (run_id,))
    return clock_value(row[0]), RUN_FACTS.decode_joined(row, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityFacts:
    """What hangs on a locked activity task."""

    now: datetime
    run: Run
    execution: ActivityExecution | None
    attempt: ActivityAttempt | None
    receipt: CompletionReceipt | None


def read_activity_facts(task: Task, attempt_id: str) -> ActivityFacts:
    """The time, the run's row, the execution, the named attempt and its receipt: one read."""
    sql = (
        f"SELECT {clock_sql()}, {RUN_FACTS.sql}, {EXECUTION.sql}, {ATTEMPT.sql}, {RECEIPT.sql} FROM {_RUNS} r"
        f" LEFT JOIN {_EXECUTIONS} x ON x.id = %s LEFT JOIN {_ATTEMPTS} a ON a.id = %s"
        f" LEFT JOIN {_RECEIPTS} c ON c.id = %s WHERE r.id = %s"
    )
    row = fetch_one(sql, (task.activity_execution_id or "", attempt_id, attempt_id, task.run_id))
    if row is None:
        raise AssertionError(f"task {task.id} has no run")
    start = 1
    run = RUN_FACTS.decode(row[start : start + len(RUN_FACTS)])
    start += len(RUN_FACTS)
    execution = EXECUTION.decode_joined(row, start)
    start += len(EXECUTION)
    attempt = ATTEMPT.decode_joined(row, start)
    return ActivityFacts(
        now=clock_value(row[0]),
        run=run,
        execution=execution,
        attempt=attempt,
        receipt=RECEIPT.decode_joined(row, start + len(ATTEMPT)),
    )
