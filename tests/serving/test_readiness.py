"""`/api/ready` says no while leases are long overdue or migrations are missing (control-plane.md 5.2; field case 7)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from control_api import readiness
from durable.models import Namespace, Task, UpkeepPass
from durable.operations.recover_lease import recover_lease
from tests import factories as make
from tests.client import ApiClient, Response


def ready(api: ApiClient) -> Response:
    return api.get("/api/ready", token=None)


def lease_that_ran_out(seconds: float) -> str:
    """A workflow task whose lease ended that long ago; its id."""
    make.register()
    make.start()
    task_id = make.lease_workflow().task_id
    Task.objects.filter(id=task_id).update(lease_expires_at=timezone.now() - timedelta(seconds=seconds))
    return task_id


def test_is_ready_with_nothing_to_complain_of(api: ApiClient) -> None:
    answer = ready(api)

    assert (answer.status, answer.body["status"]) == (200, "ready")
    assert {name: answer.body["checks"][name] for name in ("database", "migrations", "upkeep", "namespaces")} == {
        "database": "ok", "migrations": "ok", "upkeep": "ok", "namespaces": "ok",
    }  # fmt: skip


def test_is_not_ready_while_a_lease_is_long_overdue(api: ApiClient) -> None:
    lease_that_ran_out(100)

    answer = ready(api)

    assert (answer.status, answer.body["status"], answer.body["checks"]["upkeep"]) == (503, "not_ready", "late")
    assert 100 <= answer.body["checks"]["oldest_expired_lease_seconds"] < 130


def test_is_ready_again_once_the_lease_is_recovered(api: ApiClient) -> None:
    task_id = lease_that_ran_out(100)
    assert ready(api).status == 503

    recover_lease(task_id)

    assert ready(api).status == 200


def test_stays_ready_while_a_lease_has_only_just_run_out(api: ApiClient) -> None:
    lease_that_ran_out(2)

    answer = ready(api)

    assert answer.status == 200
    assert answer.body["checks"]["oldest_expired_lease_seconds"] >= 2


@pytest.mark.parametrize(("seconds", "expected"), [(5, 200), (100, 503)])
def test_is_not_ready_when_no_sweep_succeeded_for_long(api: ApiClient, seconds: int, expected: int) -> None:
    now = timezone.now()
    succeeded = now - timedelta(seconds=seconds)
    UpkeepPass.objects.create(duty="recover_leases", last_run_at=now, last_success_at=succeeded)

    answer = ready(api)

    assert answer.status == expected
    assert seconds <= answer.body["checks"]["sweep_last_success_age_seconds"] < seconds + 30


def test_is_not_ready_without_a_namespace(api: ApiClient) -> None:
    Namespace.objects.all().delete()

    answer = ready(api)

    assert (answer.status, answer.body["checks"]["namespaces"]) == (503, "none")


# -- migrations --------------------------------------------------------------------------------------------------------


@pytest.fixture
def pending_migration(database: None) -> Iterator[MigrationRecorder]:
    """One migration of the engine is not recorded as applied, and the process has not asked before."""
    recorder = MigrationRecorder(connection)
    remembered = list(readiness._migrated)
    readiness._migrated.clear()
    recorder.record_unapplied("durable", "0001_initial")
    yield recorder
    recorder.record_unapplied("durable", "0001_initial")
    recorder.record_applied("durable", "0001_initial")
    readiness._migrated[:] = remembered


def test_is_not_ready_while_a_migration_is_missing(pending_migration: MigrationRecorder, api: ApiClient) -> None:
    answer = ready(api)

    assert (answer.status, answer.body["checks"]) == (503, {"database": "ok", "migrations": "pending"})


def test_is_ready_once_the_migration_was_applied(pending_migration: MigrationRecorder, api: ApiClient) -> None:
    assert ready(api).status == 503

    pending_migration.record_applied("durable", "0001_initial")

    assert (ready(api).status, ready(api).body["checks"]["migrations"]) == (200, "ok")


def test_asks_about_migrations_no_more_once_they_are_there(statements: Any, api: ApiClient) -> None:
    ready(api)

    with statements.during() as cost:
        ready(api)

    assert not [statement for statement in cost.statements if "django_migrations" in statement.sql]
    cost.within(5)
