"""Rows in and out of a cursor: one decoder and one encoder for three databases (docs/concurrency.md 14).

The hot path writes SQL by hand but keeps the models as the only place where tables and columns are named: a
`Columns` object lists a model's columns for a SELECT and turns what comes back into an instance.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from django.db import connection, models
from django.db.models.fields import Field

from durable.jsontext import dump_json
from durable.models.fields import JSONTextField

M = TypeVar("M", bound=models.Model)

_MOST_PARAMETERS = 30_000  # SQLite takes 32,766 in one statement, PostgreSQL 65,535.


def aware(value: Any) -> datetime | None:
    """A time as it left the driver (text on SQLite, naive on MariaDB, aware on PostgreSQL) as an aware UTC datetime."""
    if value is None:
        return None
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    moment: datetime = value
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def known(value: Any) -> datetime:
    """The same for a column that is never null."""
    moment = aware(value)
    if moment is None:
        raise ValueError("a time is missing where the schema has one")
    return moment


def _load_json(value: Any) -> Any:
    return None if value is None else json.loads(value)


def _as_bool(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _decoder(field: Field[Any, Any]) -> Callable[[Any], Any] | None:
    if isinstance(field, models.DateTimeField):
        return aware
    if isinstance(field, JSONTextField):
        return _load_json
    if isinstance(field, models.BooleanField):
        return _as_bool
    return None


def encode(value: Any) -> Any:
    """One value as this database's cursor takes it; JSON columns are encoded by whoever knows the column."""
    if isinstance(value, datetime):
        return connection.ops.adapt_datetimefield_value(value)
    return value


class Columns(Generic[M]):
    """A model's columns for one SELECT list, and the way back from a row to an instance."""

    def __init__(self, model: type[M], alias: str, *, without: Iterable[str] = ()) -> None:
        left_out = set(without)
        self.model = model
        self.fields = [field for field in model._meta.concrete_fields if field.attname not in left_out]
        self.names = [field.attname for field in self.fields]
        self.sql = ", ".join(f"{alias}.{field.column}" for field in self.fields)
        self._decoders = [(index, decoder) for index, f in enumerate(self.fields) if (decoder := _decoder(f))]

    def __len__(self) -> int:
        return len(self.fields)

    def decode(self, values: Sequence[Any]) -> M:
        """An instance from exactly this object's columns."""
        row = list(values)
        for index, decoder in self._decoders:
            row[index] = decoder(row[index])
        return self.model.from_db(connection.alias, self.names, row)

    def decode_joined(self, row: Sequence[Any], start: int) -> M | None:
        """An instance from the columns at `start` of a joined row; None when the outer join found nothing."""
        values = row[start : start + len(self.fields)]
        return None if values[0] is None else self.decode(values)


def fetch_one(sql: str, parameters: Sequence[Any]) -> Any:
    """The first row, or None."""
    with connection.cursor() as cursor:
        cursor.execute(sql, [encode(value) for value in parameters])
        return cursor.fetchone()


def fetch_all(sql: str, parameters: Sequence[Any]) -> list[Any]:
    """All rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql, [encode(value) for value in parameters])
        return list(cursor.fetchall())


def execute(sql: str, parameters: Sequence[Any]) -> int:
    """Run a write and return how many rows it changed (MariaDB counts matched rows, as the others do)."""
    with connection.cursor() as cursor:
        cursor.execute(sql, [encode(value) for value in parameters])
        return int(cursor.rowcount)


def _column_value(field: Field[Any, Any], value: Any) -> Any:
    if isinstance(field, JSONTextField):
        return None if value is None else dump_json(value)
    return encode(value)


def insert(rows: Sequence[models.Model], *, or_ignore: bool = False, no_wait: bool = False) -> int:
    """Insert instances of one model in as few statements as their number allows; return how many were inserted.

    With `or_ignore` a row whose unique key exists is left out without an error and without ending the transaction;
    with `no_wait` MariaDB fails at once where another transaction holds that key.
    """
    if not rows:
        return 0
    meta = type(rows[0])._meta
    fields = [f for f in meta.concrete_fields if not (isinstance(f, models.AutoField) and f.primary_key)]
    columns = ", ".join(str(field.column) for field in fields)
    verb, suffix = "INSERT", ""
    if or_ignore:
        if connection.vendor == "mysql":
            verb = "INSERT IGNORE"
            if no_wait and getattr(connection, "mysql_is_mariadb", False):
                verb = "SET STATEMENT innodb_lock_wait_timeout=0 FOR " + verb
        else:
            suffix = " ON CONFLICT DO NOTHING"
    placeholders = "(" + ", ".join(["%s"] * len(fields)) + ")"
    step = max(1, _MOST_PARAMETERS // len(fields))
    inserted = 0
    for start in range(0, len(rows), step):
        chunk = rows[start : start + step]
        sql = f"{verb} INTO {meta.db_table} ({columns}) VALUES {', '.join([placeholders] * len(chunk))}{suffix}"
        values = [_column_value(field, getattr(row, field.attname)) for row in chunk for field in fields]
        with connection.cursor() as cursor:
            cursor.execute(sql, values)
            inserted += int(cursor.rowcount)
    return inserted


def _field(model: type[models.Model], name: str) -> Field[Any, Any]:
    found = model._meta.get_field(name)
    if not isinstance(found, Field):
        raise TypeError(f"{name} is not a column")
    return found


def update(model: type[models.Model], changes: dict[str, Any], where: dict[str, Any]) -> int:
    """A guarded update: set `changes` on the rows whose columns equal `where`; return how many there were.

    A tuple in `where` means any of its members. Callers name the old state there and treat 0 rows as a branch.
    """
    assignments, values = [], []
    for name, value in changes.items():
        field = _field(model, name)
        assignments.append(f"{field.column} = %s")
        values.append(_column_value(field, value))
    conditions = []
    for name, value in where.items():
        column = _field(model, name).column
        if value is None:
            conditions.append(f"{column} IS NULL")
        elif isinstance(value, tuple):
            conditions.append(f"{column} IN ({', '.join(['%s'] * len(value))})")
            values.extend(encode(member) for member in value)
        else:
            conditions.append(f"{column} = %s")
            values.append(encode(value))
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {model._meta.db_table} SET {', '.join(assignments)} WHERE {' AND '.join(conditions)}", values
        )
        return int(cursor.rowcount)
