"""A process outlives its database going away for a while, and works on when it is back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from unittest import mock

import pytest
from django.db import InterfaceError, OperationalError, connection
from django.db.backends.base.base import BaseDatabaseWrapper

from durable import metrics
from durable.models import WorkerRegistration
from durable.sql.pool import DatabasePool, Work
from durable.wakeups import runtime
from tests import factories as make
from tests.budgets.conftest import open_connections
from tests.client import ApiClient, Response
from tests.parking import park_polls, wait_until
from tests.protocol.reports import poll


@pytest.fixture
def api(database: None, override_durable: Any) -> Iterator[ApiClient]:
    """The API with short intervals between its rounds from the start."""
    override_durable(PROBE_INTERVAL_SECONDS=0.05, WORKER_SEEN_INTERVAL_SECONDS=0.1)
    with ApiClient() as client:
        yield client


def fault_count() -> float:
    return float(metrics.FAULTS._value.get())


OTHERS = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mysql": "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> connection_id()",
}
END = {"postgresql": "SELECT pg_terminate_backend({})", "mysql": "KILL {}"}


def break_connections(api: ApiClient) -> None:
    """End every connection but the test's own, as a restart of the database server does.

    SQLite has no server that could end one; there its connections are closed, and must be opened again.
    """
    if connection.vendor == "sqlite":
        for kept in api.runtime.pool._connections:
            kept.close()
        return
    with connection.cursor() as cursor:
        cursor.execute(OTHERS[connection.vendor])
        for (number,) in cursor.fetchall():
            cursor.execute(END[connection.vendor].format(number))


@pytest.mark.parametrize("work", list(Work))
def test_names_the_error_of_a_connection_that_could_never_be_made(api: ApiClient, work: Work) -> None:
    refused = OperationalError("connection refused")

    async def read_in_a_new_pool() -> None:
        pool = DatabasePool()
        try:
            await pool.run(work, WorkerRegistration.objects.exists)
        finally:
            await pool.close()

    with (
        mock.patch.object(BaseDatabaseWrapper, "connect", side_effect=refused),
        pytest.raises(OperationalError) as seen,
    ):
        api.wait(read_in_a_new_pool())

    assert seen.value is refused


def poll_until_leased(api: ApiClient) -> list[Response]:
    """Ask again under the same poll id, as workers do, until there is a lease; every answer."""
    answers: list[Response] = []

    def ask() -> bool:
        answers.append(poll(api, "workflow", poll_request_id="p-1"))
        return answers[-1].status == 200

    wait_until(ask)
    return answers


def test_goes_on_after_all_its_connections_broke(api: ApiClient) -> None:
    make.register()
    open_connections(api)
    make.start()

    break_connections(api)
    answers = poll_until_leased(api)

    assert answers[-1].body["poll_status"] == "leased"
    # Each of the pool's connections can fail once, and what is answered then may be asked again.
    assert len(answers) <= 1 + len(api.runtime.pool._connections)
    assert all(answer.body["retryable"] for answer in answers[:-1])


def test_notes_signs_of_life_on_after_the_database_was_away(api: ApiClient) -> None:
    make.register()
    registered_at = last_heard()
    faults = fault_count()
    is_away = mock.patch.object(runtime, "note_workers_seen", side_effect=OperationalError("server closed"))

    with is_away:
        api.runtime.note_seen("default", "w-1")
        wait_until(lambda: fault_count() > faults)
    (waiting,) = park_polls(api, 1)

    wait_until(lambda: last_heard() > registered_at)
    waiting.cancel()


def last_heard() -> datetime:
    return WorkerRegistration.objects.get(worker_id="w-1").last_heartbeat_at


@pytest.mark.parametrize("path", ["/api/health", "/api/ready"])
def test_says_that_the_database_is_away_and_that_it_is_back(api: ApiClient, path: str) -> None:
    make.register()

    with mock.patch.object(api.runtime.pool, "run", side_effect=OperationalError("server closed")):
        away = api.get(path, token=None)
    back = api.get(path, token=None)

    assert (away.status, away.body["checks"]) == (503, {"database": "unavailable"})
    assert (back.status, back.body["checks"]["database"]) == (200, "ok")


def test_replaces_a_broken_connection_for_the_next_piece_of_work(api: ApiClient) -> None:
    open_connections(api)
    break_connections(api)
    failures = 0

    for _ in range(12):
        try:
            api.wait(api.runtime.pool.run(Work.WRITE, make.register))
        except (OperationalError, InterfaceError):
            failures += 1

    assert failures <= len(api.runtime.pool._connections)
    assert WorkerRegistration.objects.filter(worker_id="w-1").exists()
