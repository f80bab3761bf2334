"""Every column of every row of every model, for "nothing was recorded" (docs/protocol/receipts.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.apps import apps
from django.db import connection, models, transaction
from django.utils import timezone

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


@contextmanager
def nothing_recorded(*, without: frozenset[str] = frozenset()) -> Iterator[None]:
    """What runs inside leaves every column of every row of every table (but `without`) as it was."""
    before = take_snapshot(without=without)
    yield
    changed = changed_tables(before, take_snapshot(without=without))
    assert not changed, f"changed: {', '.join(changed)}"


# -- rows everywhere ---------------------------------------------------------------------------------------------------


@contextmanager
def filled_tables() -> Iterator[None]:
    """No table is empty inside: whichever had no row gets one, made from its fields; those are removed again."""
    made: list[models.Model] = []
    with transaction.atomic():
        for model in apps.get_models(include_auto_created=True):
            _fill(model, made)
    empty = [table for table, rows in take_snapshot().items() if not rows]
    assert not empty, f"tables without a row: {empty}"
    try:
        yield
    finally:
        with transaction.atomic():
            for row in reversed(made):
                type(row)._base_manager.filter(pk=row.pk).delete()


def _fill(model: type[models.Model], made: list[models.Model]) -> models.Model:
    existing = model._base_manager.first()
    if existing is not None:
        return existing
    values = {
        field.name: _value(field, made)
        for field in model._meta.concrete_fields
        if not (isinstance(field, models.AutoField) or field.has_default() or field.null)
    }
    row = model._base_manager.create(**values)
    made.append(row)
    return row


def _value(field: Any, made: list[models.Model]) -> Any:
    if field.remote_field is not None:
        return _fill(field.remote_field.model, made)
    if field.choices:
        return field.flatchoices[0][0]
    by_type: list[tuple[type[models.Field[Any, Any]], Callable[[], Any]]] = [
        (models.DateTimeField, timezone.now),
        (models.BooleanField, lambda: False),
        (models.IntegerField, lambda: 1),
        (models.CharField, lambda: "filler"[: field.max_length]),
        (models.TextField, lambda: "{}"),
    ]
    return next(make() for kind, make in by_type if isinstance(field, kind))
