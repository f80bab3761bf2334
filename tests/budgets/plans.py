"""What a statement did to find its rows: which indexes, which tables walked whole, how many rows looked at.

Each database tells it in its own way, and each tells what really happened rather than what the planner expected:
PostgreSQL by EXPLAIN ANALYZE, MariaDB by the session's handler counters, SQLite by the number of steps of its virtual
machine. The statement runs in a transaction that is rolled back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db import connection, transaction

from tests.budgets.statements import Statement

# A look at one row takes SQLite from six steps, in an index alone, to thirty with all its columns.
SQLITE_STEPS_PER_ROW = 10
# Beyond this SQLite gives up: the statement is walking a table.
MOST_SQLITE_STEPS = 1_000_000
_STEPS_BETWEEN_COUNTS = 10
_TABLE = re.compile(
    r'(?:FROM|JOIN|UPDATE|INTO)\s+"?`?((?:durable|wire)_\w+)"?`?(?:\s+(?:AS\s+)?"?`?(\w+)"?`?)?', re.IGNORECASE
)


@dataclass(slots=True)
class Plan:
    """How one statement found its rows."""

    indexes: set[str] = field(default_factory=set)
    # Tables of ours that were walked from end to end, by table or by index.
    scanned: set[str] = field(default_factory=set)
    # Rows looked at, in tables of ours and in whatever was derived from them.
    examined: int = 0
    # Rows that had to be put in order.
    sorted_rows: int = 0
    text: str = ""


def plan_of(statement: Statement) -> Plan:
    """Run a statement once more and see how it finds its rows."""
    explain = {"sqlite": _sqlite_plan, "postgresql": _postgresql_plan, "mysql": _mariadb_plan}[connection.vendor]
    with transaction.atomic():
        try:
            return explain(statement)
        finally:
            transaction.set_rollback(True)


def _rows(sql: str, parameters: Any = ()) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _aliases(sql: str) -> dict[str, str]:
    """Table by the name that the statement gives it."""
    keywords = {"SET", "WHERE", "ON", "ORDER", "LEFT", "JOIN", "LIMIT", "VALUES", "FORCE", "INNER"}
    found = {}
    for table, alias in _TABLE.findall(sql):
        found[table] = table
        if alias and alias.upper() not in keywords:
            found[alias] = table
    return found


# -- SQLite ------------------------------------------------------------------------------------------------------------


def _sqlite_plan(statement: Statement) -> Plan:
    plan, aliases = Plan(), _aliases(statement.sql)
    lines = [str(row["detail"]) for row in _rows(f"EXPLAIN QUERY PLAN {statement.sql}", statement.parameters)]
    plan.text = "\n".join(lines)
    for line in lines:
        if match := re.match(r"(SCAN|SEARCH) (\w+)(?: USING (?:COVERING )?INDEX (\w+))?", line):
            way, alias, index = match.groups()
            if index:
                plan.indexes.add(index)
            if way == "SCAN" and alias in aliases:
                plan.scanned.add(aliases[alias])
    steps = _sqlite_steps(statement)
    plan.examined = steps // SQLITE_STEPS_PER_ROW
    if any("USE TEMP B-TREE FOR ORDER BY" in line for line in lines):
        plan.sorted_rows = plan.examined
    return plan


def _sqlite_steps(statement: Statement) -> int:
    counts = [0]

    def count() -> int:
        counts[0] += _STEPS_BETWEEN_COUNTS
        return int(counts[0] > MOST_SQLITE_STEPS)

    link = connection.connection
    link.set_progress_handler(count, _STEPS_BETWEEN_COUNTS)
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement.sql, statement.parameters)
            if statement.verb == "SELECT":
                cursor.fetchall()
    finally:
        link.set_progress_handler(None, 0)
    return counts[0]


# -- PostgreSQL --------------------------------------------------------------------------------------------------------

# A page read is a look too: an index that is walked without a match shows in no row count.
_PAGES_PER_ROW = 6


def _postgresql_plan(statement: Statement) -> Plan:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement.sql}", statement.parameters)
        (found,) = cursor.fetchone()
    root = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    plan = Plan(text=json.dumps(root, indent=1))
    rows = 0
    for node in _nodes(root):
        loops = node["Actual Loops"]
        removed = sum(node.get(f"Rows Removed by {step}", 0) for step in ("Filter", "Index Recheck"))
        if "Index Name" in node:
            plan.indexes.add(node["Index Name"])
        if node["Node Type"] == "Seq Scan":
            plan.scanned.add(node["Relation Name"])
        if "Scan" in node["Node Type"]:
            rows += round((node["Actual Rows"] + removed) * loops)
        if "Sort" in node["Node Type"]:
            plan.sorted_rows += round(node["Actual Rows"] * loops)
    pages = root.get("Shared Hit Blocks", 0) + root.get("Shared Read Blocks", 0)
    plan.examined = max(rows, pages // _PAGES_PER_ROW)
    return plan


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)


# -- MariaDB -----------------------------------------------------------------------------------------------------------


def _mariadb_plan(statement: Statement) -> Plan:
    plan, aliases = Plan(), _aliases(statement.sql)
    explained = _rows(f"EXPLAIN {statement.sql}", statement.parameters)
    plan.text = "\n".join(map(str, explained))
    for row in explained:
        table = aliases.get(row["table"] or "")
        if table and row["key"]:
            plan.indexes.add(row["key"])
        if table and row["type"] in ("ALL", "index"):
            plan.scanned.add(table)
    before, between = _handler_counts(), _handler_counts()
    with connection.cursor() as cursor:
        cursor.execute(statement.sql, statement.parameters)
        if statement.verb == "SELECT":
            cursor.fetchall()
    after = _handler_counts()
    reading = {name: after[name] - between[name] - (between[name] - before[name]) for name in after}
    plan.examined = sum(count for name, count in reading.items() if name.startswith("Handler_read"))
    plan.sorted_rows = reading["Sort_rows"]
    return plan


def _handler_counts() -> dict[str, int]:
    found = _rows(
        "SHOW SESSION STATUS WHERE Variable_name LIKE 'Handler\\_read%%' OR Variable_name = 'Sort_rows'", None
    )
    return {row["Variable_name"]: int(row["Value"]) for row in found}
