"""The keys of lists of runs, newest first: by keyset, along the index that holds the list's order.

Only keys: the index alone answers for them, and the page's rows are then read by key. Asked for both at once, MariaDB
walks from the newest run to the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from durable.models import Run
from durable.sql.rows import fetch_all, known, vendor

_TABLE = Run._meta.db_table

Key = tuple[datetime, str]


def newest_runs(
    namespace: str,
    *,
    workflow_type: str | None,
    status: str | None,
    begins_with: str | None,
    before: Key | None,
    count: int,
) -> list[Key]:
    """(created_at, id) of at most `count` runs, newest first. `before` is the last key of the page before.

    One status at a time: two of them are not in the index's order. Served by durable_run_list, durable_run_by_status or
    durable_run_by_type; what begins with a text is then found by walking, so it must be common among the runs.
    """
    conditions, parameters = ["r.namespace = %s"], [namespace]
    index = "durable_run_list"
    if workflow_type:
        index = "durable_run_by_type"
        conditions.append("r.workflow_type = %s")
        parameters.append(workflow_type)
    if status:
        index = "durable_run_by_status"
        conditions.append("r.status = %s")
        parameters.append(status)
    return _newest(_along(index), conditions, parameters, begins_with, before, count)


def newest_of(ids: Sequence[str], namespace: str, *, before: Key | None, count: int, **equal: str | None) -> list[Key]:
    """The same among some runs that are known by id."""
    conditions, parameters = [f"r.id IN ({', '.join(['%s'] * len(ids))})", "r.namespace = %s"], [*ids, namespace]
    for column, value in equal.items():
        if value:
            conditions.append(f"r.{column} = %s")
            parameters.append(value)
    return _newest("", conditions, parameters, None, before, count) if ids else []


def run_ids_beginning_with(text: str, most: int) -> list[str]:
    """Ids of runs, in whatever namespace, whose workflow id begins with a text. Served by durable_run_of_workflow."""
    sql = (
        f"SELECT r.id FROM {_TABLE} r WHERE r.workflow_id >= %s AND r.workflow_id < %s"
        " ORDER BY r.workflow_id, r.run_number LIMIT %s"
    )
    return [row[0] for row in fetch_all(sql, (text, _end_of(text), most))]


def _end_of(text: str) -> str:
    """Where the ids that begin with a text end: ids are ASCII and hold no control characters."""
    return text + "\x7f"


def _along(index: str) -> str:
    """Which index to walk. PostgreSQL knows by its statistics; the others would at times rather sort."""
    return {"mysql": f" FORCE INDEX ({index})", "sqlite": f" INDEXED BY {index}"}.get(vendor(), "")


def _newest(
    hint: str, conditions: list[str], parameters: list[Any], begins_with: str | None, before: Key | None, count: int
) -> list[Key]:
    if begins_with:
        conditions.append("r.workflow_id >= %s AND r.workflow_id < %s")
        parameters += [begins_with, _end_of(begins_with)]
    if before:
        created_at, run_id = before
        # The first condition is where an index can begin; the second only settles what that leaves.
        conditions.append("r.created_at <= %s AND (r.created_at < %s OR (r.created_at = %s AND r.id < %s))")
        parameters += [created_at, created_at, created_at, run_id]
    sql = (
        f"SELECT r.created_at, r.id FROM {_TABLE} r{hint} WHERE {' AND '.join(conditions)}"
        " ORDER BY r.created_at DESC, r.id DESC LIMIT %s"
    )
    return [(known(created_at), run_id) for created_at, run_id in fetch_all(sql, (*parameters, count))]
