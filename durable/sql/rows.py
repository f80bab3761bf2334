"""Rows in and out of a cursor: one decoder and one encoder for three databases (docs/concurrency.md 14).

The hot path writes SQL by hand but keeps the models as the only place where tables and columns are named: a
`Columns` object lists a model's columns for a SELECT and turns what comes back into an instance; `insert` and `update`
compose the two kinds of write from a model's own columns and keep the text for the next time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from typing import Any, Generic, TypeVar

from django.db import DEFAULT_DB_ALIAS, connection, connections, models
from django.db.backends.utils import CursorWrapper
from django.db.models.base import ModelState
from django.db.models.fields import Field

from durable.jsontext import dump_json
from durable.models.fields import JSONTextField

M = TypeVar("M", bound=models.Model)

_MOST_PARAMETERS = 30_000  # SQLite takes 32,766 in one statement, PostgreSQL 65,535.


@lru_cache(maxsize=1)
def vendor() -> str:
    """`sqlite`, `postgresql` or `mysql`: of the default database, which does not change while a process lives."""
    return connection.vendor


# -- values ------------------------------------------------------------------------------------------------------------


def aware(value: Any) -> datetime | None:
    """A time as it left the driver (text on SQLite, naive on MariaDB, aware on PostgreSQL) as an aware UTC datetime."""
    if value is None:
        return None
    moment: datetime = datetime.fromisoformat(value) if isinstance(value, str) else value
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


def encode(value: Any) -> Any:
    """One value as this database's cursor takes it; JSON columns are encoded by whoever knows the column."""
    kind = type(value)
    if kind is str:
        # PostgreSQL's text cannot hold NUL, so no column does; the JSON of an event escapes it and keeps it.
        return value.replace("\x00", "\N{SYMBOL FOR NULL}") if "\x00" in value else value
    if kind is int or value is None:
        return value
    if kind is datetime:
        # PostgreSQL's driver knows zones; the others are given UTC without one, as Django stores it.
        return value if vendor() == "postgresql" else str(value.astimezone(UTC).replace(tzinfo=None))
    return value.value if isinstance(value, Enum) else value


def _encode_json(value: Any) -> str | None:
    return None if value is None else dump_json(value)


def _encoder(field: Field[Any, Any]) -> Callable[[Any], Any]:
    return _encode_json if isinstance(field, JSONTextField) else encode


def _decoder(field: Field[Any, Any]) -> Callable[[Any], Any] | None:
    if isinstance(field, models.DateTimeField):
        return aware
    if isinstance(field, JSONTextField):
        return _load_json
    if isinstance(field, models.BooleanField):
        return _as_bool
    return None


# -- statements --------------------------------------------------------------------------------------------------------


class _Kept(threading.local):
    """This thread's cursor, and the driver's connection it belongs to."""

    cursor: CursorWrapper
    link: object = None


_kept = _Kept()


def _execute(sql: str, parameters: Sequence[Any]) -> CursorWrapper:
    """Run a statement with Django's cursor, kept from one statement to the next: opening one costs half a statement.

    Whatever is fetched is fetched at once and whole, so that nothing of a statement is left behind.
    """
    own = connections[DEFAULT_DB_ALIAS]
    if own.connection is None or own.connection is not _kept.link:
        _kept.cursor = own.cursor()
        _kept.link = own.connection
    _kept.cursor.execute(sql, parameters)
    return _kept.cursor


# -- reading -----------------------------------------------------------------------------------------------------------


class Columns(Generic[M]):
    """A model's columns for one SELECT list, and the way back from a row to an instance.

    `only` or `without` name attributes; what is left out is fetched by Django if somebody asks for it after all.
    """

    def __init__(self, model: type[M], alias: str, *, only: Iterable[str] = (), without: Iterable[str] = ()) -> None:
        wanted, left_out = set(only), set(without)
        self.model = model
        self.fields = [
            field
            for field in model._meta.concrete_fields
            if field.attname not in left_out and (not wanted or field.attname in wanted)
        ]
        self.names = [field.attname for field in self.fields]
        self.sql = ", ".join(f"{alias}.{field.column}" for field in self.fields)
        self._decoders = [(index, decoder) for index, f in enumerate(self.fields) if (decoder := _decoder(f))]

    def __len__(self) -> int:
        return len(self.fields)

    def decode(self, values: Sequence[Any]) -> M:
        """An instance from exactly this object's columns.

        Filled in directly: a model's constructor takes longer than the statement that fetched its row.
        """
        row = list(values)
        for index, decoder in self._decoders:
            row[index] = decoder(row[index])
        instance = self.model.__new__(self.model)
        state = ModelState()
        state.db, state.adding = DEFAULT_DB_ALIAS, False
        instance.__dict__.update(zip(self.names, row, strict=True), _state=state)
        return instance

    def decode_joined(self, row: Sequence[Any], start: int) -> M | None:
        """An instance from the columns at `start` of a joined row; None when the outer join found nothing."""
        values = row[start : start + len(self.fields)]
        return None if values[0] is None else self.decode(values)


def fetch_one(sql: str, parameters: Sequence[Any]) -> Any:
    """The first row, or None."""
    found = fetch_all(sql, parameters)
    return found[0] if found else None


def fetch_all(sql: str, parameters: Sequence[Any]) -> list[Any]:
    """All rows."""
    return list(_execute(sql, [encode(value) for value in parameters]).fetchall())


# -- writing -----------------------------------------------------------------------------------------------------------


class _InsertPlan:
    """What inserting rows of one model takes."""

    def __init__(self, model: type[models.Model]) -> None:
        fields = [f for f in model._meta.concrete_fields if not (isinstance(f, models.AutoField) and f.primary_key)]
        self.encoders = [(field.attname, _encoder(field)) for field in fields]
        self.head = f"INTO {model._meta.db_table} ({', '.join(str(field.column) for field in fields)})"
        self.placeholders = f"({', '.join(['%s'] * len(fields))})"
        self.rows_at_once = max(1, _MOST_PARAMETERS // len(fields))


_insert_plan = lru_cache(maxsize=None)(_InsertPlan)


def insert(rows: Sequence[models.Model], *, or_ignore: bool = False, no_wait: bool = False) -> int:
    """Insert instances of one model in as few statements as their number allows; return how many were inserted.

    With `or_ignore` a row whose unique key exists is left out without an error and without ending the transaction;
    with `no_wait` MariaDB fails at once where another transaction holds that key.
    """
    if not rows:
        return 0
    plan = _insert_plan(type(rows[0]))
    verb, suffix = "INSERT", ""
    if or_ignore:
        verb, suffix = _ignoring(no_wait=no_wait)
    inserted = 0
    for start in range(0, len(rows), plan.rows_at_once):
        chunk = rows[start : start + plan.rows_at_once]
        values = [encoder(getattr(row, name)) for row in chunk for name, encoder in plan.encoders]
        places = ", ".join([plan.placeholders] * len(chunk))
        inserted += int(_execute(f"{verb} {plan.head} VALUES {places}{suffix}", values).rowcount)
    return inserted


def insert_if(row: models.Model, condition: str, parameters: Sequence[Any]) -> bool:
    """Insert one row if a condition holds and its key is free; whether it was inserted. PostgreSQL only."""
    plan = _insert_plan(type(row))
    values = [encoder(getattr(row, name)) for name, encoder in plan.encoders]
    sql = f"INSERT {plan.head} SELECT {plan.placeholders[1:-1]} WHERE {condition} ON CONFLICT DO NOTHING"
    return int(_execute(sql, [*values, *parameters]).rowcount) == 1


def _ignoring(*, no_wait: bool) -> tuple[str, str]:
    """How this database says "leave out what exists already"."""
    if vendor() != "mysql":
        return "INSERT", " ON CONFLICT DO NOTHING"
    if no_wait and getattr(connection, "mysql_is_mariadb", False):
        return "SET STATEMENT innodb_lock_wait_timeout=0 FOR INSERT IGNORE", ""
    return "INSERT IGNORE", ""


@lru_cache(maxsize=512)
def _update_plan(
    model: type[models.Model], changed: tuple[str, ...], guarded: tuple[tuple[str, int], ...]
) -> tuple[str, tuple[Callable[[Any], Any], ...]]:
    """The text of a guarded update, and the encoders of what it sets. A guard's number is how many values it allows."""
    fields = [_field(model, name) for name in changed]
    assignments = ", ".join(f"{field.column} = %s" for field in fields)
    conditions = []
    for name, count in guarded:
        column = _field(model, name).column
        condition = {0: "IS NULL", 1: "= %s"}.get(count) or f"IN ({', '.join(['%s'] * count)})"
        conditions.append(f"{column} {condition}")
    by_many_keys = any(_field(model, name).primary_key and count > 1 for name, count in guarded)
    # Where a table is small MariaDB would walk all of it instead, and lock each row that it passes.
    hint = " FORCE INDEX (PRIMARY)" if by_many_keys and vendor() == "mysql" else ""
    sql = f"UPDATE {model._meta.db_table}{hint} SET {assignments} WHERE {' AND '.join(conditions)}"
    return sql, tuple(_encoder(field) for field in fields)


def _field(model: type[models.Model], name: str) -> Field[Any, Any]:
    found = model._meta.get_field(name)
    if not isinstance(found, Field):
        raise TypeError(f"{name} is not a column")
    return found


def update(model: type[models.Model], changes: dict[str, Any], where: dict[str, Any]) -> int:
    """A guarded update: set `changes` on the rows whose columns equal `where`; return how many there were.

    A tuple in `where` means any of its members, None means null. Callers name the old state there and treat 0 rows as
    a branch. MariaDB counts matched rows, as the others do (Django asks it to).
    """
    allowed = {name: value if isinstance(value, tuple) else (value,) for name, value in where.items()}
    guarded = tuple((name, 0 if values == (None,) else len(values)) for name, values in allowed.items())
    sql, encoders = _update_plan(model, tuple(changes), guarded)
    parameters = [encoder(value) for encoder, value in zip(encoders, changes.values(), strict=True)]
    parameters += [encode(value) for values in allowed.values() if values != (None,) for value in values]
    return int(_execute(sql, parameters).rowcount)
