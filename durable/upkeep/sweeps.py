"""The sweeps that act on time: expired leases, tasks for later, timers, activity time-outs, run deadlines.

Each finds ids through one index on one column, oldest first, and hands them to an operation that decides again under
the locks. A row that fails is set aside for a while, so that the others get their turn.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial

from durable import conf
from durable.models import Run, Task, Timer
from durable.operations.fire_timer import fire_timer
from durable.operations.make_task_due import make_task_due
from durable.operations.recover_lease import recover_lease
from durable.operations.time_out_activity import time_out_activity
from durable.operations.time_out_run import time_out_run
from durable.sql.clock import read_clock
from durable.sql.rows import fetch_all
from durable.upkeep.items import Pass, handle_each, set_aside


def _due_ids(table: str, column: str, now: datetime, count: int) -> list[str]:
    sql = f"SELECT id FROM {table} WHERE {column} <= %s ORDER BY {column} LIMIT %s"
    return [row[0] for row in fetch_all(sql, (now, count))]


def _sweep(duty: str, table: str, column: str, operation: Callable[[str], bool]) -> Pass:
    batch_size, aside = conf.current().upkeep_batch_size, set_aside(duty)
    due = _due_ids(table, column, read_clock(), batch_size + len(aside))
    wanted = [item for item in due if item not in aside][:batch_size]
    return handle_each(duty, wanted, operation, batch_size=batch_size)


_TASKS, _RUNS = Task._meta.db_table, Run._meta.db_table

# Index durable_task_lease_expiry. Run by every process, at least once a second.
recover_leases = partial(_sweep, "recover_leases", _TASKS, "lease_expires_at", recover_lease)
# Index durable_task_due.
make_tasks_due = partial(_sweep, "make_tasks_due", _TASKS, "due_at", make_task_due)
# Index durable_task_deadline.
time_out_activities = partial(_sweep, "time_out_activities", _TASKS, "deadline_at", time_out_activity)
# Index durable_timer_due.
fire_timers = partial(_sweep, "fire_timers", Timer._meta.db_table, "due_at", fire_timer)
# Index durable_run_deadline.
time_out_runs = partial(_sweep, "time_out_runs", _RUNS, "deadline_at", partial(time_out_run, waits=False))
