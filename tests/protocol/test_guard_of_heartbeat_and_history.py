"""Heartbeat and history refuse in the guard's order, never with a receipt (worker-protocol.md 6.4; row N6 of 12.4)."""

from __future__ import annotations

from typing import Any

import pytest

from durable.history.times import stamp
from durable.models import Namespace, Run, Task
from tests import factories as make
from tests.client import ApiClient, Response
from tests.protocol.closings import CLOSINGS, close_row, closed_claim, leased_task, lose
from tests.protocol.reports import A_TIME, REPORTS, path, send
from tests.snapshot import nothing_recorded

ROUTES: dict[str, dict[str, Any]] = {"heartbeat": {}, "history": {"next_history_page_token": "MA=="}}
# Their guard is the same.
REPORTED: dict[str, dict[str, Any]] = dict(REPORTS.values())


def refused(api: ApiClient, lease: make.Lease, route: str, **fields: Any) -> Response:
    with nothing_recorded():
        return send(api, lease, route, **{**ROUTES[route], **fields})


@pytest.mark.parametrize("route", ROUTES)
def test_n6_task_not_found(populated: ApiClient, route: str) -> None:
    lease = make.Lease({**leased_task().body, "task_id": "01NOSUCHTASK"}, [])

    response = refused(populated, lease, route)

    assert response.status == 404
    assert response.plain == {
        "error": "There is no such task in this namespace.",
        "reason": "task_not_found",
        "task_id": "01NOSUCHTASK",
        "workflow_task_attempt": 1,
    }


@pytest.mark.parametrize("route", ROUTES)
def test_n6_task_not_found_for_an_activity_task(populated: ApiClient, route: str) -> None:
    make.complete(leased_task(), make.schedule())
    activity = Task.objects.filter(kind="activity", run_id=Run.objects.get(workflow_id="order-1").id).get()
    lease = make.Lease(
        {"task_kind": "workflow", "task_id": activity.id, "lease_owner": "w-1", "workflow_task_attempt": 1}, []
    )

    response = refused(populated, lease, route)

    assert (response.status, response.body["reason"]) == (404, "task_not_found")


@pytest.mark.parametrize("route", [*ROUTES, *REPORTED])
def test_finds_no_task_of_another_namespace(populated: ApiClient, route: str) -> None:
    Namespace.objects.create(name="elsewhere")
    lease = leased_task()
    content = {**ROUTES, **REPORTED}[route]
    fields = {"lease_owner": "w-1", "workflow_task_attempt": 1, **content}

    with nothing_recorded():
        response = populated.post(path(lease, route), fields, headers={"X-Namespace": "elsewhere"})

    assert (response.status, response.body["reason"]) == (404, "task_not_found")


@pytest.mark.parametrize("route", ROUTES)
def test_n6_task_not_leased(populated: ApiClient, route: str) -> None:
    lease = leased_task()
    make.report_waiting(lease)

    response = refused(populated, lease, route)

    assert response.status == 409
    assert response.plain == {
        "error": "Workflow task is not currently leased.",
        "reason": "task_not_leased",
        "task_status": "completed",
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
    }


@pytest.mark.parametrize("route", ROUTES)
def test_n6_lease_expired(populated: ApiClient, route: str) -> None:
    lease = leased_task()
    make.expire_lease(lease.task_id)

    response = refused(populated, lease, route)

    assert response.status == 409
    assert response.plain == {
        "error": "Workflow task lease has expired.",
        "reason": "lease_expired",
        "task_status": "leased",
        "lease_owner": "w-1",
        "lease_expires_at": A_TIME,
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
    }


@pytest.mark.parametrize("route", ROUTES)
def test_n6_lease_owner_mismatch(populated: ApiClient, route: str) -> None:
    lease = leased_task()

    response = refused(populated, lease, route, lease_owner="w-2")

    assert response.status == 409
    assert response.plain == {
        "error": "Workflow task is leased by another worker.",
        "reason": "lease_owner_mismatch",
        "lease_owner": "w-1",
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
    }


@pytest.mark.parametrize("route", ROUTES)
def test_n6_workflow_task_attempt_mismatch(populated: ApiClient, route: str) -> None:
    lease = leased_task()

    response = refused(populated, lease, route, workflow_task_attempt="3")

    assert response.status == 409
    assert response.plain == {
        "error": "Workflow task is leased under another attempt.",
        "reason": "workflow_task_attempt_mismatch",
        "current_attempt": 1,
        "task_id": lease.task_id,
        "workflow_task_attempt": 3,
    }


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("how", CLOSINGS)
def test_n6_run_closed(populated: ApiClient, how: str, route: str) -> None:
    lease = closed_claim(populated, how)

    response = refused(populated, lease, route)

    assert response.status == 409
    assert response.plain == {
        "error": "Workflow run is already closed.",
        "reason": "run_closed",
        "can_continue": False,
        "run_closed_at": A_TIME,
        "lease_owner": None,
        "lease_expires_at": None,
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
        **CLOSINGS[how],
    }


@pytest.mark.parametrize("route", ROUTES)
def test_n6_run_closed_while_the_task_stays_leased(populated: ApiClient, route: str) -> None:
    lease = leased_task()
    close_row(lease, "terminated")

    response = refused(populated, lease, route)

    assert response.body["reason"] == "run_closed"
    assert not {"recorded", "run_id"} & response.body.keys()


# -- which of several reasons answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("route", [*ROUTES, *REPORTED])
def test_says_expired_before_it_says_whose(populated: ApiClient, route: str) -> None:
    lease = leased_task()
    make.expire_lease(lease.task_id)

    response = guarded(populated, lease, route, lease_owner="w-2", workflow_task_attempt=9)

    assert response.body["reason"] == "lease_expired"


@pytest.mark.parametrize("route", [*ROUTES, *REPORTED])
def test_says_whose_before_it_says_which_attempt(populated: ApiClient, route: str) -> None:
    response = guarded(populated, leased_task(), route, lease_owner="w-2", workflow_task_attempt=9)

    assert response.body["reason"] == "lease_owner_mismatch"


@pytest.mark.parametrize("route", [*ROUTES, *REPORTED])
def test_says_closed_before_it_says_which_attempt_of_a_finished_task(populated: ApiClient, route: str) -> None:
    lease = closed_claim(populated, "cancelled")

    response = guarded(populated, lease, route, lease_owner="w-2", workflow_task_attempt=9)

    assert response.body["reason"] == "run_closed"


@pytest.mark.parametrize("route", [*ROUTES, *REPORTED])
def test_says_which_attempt_before_it_says_closed_of_a_leased_task(populated: ApiClient, route: str) -> None:
    lease = leased_task()
    close_row(lease, "cancelled")

    response = guarded(populated, lease, route, workflow_task_attempt=9)

    assert response.body["reason"] == "workflow_task_attempt_mismatch"


@pytest.mark.parametrize("route", [*ROUTES, *REPORTED])
def test_fences_an_earlier_epoch_of_the_same_owner(populated: ApiClient, route: str) -> None:
    lease = leased_task()
    lose(lease)
    make.lease_workflow("w-1")

    response = guarded(populated, lease, route)

    assert response.body["reason"] == "workflow_task_attempt_mismatch"
    assert response.body["current_attempt"] == 2


def guarded(api: ApiClient, lease: make.Lease, route: str, **fields: Any) -> Response:
    content = {**ROUTES, **REPORTED}[route]
    with nothing_recorded():
        return send(api, lease, route, **{**content, **fields})


# -- what a heartbeat does ---------------------------------------------------------------------------------------------


def test_heartbeat_extends_the_lease_and_echoes_the_claim(api: ApiClient, override_durable: Any) -> None:
    lease = leased_task()
    override_durable(WORKFLOW_LEASE_SECONDS=120)

    response = send(api, lease, "heartbeat")

    task = make.task_of(lease)
    assert response.status == 200
    assert response.plain == {
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
        "lease_owner": "w-1",
        "renewed": True,
        "lease_expires_at": stamp(task.lease_expires_at),
        "run_status": "pending",
        "task_status": "leased",
        "reason": None,
    }
    assert response.body["lease_expires_at"] > lease.body["lease_expires_at"]


def test_heartbeat_never_shortens_a_lease(api: ApiClient, override_durable: Any) -> None:
    lease = leased_task()
    override_durable(WORKFLOW_LEASE_SECONDS=1)

    response = send(api, lease, "heartbeat")

    assert response.body["lease_expires_at"] == lease.body["lease_expires_at"]


def test_heartbeat_changes_only_the_lease(api: ApiClient) -> None:
    lease = leased_task()
    before = Task.objects.filter(id=lease.task_id).values().get()

    send(api, lease, "heartbeat")

    after = Task.objects.filter(id=lease.task_id).values().get()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"lease_expires_at", "renewal_count"}
