"""System checks: settings under which the engine's promises would not hold are refused before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import connection

from durable import conf

OLDEST_MARIADB = (10, 6)


@register("durable")
def check_settings(**_: Any) -> list[CheckMessage]:
    """Time-outs and leases must fit together."""
    current = conf.current()
    errors: list[CheckMessage] = []
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
    if configured.get("CONN_MAX_AGE"):
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
    if "sqlite3" in configured["ENGINE"] and options.get("transaction_mode", "").upper() != "IMMEDIATE":
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
    """What only the server itself can tell: MariaDB must be able to skip locked rows."""
    if not databases or "default" not in databases or connection.vendor != "mysql":
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
