"""A database that has been in use for years: a million rows, made by the database itself in a few statements.

400,000 tasks (200,000 for later, 100,000 ready ones of types that nobody supports, in the same queue and with better
priority, the others leased or closed), 300,000 runs, and 40,000 rows or more in each of the eight tables that hang on
them. On two cores that takes 8 to 15 seconds a database, the indexes being what costs; a million tasks and a million
runs would take 40 on PostgreSQL and MariaDB.
"""

from __future__ import annotations

import json
from typing import Any

from django.db import connection, models, transaction

from durable.models import (
    ActivityAttempt,
    ActivityExecution,
    CheckpointReceipt,
    CompletionReceipt,
    HistoryEvent,
    PollReceipt,
    RefusedReport,
    Run,
    Task,
    Workflow,
    WorkflowCommand,
)
from tests import factories as make

LATER, READY, LEASED, TASKS = 200_000, 100_000, 2_000, 400_000
RUNS, OPEN_RUNS = 300_000, 100_000
HANGING = 40_000
FAR = "'2099-01-01 00:00:00'"
PAST = "'2020-01-01 00:00:00'"
HOLDER = "w-long-ago"

# The tables whose size must not matter to any request.
GROWN = (
    Task, Run, HistoryEvent, ActivityAttempt, ActivityExecution, PollReceipt, CheckpointReceipt, CompletionReceipt,
    RefusedReport, Workflow, WorkflowCommand,
)  # fmt: skip


def grow() -> None:
    """Fill the tables. Every expression below is SQL over `n`, the number of the row."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            # Nobody needs these rows after a power cut, and nothing refers to a row that is not there.
            cursor.execute("PRAGMA synchronous = OFF")
            cursor.execute("PRAGMA cache_size = -200000")
        with transaction.atomic():
            _insert_tasks()
            _insert_runs()
            _insert_what_hangs_on_them()
        for model in GROWN:
            cursor.execute(f"ANALYZE {'TABLE ' if connection.vendor == 'mysql' else ''}{model._meta.db_table}")


def empty() -> None:
    """Remove the rows the quick way: an ordinary DELETE would look at every reference to each of them."""
    switch = {"sqlite": "PRAGMA foreign_keys = {}", "mysql": "SET foreign_key_checks = {}", "postgresql": "SELECT {}"}
    verb, suffix = {"sqlite": ("DELETE FROM", ""), "mysql": ("TRUNCATE", ""), "postgresql": ("TRUNCATE", " CASCADE")}[
        connection.vendor
    ]
    with connection.cursor() as cursor:
        cursor.execute(switch[connection.vendor].format(0))
        for model in GROWN:
            cursor.execute(f"{verb} {model._meta.db_table}{suffix}")
        cursor.execute(switch[connection.vendor].format(1))


def _insert_tasks() -> None:
    leased = f"n > {LATER + READY} AND n <= {LATER + READY + LEASED}"
    closed = f"n > {LATER + READY + LEASED}"
    _insert(
        Task,
        TASKS,
        id=_name("TASK"),
        namespace="'default'",
        task_queue=f"'{make.QUEUE}'",
        kind="CASE WHEN n % 2 = 0 THEN 'workflow' ELSE 'activity' END",
        type=_join("'unsupported-'", _text("n % 50")),
        status=f"CASE WHEN {leased} THEN 'leased' WHEN {closed} THEN 'completed' ELSE 'ready' END",
        due=f"(n > {LATER})",
        due_at=f"CASE WHEN n <= {LATER} THEN {_moment(FAR)} END",
        available_at=f"CASE WHEN n <= {LATER} THEN {_moment(FAR)} ELSE {_moment(PAST)} END",
        priority="0",
        run_id=_name("RUN"),
        workflow_id=_name("WF"),
        activity_execution_id=f"CASE WHEN n % 2 = 1 THEN {_name('EXECUTION')} END",
        deadline_at=f"CASE WHEN n % 2 = 1 AND NOT ({closed}) THEN {_moment(FAR)} END",
        attempt_count=f"CASE WHEN {leased} THEN 1 ELSE 0 END",
        lease_owner=f"CASE WHEN {leased} THEN '{HOLDER}' END",
        leased_at=f"CASE WHEN {leased} THEN {_moment(PAST)} END",
        lease_expires_at=f"CASE WHEN {leased} THEN {_moment(FAR)} END",
    )


def _insert_runs() -> None:
    is_open = f"n <= {OPEN_RUNS}"
    failed = "n % 100 = 0"
    outcome = f"CASE WHEN {is_open} THEN NULL WHEN {failed} THEN 'failed' ELSE 'completed' END"
    _insert(
        Run,
        RUNS,
        id=_name("RUN"),
        namespace="'default'",
        workflow_id=_name("WF"),
        workflow_type=_join("'type-'", _text("n % 20")),
        task_queue=f"'{make.QUEUE}'",
        status=f"COALESCE({outcome}, 'waiting')",
        closed_reason=outcome,
        closed_at=f"CASE WHEN NOT {is_open} THEN {_moment(PAST)} END",
        deadline_at=f"CASE WHEN {is_open} THEN {_moment(FAR)} END",
        created_at=_seconds_after(PAST, "n"),
        input_sequence="2",
        last_history_sequence="2",
        open_groups="'{}'",
    )


def _insert_what_hangs_on_them() -> None:
    """The first tasks that are ready, and their runs, have the rows that belong to them; the others stay alone."""
    task, run, execution = (
        _name("TASK", f"n + {LATER}"),
        _name("RUN", f"n + {LATER}"),
        _name("EXECUTION", f"n + {LATER}"),
    )
    of_task = {"namespace": "'default'", "task_id": task, "run_id": run}
    of_workflow = {"namespace": "'default'", "workflow_id": _name("WF", f"n + {LATER}"), "run_id": run}
    arguments = make.envelope([])
    payload = json.dumps({"arguments": arguments, "activity": {"arguments": arguments}})
    for sequence, event_type in ((1, "StartAccepted"), (2, "WorkflowStarted")):
        _insert(
            HistoryEvent, HANGING, id=_name(event_type[:8]), run_id=run, sequence=str(sequence),
            event_type=f"'{event_type}'", payload=f"'{payload}'", payload_bytes=str(len(payload)),
        )  # fmt: skip
    _insert(
        ActivityExecution, HANGING, id=execution, namespace="'default'", run_id=run, step_number="1",
        activity_type="'step'", task_queue=f"'{make.QUEUE}'", task_id=task, scheduled_sequence="1",
    )  # fmt: skip
    _insert(
        ActivityAttempt, HANGING, **of_task, activity_execution_id=execution, attempt_number="1",
        status="'completed'", lease_owner=f"'{HOLDER}'",
    )  # fmt: skip
    _insert(
        CompletionReceipt, HANGING, **of_task, kind="'activity'", lease_owner=f"'{HOLDER}'", attempt_number="1",
        outcome="'completed'",
    )  # fmt: skip
    _insert(
        CheckpointReceipt, HANGING, **of_task, lease_owner=f"'{HOLDER}'", attempt_number="1", checkpoint_id="'c-1'",
        start_sequence="1", next_sequence="2",
    )  # fmt: skip
    _insert(
        PollReceipt, HANGING, namespace="'default'", kind="'activity'", worker_id=f"'{HOLDER}'",
        poll_request_id=_name("POLL"), task_id=task, attempt_number="1", expires_at=_moment(FAR),
    )  # fmt: skip
    _insert(
        RefusedReport, HANGING, **of_task, route="'workflow-task-complete'", lease_owner=f"'{HOLDER}'",
        offered_attempt="'1'", current_attempt="1", reason="'lease_expired'", last_refused_at=_moment(FAR),
        body_bytes="2",
    )  # fmt: skip
    _insert(
        Workflow, HANGING, id=_name("WF", f"n + {LATER}"), namespace="'default'", workflow_type="'type-0'",
        current_run_id=run,
    )  # fmt: skip
    _insert(
        WorkflowCommand, HANGING, **of_workflow, command_type="'start'", status="'accepted'", outcome="'started_new'",
        principal_type="'token'", principal_id="'tests'",
    )  # fmt: skip


# -- SQL of three databases --------------------------------------------------------------------------------------------


def _insert(model: type[models.Model], count: int, **columns: str) -> None:
    """INSERT … SELECT of `count` rows; other columns get their default, null, an empty text, 0 or a past time."""
    fields = {field.column: columns.get(field.attname, _default(field)) for field in model._meta.concrete_fields}
    numbers = f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})"
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute(f"SET max_recursive_iterations = {count + 1}")
        select = f"{numbers} SELECT {', '.join(fields.values())} FROM numbers"
        cursor.execute(f"INSERT INTO {model._meta.db_table} ({', '.join(fields)}) {select}")


def _default(field: Any) -> str:
    if field.primary_key:
        return _name("ROW")
    if field.has_default():
        value = field.get_db_prep_save(field.get_default(), connection)
        return f"'{value}'" if isinstance(value, str) else str(value)
    if field.null:
        return "NULL"
    if isinstance(field, models.DateTimeField):
        return _moment(PAST)
    return "0" if isinstance(field, models.IntegerField) else "''"


def _join(*texts: str) -> str:
    return f"CONCAT({', '.join(texts)})" if connection.vendor == "mysql" else f"({' || '.join(texts)})"


def _text(number: str) -> str:
    return f"CAST({number} AS CHAR)" if connection.vendor == "mysql" else f"CAST({number} AS TEXT)"


def _name(kind: str, number: str = "n") -> str:
    """`TASK-0000000042`: in the order of the rows, as ids are."""
    sqlite = connection.vendor == "sqlite"
    padded = f"substr('0000000000' || ({number}), -10)" if sqlite else f"LPAD({_text(number)}, 10, '0')"
    return _join(f"'{kind}-'", padded)


def _moment(text: str) -> str:
    return f"TIMESTAMPTZ {text[:-1]}+00'" if connection.vendor == "postgresql" else text


def _seconds_after(text: str, seconds: str) -> str:
    if connection.vendor == "sqlite":
        return f"datetime({text}, '+' || {seconds} || ' seconds')"
    if connection.vendor == "mysql":
        return f"{text} + INTERVAL {seconds} SECOND"
    return f"{_moment(text)} + {seconds} * INTERVAL '1 second'"
