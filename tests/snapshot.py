"""Every column of every row of every model, for "nothing was recorded" (docs/protocol/receipts.md)."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.db import connection

Snapshot = dict[str, list[tuple[Any, ...]]]


def take_snapshot(*, without: frozenset[str] = frozenset()) -> Snapshot:
    """All tables of all installed apps, found by introspection, as the database returns them."""
    tables = {model._meta.db_table for model in apps.get_models(include_auto_created=True)}
    found: Snapshot = {}
    with connection.cursor() as cursor:
        for table in sorted(tables - without):
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            found[table] = sorted(cursor.fetchall(), key=repr)
    return found


def changed_tables(before: Snapshot, after: Snapshot) -> list[str]:
    """The tables whose rows differ."""
    return [table for table in before if before[table] != after[table]]
