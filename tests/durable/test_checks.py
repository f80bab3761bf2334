"""Settings and databases under which the engine's promises would not hold are refused, and nothing else is."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.db import connection

from durable import checks

SQLITE = {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": {"transaction_mode": "IMMEDIATE"}}
POSTGRESQL = {"ENGINE": "django.db.backends.postgresql"}
MYSQL = {"ENGINE": "django.db.backends.mysql", "OPTIONS": {"isolation_level": "read committed"}}


def errors_of_settings(override_durable: Any, **values: Any) -> dict[str, str]:
    """Error ids and texts under other engine settings."""
    override_durable(**values)
    return {str(message.id): message.msg for message in run_checks(tags=["durable"])}


def errors_of_database(configured: dict[str, Any]) -> list[str]:
    """Error ids under another database configuration."""
    with mock.patch.dict(settings.DATABASES, {"default": configured}):
        return [str(message.id) for message in run_checks(tags=["durable"])]


def test_is_silent_about_the_settings_as_they_come() -> None:
    assert run_checks(tags=["durable"]) == []


# -- engine settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"LONG_POLL_SECONDS": 61}, ("durable.E001", ["61", "60"])),
        ({"LONG_POLL_MAX_SECONDS": 10}, ("durable.E001", ["30", "10"])),
        ({"ACTIVITY_LEASE_SECONDS": 0}, ("durable.E002", ["1", "86400"])),
        ({"ACTIVITY_LEASE_SECONDS": 86_401}, ("durable.E002", ["86400"])),
        ({"WORKFLOW_LEASE_SECONDS": 0}, ("durable.E002", ["1", "86400"])),
        ({"WORKFLOW_LEASE_SECONDS": 86_401}, ("durable.E002", ["86400"])),
        ({"WORKER_STALE_AFTER_SECONDS": 19}, ("durable.E003", ["19", "10"])),
        ({"LEASE_SECONDS": 5, "LONG_POL": 1}, ("durable.E004", ["LEASE_SECONDS", "LONG_POL"])),
        ({"DB_THREADS": "4"}, ("durable.E004", ["DB_THREADS", "int", "'4'"])),
        ({"COUNT_REFUSED_REPORTS": 1}, ("durable.E004", ["COUNT_REFUSED_REPORTS", "bool"])),
        ({"MAX_LOST_LEASES": True}, ("durable.E004", ["MAX_LOST_LEASES", "int"])),
        ({"PROBE_INTERVAL_SECONDS": 0}, ("durable.E005", ["PROBE_INTERVAL_SECONDS"])),
        ({"UPKEEP_INTERVAL_SECONDS": -1}, ("durable.E005", ["UPKEEP_INTERVAL_SECONDS"])),
        ({"DB_THREADS": 0}, ("durable.E005", ["DB_THREADS"])),
    ],
)
def test_refuses_settings_that_do_not_fit(
    override_durable: Any, values: dict[str, Any], expected: tuple[str, list[str]]
) -> None:
    error_id, words = expected

    errors = errors_of_settings(override_durable, **values)

    assert list(errors) == [error_id]
    assert [word for word in words if word not in errors[error_id]] == []


@pytest.mark.parametrize(
    "values",
    [
        {"LONG_POLL_SECONDS": 60, "LONG_POLL_MAX_SECONDS": 60},
        {"ACTIVITY_LEASE_SECONDS": 86_400, "WORKFLOW_LEASE_SECONDS": 1},
        {"WORKER_STALE_AFTER_SECONDS": 20},
        {"PROBE_INTERVAL_SECONDS": 1, "DB_THREADS": 1},
    ],
)
def test_takes_settings_at_the_edge(override_durable: Any, values: dict[str, Any]) -> None:
    assert errors_of_settings(override_durable, **values) == {}


# -- database settings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("configured", [SQLITE, POSTGRESQL, MYSQL], ids=["sqlite", "postgresql", "mysql"])
def test_is_silent_about_databases_as_they_should_be(configured: dict[str, Any]) -> None:
    assert errors_of_database(configured) == []


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        ({**POSTGRESQL, "CONN_MAX_AGE": 60}, "durable.E010"),
        # None means for ever.
        ({**POSTGRESQL, "CONN_MAX_AGE": None}, "durable.E010"),
        ({**POSTGRESQL, "ATOMIC_REQUESTS": True}, "durable.E011"),
        ({**SQLITE, "OPTIONS": {}}, "durable.E012"),
        ({**SQLITE, "OPTIONS": {"transaction_mode": "DEFERRED"}}, "durable.E012"),
        ({**SQLITE, "OPTIONS": {"transaction_mode": None}}, "durable.E012"),
        ({**MYSQL, "OPTIONS": {"isolation_level": "repeatable read"}}, "durable.E013"),
        ({**MYSQL, "OPTIONS": {"isolation_level": None}}, "durable.E013"),
    ],
)
def test_refuses_databases_that_break_a_promise(configured: dict[str, Any], expected: str) -> None:
    assert errors_of_database(configured) == [expected]


# -- what only the database can tell -----------------------------------------------------------------------------------


@pytest.fixture
def loose_column(database: None) -> Any:
    """A column in which `Id` and `id` are the same, in a table of its own."""
    kinds = {
        "sqlite": "TEXT COLLATE NOCASE",
        "mysql": "VARCHAR(128) COLLATE utf8mb4_general_ci",
        "postgresql": "VARCHAR(128) COLLATE durable_test_loose",
    }
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "CREATE COLLATION durable_test_loose"
                " (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
            )
        cursor.execute(f"CREATE TABLE durable_test_loose (id {kinds[connection.vendor]})")
        yield "durable_test_loose", "id"
        cursor.execute("DROP TABLE durable_test_loose")
        if connection.vendor == "postgresql":
            cursor.execute("DROP COLLATION durable_test_loose")


def database_errors() -> list[Any]:
    return [message for message in run_checks(tags=["database"], databases=["default"]) if "durable" in str(message.id)]


@pytest.mark.usefixtures("database")
def test_is_silent_about_columns_that_compare_ids_exactly() -> None:
    assert len(checks.exact_columns()) > 50
    assert database_errors() == []


def test_refuses_a_column_in_which_two_ids_are_the_same(loose_column: tuple[str, str]) -> None:
    with mock.patch.object(checks, "exact_columns", return_value=[("durable_task", "id"), loose_column]):
        (error,) = database_errors()

    assert (error.id, "durable_test_loose.id" in error.msg) == ("durable.E015", True)
    assert "durable_task" not in error.msg


@pytest.mark.usefixtures("database")
def test_is_silent_about_tables_that_are_not_there_yet() -> None:
    with mock.patch.object(checks, "exact_columns", return_value=[("durable_of_tomorrow", "id")]):
        assert database_errors() == []


def test_leaves_the_database_alone_when_it_is_not_asked_about() -> None:
    with mock.patch.object(checks, "_check_collations") as asked:
        run_checks(tags=["durable"])

    asked.assert_not_called()


@pytest.mark.parametrize(("version", "expected"), [((10, 5, 29), ["durable.E014"]), ((10, 6, 0), []), ((11, 4, 2), [])])
def test_refuses_a_mariadb_that_cannot_skip_locked_rows(version: tuple[int, ...], expected: list[str]) -> None:
    server = mock.Mock(vendor="mysql", mysql_is_mariadb=True, mysql_version=version)

    with mock.patch.object(checks, "connection", server):
        found = checks._check_version()

    assert [message.id for message in found] == expected
