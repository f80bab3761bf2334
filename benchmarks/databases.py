"""A fresh database for each run, with the durability its server has by default, dropped afterwards.

Only servers on this machine are used. What decides durability is read back and reported, because a server with
`fsync` off, or a data directory in memory, would win every comparison.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

from benchmarks.measure import file_system_of, process_name, processes_named

DatabaseKind = Literal["sqlite", "postgres", "mysql"]
DATABASE_KINDS: tuple[DatabaseKind, ...] = ("sqlite", "postgres", "mysql")
DEFAULT_SERVERS: Mapping[str, str] = {
    "postgres": "postgres://postgres@127.0.0.1:5432/postgres",
    "mysql": "mysql://root@127.0.0.1:3306/mysql",
}

_CONNECT_SECONDS = 5
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NOT_DURABLE = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "innodb_flush_log_at_trx_commit": ("0", "2"),
    "innodb_doublewrite": ("0", "OFF"),
    "file_system": ("tmpfs", "ramfs"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """An empty database. `server_pid` is the main process of its server where that is visible in /proc."""

    kind: DatabaseKind
    url: str
    server_pid: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)

    def warnings(self) -> list[str]:
        """One sentence for each setting that makes commits cheaper than durable ones."""
        return [
            f"{self.kind}: {name} is {self.facts[name]}, so commits are not durable"
            for name, values in _NOT_DURABLE.items()
            if name in self.facts and self.facts[name] in values
        ]


def fresh_database(kind: DatabaseKind, directory: Path, servers: Mapping[str, str]) -> AbstractContextManager[Database]:
    """An empty database of this kind for the length of the block.

    An SQLite file goes into the directory, which must exist and is the caller's to remove.
    """
    if kind == "sqlite":
        return _sqlite(directory)
    server = urlsplit(servers[kind])
    if server.hostname not in _LOOPBACK:
        raise ValueError(f"the {kind} server must be on this machine, not on {server.hostname!r}")
    return _postgres(server) if kind == "postgres" else _mysql(server)


@contextmanager
def _sqlite(directory: Path) -> Iterator[Database]:
    file = directory / "durable.sqlite3"
    facts = {"version": sqlite3.sqlite_version, "file_system": file_system_of(directory)}
    yield Database(kind="sqlite", url=f"sqlite:///{file}", facts=facts)


@contextmanager
def _postgres(server: SplitResult) -> Iterator[Database]:
    import psycopg

    name = _new_name()
    connection_url = server._replace(scheme="postgresql").geturl()
    settings = ("fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers")
    with psycopg.connect(connection_url, autocommit=True, connect_timeout=_CONNECT_SECONDS) as connection:
        rows = connection.execute(
            "SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name", (list(settings),)
        )
        facts = {"version": str(connection.info.parameter_status("server_version")), **dict(rows.fetchall())}
        parent = _parent_of(connection.info.backend_pid)
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            url = server._replace(path=f"/{name}").geturl()
            yield Database(kind="postgres", url=url, server_pid=parent, facts=facts)
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def _mysql(server: SplitResult) -> Iterator[Database]:
    import MySQLdb  # type: ignore[import-untyped]

    name = _new_name()
    settings = ("innodb_flush_log_at_trx_commit", "innodb_doublewrite", "sync_binlog", "log_bin")
    connection = MySQLdb.connect(
        host="127.0.0.1" if server.hostname == "localhost" else str(server.hostname),
        port=server.port or 3306,
        user=unquote(server.username or "root"),
        password=unquote(server.password or ""),
        connect_timeout=_CONNECT_SECONDS,
    )
    with closing(connection), closing(connection.cursor()) as cursor:
        cursor.execute("SELECT " + ", ".join(f"@@{setting}" for setting in ("version", *settings)))
        facts = dict(zip(("version", *settings), map(str, cursor.fetchone()), strict=True))
        pids = processes_named("mariadbd", "mysqld")
        cursor.execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        try:
            url = server._replace(path=f"/{name}").geturl()
            yield Database(kind="mysql", url=url, server_pid=pids[0] if len(pids) == 1 else None, facts=facts)
        finally:
            connection.ping(True)
            cursor.execute(f"DROP DATABASE `{name}`")


def _parent_of(backend_pid: int) -> int | None:
    """The postmaster's process id, or None when the backend is not in this machine's /proc."""
    if process_name(backend_pid) != "postgres":
        return None
    status = Path(f"/proc/{backend_pid}/status").read_text()
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:")), None)


def _new_name() -> str:
    return f"durable_bench_{secrets.token_hex(4)}"
