"""What a process holds, counted from outside it: connections on the database's side, threads on ours."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from django.db import connection

from durable import conf


def connection_count() -> int:
    """Connections to this test's database, the test's own left out; counted by the server, or by open files."""
    if connection.vendor == "sqlite":
        name = str(connection.settings_dict["NAME"])
        held = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return held.count(name) - 1
    counts = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid()",
        "mysql": "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> connection_id()",
    }
    with connection.cursor() as cursor:
        cursor.execute(counts[connection.vendor])
        return int(cursor.fetchone()[0])


def open_transaction_count() -> int:
    """Transactions that others have open on this test's database. SQLite cannot say; there a lock would show."""
    counts = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL",
        "mysql": "SELECT count(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p"
        " ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND p.id <> connection_id()",
        "sqlite": "SELECT 0",
    }
    with connection.cursor() as cursor:
        cursor.execute(counts[connection.vendor])
        return int(cursor.fetchone()[0])


def most_connections() -> int:
    """What a process may hold: its pool, and on PostgreSQL the listener, the sender and a self-test of the listener."""
    return conf.current().db_threads + (3 if connection.vendor == "postgresql" else 0)


def thread_count() -> int:
    """Threads of this process."""
    return threading.active_count()
