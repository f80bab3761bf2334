"""How the databases carry out the claim's statements: by the index each is meant for, in its order, without sorting.

The barrier test `second_claim_gets_next` rests on this: a sort would lock the whole backlog on MariaDB.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from durable.models import Task
from durable.sql import claiming, rows
from durable.sql.claiming import Candidate, Wanted
from durable.states import TaskKind, TaskStatus
from tests import factories as make

pytestmark = pytest.mark.usefixtures("database")

BACKLOG = 1500


def fill_backlog() -> None:
    """Ready, leased and closed tasks of several types and queues, many enough that no database would rather scan."""
    now = timezone.now()
    tasks = []
    for number in range(BACKLOG):
        is_leased, is_closed = number % 10 == 1, number % 10 == 2
        moment = now + timedelta(seconds=number)
        status = TaskStatus.LEASED if is_leased else TaskStatus.COMPLETED if is_closed else TaskStatus.READY
        lease = {"lease_owner": "w-9", "leased_at": now, "lease_expires_at": now} if is_leased else {}
        tasks.append(
            Task(
                id=f"T{number:025}",
                namespace="default",
                task_queue=make.QUEUE if number % 3 else "elsewhere",
                kind=TaskKind.WORKFLOW,
                type="five" if number % 2 else "other",
                status=status,
                attempt_count=1 if is_leased else 0,
                priority=number % 4,
                available_at=moment,
                created_at=moment,
                run_id=f"R{number:025}",
                workflow_id=f"wf-{number}",
                **lease,
            )
        )
    rows.insert(tasks)
    with connection.cursor() as cursor:
        table = Task._meta.db_table
        cursor.execute(f"ANALYZE TABLE {table}" if connection.vendor == "mysql" else f"ANALYZE {table}")


def wanted(*types: str) -> Wanted:
    return Wanted(namespace="default", task_queue=make.QUEUE, kind=TaskKind.WORKFLOW, types=types, build_id="b-1")


def explain(run: Any) -> tuple[Any, str]:
    """What `run` returns, and the plan of the one statement that it executes, as text."""
    seen: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append((sql, params))
        return execute(sql, params, many, context)

    with transaction.atomic():
        with connection.execute_wrapper(note):
            outcome = run()
        ((sql, params),) = seen
        prefix = {"postgresql": "EXPLAIN (FORMAT JSON) ", "mysql": "EXPLAIN FORMAT=JSON "}
        with connection.cursor() as cursor:
            cursor.execute(prefix.get(connection.vendor, "EXPLAIN QUERY PLAN ") + sql, params)
            plan = cursor.fetchall()
    return outcome, json.dumps(plan, default=str)


SORTS = {"postgresql": '"Sort"', "mysql": "filesort", "sqlite": "TEMP B-TREE"}


@pytest.mark.parametrize(
    ("types", "type_", "index"),
    [
        ((), None, "durable_task_claim_any"),
        (("five", "other"), "five", "durable_task_claim_typed"),
    ],
)
def test_second_claim_gets_next_by_the_named_index_without_sorting(
    types: tuple[str, ...], type_: str | None, index: str
) -> None:
    fill_backlog()

    locked, plan = explain(lambda: claiming.lock_candidate(wanted(*types), timezone.now(), type_))

    assert locked is not None
    assert index in plan
    assert SORTS[connection.vendor] not in plan


@pytest.mark.parametrize(
    ("types", "index"), [((), "durable_task_claim_any"), (("five", "other"), "durable_task_claim_typed")]
)
def test_probes_by_the_named_index(types: tuple[str, ...], index: str) -> None:
    fill_backlog()

    found, plan = explain(lambda: claiming.probe(wanted(*types), timezone.now()))

    assert len(found) == max(1, len(types))
    assert index in plan


def test_offers_the_lowest_priority_number_first_and_then_the_oldest() -> None:
    fill_backlog()
    ready = Task.objects.filter(status=TaskStatus.READY, task_queue=make.QUEUE).order_by(
        "priority", "available_at", "id"
    )

    with transaction.atomic():
        locked = claiming.lock_candidate(wanted(), timezone.now(), None)

    assert locked == (ready.values_list("id", flat=True)[0], 0)


def test_candidates_of_a_probe_stand_in_claim_order() -> None:
    make.register(supported_workflow_types=["five", "other"])
    later = make.start(workflow_type="other")
    urgent = make.start(priority=1)

    found = claiming.probe(wanted("five", "other"), timezone.now())

    assert [candidate.task_id for candidate in found] == [urgent.run.open_task_id, later.run.open_task_id]
    assert all(isinstance(candidate, Candidate) for candidate in found)
