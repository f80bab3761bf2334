"""The statements of polls and claims, in the order a poll runs them (docs/concurrency.md 8 to 12).

look up → probe → reserve the receipt → lock one ready task → read what its body needs → lease it.
Only the locking one locks, only one row, and it never waits.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import DatabaseError

from durable.models import ActivityAttempt, ActivityExecution, HistoryEvent, PollReceipt, Run, Task, WorkerRegistration
from durable.sql.clock import ClockReading, clock_sql, clock_value
from durable.sql.locking import TASK, for_update
from durable.sql.rows import Columns, fetch_all, fetch_one, insert, insert_if, vendor
from durable.sql.transactions import is_lock_timeout
from durable.states import TaskKind, TaskStatus

# What a poll is admitted by, and what its claim asks again under the lock.
_STANDING = ("id", "worker_id", "task_queue", "build_id", "registration_token", "is_draining", "drain_reason")
WORKER_STANDING = Columns(WorkerRegistration, "w", only=(*_STANDING, "last_heartbeat_at"))
WORKER = Columns(
    WorkerRegistration,
    "w",
    only=(*_STANDING, "last_heartbeat_at", "supported_workflow_types", "supported_activity_types", "capabilities"),
)
RECEIPT = Columns(PollReceipt, "p")
RUN_FACTS = Columns(
    Run,
    "r",
    only=(
        "id", "workflow_id", "workflow_type", "status", "closed_reason", "closed_at", "history_bytes",
        "run_deadline_at", "execution_deadline_at",
    ),
)  # fmt: skip
EXECUTION = Columns(ActivityExecution, "x")
ATTEMPT = Columns(ActivityAttempt, "a", without=("progress",))

_TASKS, _WORKERS, _RECEIPTS = (model._meta.db_table for model in (Task, WorkerRegistration, PollReceipt))
_RUNS, _EVENTS = Run._meta.db_table, HistoryEvent._meta.db_table
_EXECUTIONS, _ATTEMPTS = ActivityExecution._meta.db_table, ActivityAttempt._meta.db_table


# -- look up: who polls, what its poll id was granted before, and what time it is --------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PollFacts:
    """What admission decides on: one read."""

    clock: ClockReading
    worker: WorkerRegistration | None
    receipt: PollReceipt | None


def receipt_id(namespace: str, kind: str, worker_id: str, poll_request_id: str) -> str:
    """The key of a poll receipt: the same text may be used once per poll route."""
    return hashlib.sha256("\x00".join((namespace, kind, worker_id, poll_request_id)).encode()).hexdigest()


def look_up_poll(namespace: str, worker_id: str, receipt: str | None) -> PollFacts:
    """One read, no lock: the clock, the registration and the receipt of this poll id."""
    sql = (
        f"SELECT {clock_sql()}, {WORKER.sql}, {RECEIPT.sql} FROM (SELECT 1 AS one) o"
        f" LEFT JOIN {_WORKERS} w ON w.namespace = %s AND w.worker_id = %s"
        f" LEFT JOIN {_RECEIPTS} p ON p.id = %s"
    )
    row = fetch_one(sql, (namespace, worker_id, receipt or ""))
    return PollFacts(
        clock=ClockReading(clock_value(row[0]), time.monotonic()),
        worker=WORKER.decode_joined(row, 1),
        receipt=RECEIPT.decode_joined(row, 1 + len(WORKER)),
    )


# -- probe: is there something to lock ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a worker can be given. No `types` means any; the index then is durable_task_claim_any."""

    namespace: str
    task_queue: str
    kind: str
    types: tuple[str, ...]
    build_id: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ready task as a probe saw it; another claim may have it by now."""

    task_id: str
    type: str
    attempt_count: int


# Equality on the index up to the order columns; build and run deadline are residual. One seek, whatever else waits.
_READY = (
    "t.namespace = %s AND t.task_queue = %s AND t.kind = %s AND t.status = %s AND t.due = %s{typed}"
    " AND t.build_id IN ('', %s) AND (t.run_deadline_at IS NULL OR t.run_deadline_at > {now})"
)
_ORDER = " ORDER BY t.priority, t.available_at, t.id LIMIT 1"


def _ready_condition(*, typed: str) -> str:
    return _READY.format(typed=typed, now="%s" if vendor() == "sqlite" else clock_sql())


def _ready_parameters(wanted: Wanted, now: datetime, *types: str) -> list[Any]:
    parameters: list[Any] = [wanted.namespace, wanted.task_queue, wanted.kind, TaskStatus.READY, True, *types]
    parameters.append(wanted.build_id)
    if vendor() == "sqlite":
        parameters.append(now)
    return parameters


def probe_sql(wanted: Wanted, now: datetime, tag: int = 0) -> tuple[str, list[Any]]:
    """The probe for one kind of worker. Each supported type is one seek of its own, so a backlog of types that nobody
    here supports is never walked."""
    columns = "c.id, c.type, c.attempt_count, c.priority, c.available_at"
    if not wanted.types:
        inner = f"SELECT t.id, t.type, t.attempt_count, t.priority, t.available_at FROM {_TASKS} t WHERE "
        sql = f"SELECT {tag} AS tag, {columns} FROM ({inner}{_ready_condition(typed='')}{_ORDER}) c"
        return sql, _ready_parameters(wanted, now)
    typed = " UNION ALL ".join(["SELECT %s AS type"] * len(wanted.types))
    best = f"SELECT t.id FROM {_TASKS} t WHERE {_ready_condition(typed=' AND t.type = y.type')}{_ORDER}"
    sql = (
        f"SELECT {tag} AS tag, {columns} FROM (SELECT ({best}) AS id FROM ({typed}) y) b JOIN {_TASKS} c ON c.id = b.id"
    )
    return sql, [*_ready_parameters(wanted, now), *wanted.types]


def probe(wanted: Wanted, now: datetime) -> list[Candidate]:
    """Ready tasks a worker could be given, best first: at most one per type. One read, no lock."""
    found = []
    for part in _parts(wanted):
        sql, parameters = probe_sql(part, now)
        found += fetch_all(sql, parameters)
    found.sort(key=lambda row: row[4:])
    return [Candidate(row[1], row[2], row[3]) for row in found]


def probe_many(wanted: Sequence[Wanted], now: datetime) -> set[int]:
    """Which of several kinds of worker have something ready: one read for up to MOST_PROBES of them."""
    parts = [(index, part) for index, one in enumerate(wanted) for part in _parts(one)]
    found: set[int] = set()
    for start in range(0, len(parts), MOST_PROBES):
        statements, parameters = [], []
        for index, part in parts[start : start + MOST_PROBES]:
            sql, values = probe_sql(part, now, tag=index)
            statements.append(f"SELECT tag FROM ({sql}) p{index}")
            parameters.extend(values)
        found.update(row[0] for row in fetch_all(" UNION ALL ".join(statements), parameters))
    return found


# SQLite joins at most 500 SELECTs into one.
MOST_TYPES_AT_ONCE = 250
MOST_PROBES = 250


def _parts(wanted: Wanted) -> list[Wanted]:
    """The same wish in pieces that fit into a statement; nearly always one."""
    if len(wanted.types) <= MOST_TYPES_AT_ONCE:
        return [wanted]
    return [
        replace(wanted, types=wanted.types[start : start + MOST_TYPES_AT_ONCE])
        for start in range(0, len(wanted.types), MOST_TYPES_AT_ONCE)
    ]


# -- reserve and lock --------------------------------------------------------------------------------------------------


def reserve_receipt(receipt: PollReceipt) -> bool:
    """Insert the receipt without waiting for another transaction that is inserting the same id; False = it is busy.

    The only statement whose lock time-out means something other than trouble (docs/concurrency.md 12).
    """
    if vendor() == "postgresql":
        key = int.from_bytes(bytes.fromhex(receipt.id[:16]), "big", signed=True)
        # The lock is tried before the row: an insert of the same key would wait for the other transaction's end.
        return insert_if(receipt, "pg_try_advisory_xact_lock(%s)", (key,))
    if vendor() == "mysql":
        try:
            return insert([receipt], or_ignore=True, no_wait=True) == 1
        except DatabaseError as error:
            if is_lock_timeout(error):
                return False
            raise
    return insert([receipt], or_ignore=True) == 1


def lock_candidate(wanted: Wanted, now: datetime, type_: str | None) -> tuple[str, int] | None:
    """Lock the best ready task of one type (None: of any): its id and attempt count. Skips rows others hold.

    Served by durable_task_claim_typed, or durable_task_claim_any without a type; no filesort on MariaDB 10.11.
    """
    typed = "" if type_ is None else " AND t.type = %s"
    sql = f"SELECT t.id, t.attempt_count FROM {_TASKS} t WHERE {_ready_condition(typed=typed)}{_ORDER}"
    types = () if type_ is None else (type_,)
    row = fetch_one(sql + for_update(skip_locked=True), _ready_parameters(wanted, now, *types))
    return None if row is None else (row[0], row[1])


# -- body: what a leased task looks like -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """Everything a task's body is built from, and who holds the registration now: one read, no lock."""

    clock: ClockReading
    task: Task
    run: Run
    worker: WorkerRegistration | None
    # The event that holds the input of a workflow, or the arguments of an activity.
    input_payload: str | None
    execution: ActivityExecution | None
    attempt: ActivityAttempt | None

    @property
    def now(self) -> datetime:
        """The moment of the read: after the task's lock, where the task is locked."""
        return self.clock.moment


def read_task_facts(task_id: str, *, kind: str, worker_id: str, attempt_id: str | None = None) -> TaskFacts | None:
    """Read a task with its run, input and registration; an activity task with its execution and the attempt named."""
    columns = f"{clock_sql()}, {TASK.sql}, {RUN_FACTS.sql}, {WORKER_STANDING.sql}"
    source = (
        f"{_TASKS} t JOIN {_RUNS} r ON r.id = t.run_id"
        f" LEFT JOIN {_WORKERS} w ON w.namespace = t.namespace AND w.worker_id = %s"
    )
    parameters: list[Any] = [worker_id]
    if kind == TaskKind.WORKFLOW:
        source += f" LEFT JOIN {_EVENTS} i ON i.run_id = r.id AND i.sequence = r.input_sequence"
        columns += ", i.payload"
    else:
        source += (
            f" LEFT JOIN {_EXECUTIONS} x ON x.id = t.activity_execution_id"
            f" LEFT JOIN {_EVENTS} i ON i.run_id = r.id AND i.sequence = x.scheduled_sequence"
            f" LEFT JOIN {_ATTEMPTS} a ON a.id = %s"
        )
        columns += f", i.payload, {EXECUTION.sql}, {ATTEMPT.sql}"
        parameters.append(attempt_id or "")
    row = fetch_one(f"SELECT {columns} FROM {source} WHERE t.id = %s", (*parameters, task_id))
    if row is None:
        return None
    read_at = time.monotonic()
    start = 1 + len(TASK) + len(RUN_FACTS) + len(WORKER_STANDING)
    is_activity = kind == TaskKind.ACTIVITY
    return TaskFacts(
        clock=ClockReading(clock_value(row[0]), read_at),
        task=TASK.decode(row[1 : 1 + len(TASK)]),
        run=RUN_FACTS.decode(row[1 + len(TASK) : 1 + len(TASK) + len(RUN_FACTS)]),
        worker=WORKER_STANDING.decode_joined(row, 1 + len(TASK) + len(RUN_FACTS)),
        input_payload=row[start],
        execution=EXECUTION.decode_joined(row, start + 1) if is_activity else None,
        attempt=ATTEMPT.decode_joined(row, start + 1 + len(EXECUTION)) if is_activity else None,
    )
