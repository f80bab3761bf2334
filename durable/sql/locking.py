"""The locking statements, all by primary key. Order: run, its open workflow task, its other tasks by id.

Each reads only the rows it locks, from one table: anything joined beside `FOR UPDATE` would be older than the lock
(docs/concurrency.md 2). SQLite has no row locks; its immediate transactions are exclusive already.
"""

from __future__ import annotations

from collections.abc import Sequence

from durable.ids import is_id
from durable.models import Run, Task
from durable.sql.rows import Columns, fetch_all, fetch_one, vendor
from durable.states import OPEN_TASK
from durable.wakeups.hints import note_locked

# What only callers read stays where it is: a memo may be large, and every report about a run locks its row.
RUN = Columns(Run, "r", without=("memo", "search_attributes", "labels", "command_contract"))
TASK = Columns(Task, "t")

_READ_RUN = f"SELECT {RUN.sql} FROM {Run._meta.db_table} r WHERE r.id = %s"
_READ_TASK = f"SELECT {TASK.sql} FROM {Task._meta.db_table} t WHERE t.id = %s"
_OPEN_TASK_IDS = (
    f"SELECT id FROM {Task._meta.db_table} WHERE run_id = %s AND status IN (%s, %s) AND kind = %s ORDER BY id"
)


def for_update(*, skip_locked: bool = False) -> str:
    """The locking clause of this database. PostgreSQL's weaker mode lets foreign key checks pass (docs 6)."""
    if vendor() == "sqlite":
        return ""
    mode = " FOR NO KEY UPDATE" if vendor() == "postgresql" else " FOR UPDATE"
    return mode + (" SKIP LOCKED" if skip_locked else "")


def lock_run(run_id: str, *, waits: bool = True) -> Run | None:
    """The run, locked until the transaction ends. With `waits=False` None also means that somebody else holds it."""
    row = fetch_one(_READ_RUN + for_update(skip_locked=not waits), (run_id,))
    return None if row is None else RUN.decode(row)


def lock_task(task_id: str) -> Task | None:
    """The task, locked until the transaction ends; the run's lock is held already where one is needed."""
    row = fetch_one(_READ_TASK + for_update(), (task_id,)) if is_id(task_id) else None
    if row is None:
        return None
    task = TASK.decode(row)
    note_locked(task)
    return task


def read_task(task_id: str) -> Task | None:
    """The task as it stands, unlocked."""
    row = fetch_one(_READ_TASK, (task_id,)) if is_id(task_id) else None
    return None if row is None else TASK.decode(row)


def lock_open_tasks(run_id: str, kind: str) -> list[Task]:
    """All ready and leased tasks of one kind of a locked run, locked in id order.

    A claim may be taking one of them at this moment: waiting for its row shows the task leased, and then the claim's
    attempt row exists.
    """
    ids: Sequence[tuple[str]] = fetch_all(_OPEN_TASK_IDS, (run_id, *OPEN_TASK, kind))
    if not ids:
        return []
    marks = ", ".join(["%s"] * len(ids))
    sql = f"SELECT {TASK.sql} FROM {Task._meta.db_table} t WHERE t.id IN ({marks}) ORDER BY t.id"
    tasks = [TASK.decode(row) for row in fetch_all(sql + for_update(), [row[0] for row in ids])]
    for task in tasks:
        note_locked(task)
    return [task for task in tasks if task.status in OPEN_TASK]
