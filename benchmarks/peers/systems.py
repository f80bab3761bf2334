"""The peers: what each is opened from, and which of the programs here are its starter and its worker.

Opening one gives an empty system, with the durability it has by default, which is gone at the end of the block.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.databases import DatabaseKind, fresh_database
from benchmarks.peers.environment import program, variables
from benchmarks.processes import PROJECT, finish, free_port, running


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A peer that runs. The process ids are None where there is no such process, or it is not visible in /proc."""

    url: str
    facts: Mapping[str, str]
    notes: Sequence[str]
    server_pid: int | None
    database_pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    database: str
    worker_module: str
    starter_module: str
    open: Callable[[Path, Mapping[str, str]], AbstractAsyncContextManager[Opened]]


@asynccontextmanager
async def _dbos(kind: DatabaseKind, directory: Path, servers: Mapping[str, str]) -> AsyncIterator[Opened]:
    """DBOS has no server: a database with its tables is all that its clients and workers need."""
    with fresh_database(kind, directory, servers) as database:
        url = database.url.replace("postgres://", "postgresql://", 1)
        command = [str(program("dbos")), "migrate", "--sys-db-url", url]
        await finish(command, variables(), directory / "dbos-migrate.log", PROJECT)
        yield Opened(
            url=url,
            facts=database.facts,
            notes=database.warnings(),
            server_pid=None,
            database_pid=database.server_pid,
        )


@asynccontextmanager
async def _temporal(directory: Path, servers: Mapping[str, str]) -> AsyncIterator[Opened]:
    """Temporal's dev server as it comes, without its user interface. It may not be ready yet."""
    port = free_port()
    command = [str(program("temporal")), "--disable-config-file", "server", "start-dev", "--headless"]
    command += ["--ip", "127.0.0.1", "--port", str(port)]
    async with running(command, variables(), directory / "temporal-server.log", directory) as server:
        yield Opened(
            url=f"127.0.0.1:{port}",
            facts={"storage": "in memory"},
            notes=["temporal: the dev server keeps everything in memory, so nothing is durable"],
            server_pid=server.pid,
            database_pid=None,
        )


PEERS: Mapping[str, Peer] = {
    "dbos-sqlite": Peer(
        database="sqlite",
        worker_module="benchmarks.peers.dbos_worker",
        starter_module="benchmarks.peers.dbos_starter",
        open=partial(_dbos, "sqlite"),
    ),
    "dbos-postgres": Peer(
        database="postgres",
        worker_module="benchmarks.peers.dbos_worker",
        starter_module="benchmarks.peers.dbos_starter",
        open=partial(_dbos, "postgres"),
    ),
    "temporal": Peer(
        database="memory",
        worker_module="benchmarks.peers.temporal_worker",
        starter_module="benchmarks.peers.temporal_starter",
        open=_temporal,
    ),
}
