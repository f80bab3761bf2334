"""Fixtures that every test shares: a real database without test transactions, the API in process, the API as a server.

Tests use real commits on whichever database DATABASE_URL names; the same files run on SQLite, PostgreSQL and MariaDB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.db import connection, transaction
from django.test.utils import setup_databases, teardown_databases

from durable.sql.rows import vendor
from tests.client import ApiClient, exchange_checks, response_checks
from tests.clock import EngineClock, engine_clock_in_hand
from tests.envelopes import check_envelope
from tests.openapi import check_exchange
from tests.server import ServerProcess
from tests.snapshot import filled_tables

APPS = ("durable", "wire")

# Every exchange of every test is held against the planes' envelopes and the committed API documents.
response_checks.append(check_envelope)
exchange_checks.append(check_exchange)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs a database, so that the other databases run only that; leave out what is about another one."""
    elsewhere = [item for item in items if (only := item.get_closest_marker("only_on")) and only.args[0] != vendor()]
    config.hook.pytest_deselected(items=elsewhere)
    items[:] = [item for item in items if item not in elsewhere]
    for item in items:
        if {"database", "clock", "api", "server"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.database)


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None, django_db_blocker: Any, django_db_modify_db_settings: None
) -> Iterator[None]:
    """The test database, also for tests that carry no `django_db` mark because they commit for real."""
    with django_db_blocker.unblock():
        configured = setup_databases(verbosity=0, interactive=False, aliases={"default"})
        _relax_commits()
    yield
    with django_db_blocker.unblock():
        end_other_sessions()
        teardown_databases(configured, verbosity=0)


def _relax_commits() -> None:
    """No test kills the database itself, so PostgreSQL's commits need not wait for the disk."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            name = connection.ops.quote_name(connection.settings_dict["NAME"])
            cursor.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
        connection.close()


def end_other_sessions() -> None:
    """A hint listener that was stopped while it connected may leave its session behind for a while."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )


@pytest.fixture
def database(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Real commits, other threads included; every row is removed afterwards."""
    with django_db_blocker.unblock():
        clean_database()
        yield
        connection.close_if_unusable_or_obsolete()


def clean_database() -> None:
    """Empty the engine's tables and leave what `migrate` leaves: the default namespace."""
    from durable.models import Namespace
    from wire.auth import forget_cached_access

    models = [model for app in APPS for model in apps.get_app_config(app).get_models()]
    # Attempts refer to tasks, so they go first.
    models.sort(key=lambda model: any(field.remote_field for field in model._meta.fields), reverse=True)
    with transaction.atomic(), connection.cursor() as cursor:
        for model in models:
            cursor.execute(f"DELETE FROM {model._meta.db_table}")
        Namespace.objects.create(name="default")
    forget_cached_access()


@pytest.fixture
def override_durable() -> Iterator[Any]:
    """`override_durable(ACTIVITY_LEASE_SECONDS=1)`: engine settings for one test."""
    from django.test import override_settings

    active: list[Any] = []

    def override(**values: Any) -> None:
        change = override_settings(DURABLE={**settings.DURABLE, **values})
        change.enable()
        active.append(change)

    yield override
    for change in reversed(active):
        change.disable()


@pytest.fixture
def clock(database: None, override_durable: Any) -> Iterator[EngineClock]:
    """The engine's clock stands still until the test turns it forward; no worker goes stale over it."""
    override_durable(WORKER_STALE_AFTER_SECONDS=10**8)
    with engine_clock_in_hand() as hand:
        yield hand


@pytest.fixture
def api(database: None) -> Iterator[ApiClient]:
    """The API in this process, with a development token: real routes, real pool, no network."""
    with ApiClient() as client:
        yield client


@pytest.fixture
def populated(api: ApiClient, override_durable: Any) -> Iterator[ApiClient]:
    """The API on a database without an empty table, where no background write of the process disturbs a comparison."""
    from tests import factories as make

    override_durable(COUNT_REFUSED_REPORTS=False, WORKER_SEEN_INTERVAL_SECONDS=3600)
    make.register("w-0", task_queue="elsewhere")
    make.start("bystander", task_queue="elsewhere")
    lease = make.lease_workflow("w-0", task_queue="elsewhere")
    make.checkpoint(lease, *make.schedule_list(2))
    make.complete(lease, make.schedule(), make.sleep(3600))
    make.fail_step(make.lease_activity("w-0", task_queue="elsewhere"), "one of two fails")
    make.lease_activity("w-0", task_queue="elsewhere")
    with filled_tables():
        yield api


@pytest.fixture
def server(database: None) -> Iterator[ServerProcess]:
    """`manage.py serve` as a process of its own on this test's database, with upkeep."""
    process = ServerProcess()
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def shared_server(
    request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any
) -> Iterator[ServerProcess]:
    """One server process for all tests of a module, in the environment its `SERVER_SETTINGS` names.

    It never outlives the module: its upkeep would work on the rows of other tests.
    """
    with django_db_blocker.unblock():
        clean_database()
    process = ServerProcess(**getattr(request.module, "SERVER_SETTINGS", {}))
    process.start()
    yield process
    process.stop()
