"""Fixtures of the budget tests: an API whose statements are all heard, and which runs none on its own account."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from durable import conf
from durable.sql.pool import Work
from tests import factories as make
from tests.budgets.statements import Statements, recorded_statements
from tests.client import ApiClient
from tests.protocol.reports import poll

NEVER = 86_400


@pytest.fixture
def statements(database: None, override_durable: Any) -> Iterator[Statements]:
    """Every statement of the API's pool; its own rounds (probes, signs of life) do not come up during a test."""
    override_durable(PROBE_INTERVAL_SECONDS=NEVER, WORKER_SEEN_INTERVAL_SECONDS=NEVER)
    with recorded_statements() as heard:
        yield heard


@pytest.fixture
def api(statements: Statements) -> Iterator[ApiClient]:
    """The API with worker w-1 registered, all connections open, and token and namespace looked up already."""
    make.register()
    with ApiClient() as client:
        open_connections(client)
        poll(client, "workflow")
        yield client


def open_connections(api: ApiClient) -> None:
    """Have every thread of the pool open its connection, so that no test counts what that takes."""
    threads = conf.current().db_threads
    shares = {Work.READ: threads - 1, Work.WRITE: 1} if connection.vendor == "sqlite" else {Work.WRITE: threads}

    def open_together(barrier: threading.Barrier) -> None:
        connection.ensure_connection()
        barrier.wait(10)

    async def open_all() -> None:
        for work, count in shares.items():
            barrier = threading.Barrier(count)
            await asyncio.gather(*(api.runtime.pool.run(work, open_together, barrier) for _ in range(count)))

    api.wait(open_all())
