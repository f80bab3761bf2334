"""System checks: settings under which the engine's promises would not hold are refused before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from durable import conf
from durable.models.fields import ExactCharField, exact_collation

OLDEST_MARIADB = (10, 6)


@register("durable")
def check_settings(**_: Any) -> list[CheckMessage]:
    """Keys and types must be known, intervals positive, and time-outs and leases must fit together."""
    try:
        current = conf.current()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="durable.E004")]
    errors: list[CheckMessage] = []
    errors += [
        Error(f"{name.upper()} must be more than 0.", id="durable.E005")
        for name in ("probe_interval_seconds", "upkeep_interval_seconds", "worker_seen_interval_seconds", "db_threads")
        if getattr(current, name) <= 0
    ]
    if current.long_poll_seconds > current.long_poll_max_seconds:
        errors.append(
            Error(
                f"LONG_POLL_SECONDS ({current.long_poll_seconds}) is longer than LONG_POLL_MAX_SECONDS"
                f" ({current.long_poll_max_seconds}).",
                id="durable.E001",
            )
        )
    if not 0 < current.activity_lease_seconds <= 86_400 or not 0 < current.workflow_lease_seconds <= 86_400:
        errors.append(Error("Lease lengths must lie between 1 and 86400 seconds.", id="durable.E002"))
    if current.worker_stale_after_seconds < 2 * current.worker_heartbeat_interval_seconds:
        errors.append(
            Error(
                f"WORKER_STALE_AFTER_SECONDS ({current.worker_stale_after_seconds}) must be at least twice"
                f" WORKER_HEARTBEAT_INTERVAL_SECONDS ({current.worker_heartbeat_interval_seconds}).",
                id="durable.E003",
            )
        )
    return errors


@register("durable")
def check_connection_settings(**_: Any) -> list[CheckMessage]:
    """Connection reuse and request transactions that break the serving path or the locking rules."""
    configured = settings.DATABASES["default"]
    errors: list[CheckMessage] = []
    # None means for ever.
    if configured.get("CONN_MAX_AGE", 0) != 0:
        errors.append(
            Error(
                "CONN_MAX_AGE must be 0: under ASGI each request's thread would keep a connection of its own.",
                hint="The API keeps its connections in a pool of its own (DB_THREADS).",
                id="durable.E010",
            )
        )
    if configured.get("ATOMIC_REQUESTS"):
        errors.append(
            Error(
                "ATOMIC_REQUESTS must be off: a long poll would hold a transaction while it waits.",
                id="durable.E011",
            )
        )
    options = configured.get("OPTIONS", {})
    if "sqlite3" in configured["ENGINE"] and (options.get("transaction_mode") or "").upper() != "IMMEDIATE":
        errors.append(
            Error(
                "SQLite needs OPTIONS['transaction_mode'] = 'IMMEDIATE': otherwise a transaction that reads before it"
                " writes fails at once when another one writes.",
                id="durable.E012",
            )
        )
    if "mysql" in configured["ENGINE"] and options.get("isolation_level", "read committed") != "read committed":
        errors.append(Error("The isolation level must be READ COMMITTED.", id="durable.E013"))
    return errors


@register(Tags.database)
def check_database(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """What only the server itself can tell: it can skip locked rows, and it compares ids exactly."""
    if not databases or "default" not in databases:
        return []
    return [*_check_version(), *_check_collations()]


def _check_version() -> list[CheckMessage]:
    if connection.vendor != "mysql":
        return []
    version = connection.mysql_version  # type: ignore[attr-defined]  # only MySQL's wrapper has it
    if connection.mysql_is_mariadb and version < OLDEST_MARIADB:  # type: ignore[attr-defined]
        return [
            Error(
                f"MariaDB {'.'.join(map(str, version))} cannot skip locked rows; 10.6 is the oldest that can.",
                id="durable.E014",
            )
        ]
    return []


def exact_columns() -> list[tuple[str, str]]:
    """(table, column) of every id, owner, queue or type name in installed models."""
    return [
        (model._meta.db_table, str(field.column))
        for model in apps.get_models()
        for field in model._meta.concrete_fields
        if isinstance(field, ExactCharField)
    ]


def _check_collations() -> list[CheckMessage]:
    """Where two ids that differ in case or in a trailing space are one, a worker can hold another one's lease."""
    existing = set(connection.introspection.table_names())
    loose = []
    with connection.cursor() as cursor:
        for table, column in exact_columns():
            if table not in existing:
                continue
            # The column takes part for its collation alone: no row is read.
            same = f"SELECT {column} FROM {table} WHERE 1 = 0 UNION SELECT 'Id' UNION SELECT 'id' UNION SELECT 'id '"
            cursor.execute(f"SELECT COUNT(*) FROM ({same}) ids")
            if cursor.fetchone()[0] != 3:
                loose.append(f"{table}.{column}")
    if not loose:
        return []
    return [
        Error(
            f"Ids that differ only in case or in a trailing space are the same in {', '.join(loose)}.",
            hint=f"Give these columns the collation {exact_collation(connection)}, as the migrations do.",
            id="durable.E015",
        )
    ]
