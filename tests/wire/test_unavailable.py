"""A lost or crowded database, in the exact shapes that clients retry on (docs/protocol/worker-protocol.md 5.6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from django.db import DatabaseError, InterfaceError, OperationalError

from durable.sql import pool
from durable.sql.pool import PoolBusyError
from tests import factories as make
from tests.client import ApiClient, Response
from tests.protocol.closings import leased_task
from tests.protocol.reports import poll, register, send
from tests.snapshot import nothing_recorded

SECRET = "SELECT payload FROM durable_run; host=db.internal password=hunter2"


def transient(code: str | int) -> OperationalError:
    """What Django raises around a driver's error that says: the same transaction may well succeed a moment later."""
    if isinstance(code, str):
        cause: Exception = type("DriverError", (Exception,), {"sqlstate": code})(SECRET)
    else:
        cause = Exception(code, SECRET)
    error = OperationalError(code, SECRET)
    error.__cause__ = cause
    return error


LOCK_PRESSURE: dict[str, Callable[[], Exception]] = {
    "no free thread": PoolBusyError,
    "deadlock": lambda: transient("40P01"),
    "serialization failure": lambda: transient("40001"),
    "lock time-out": lambda: transient("55P03"),
    "MariaDB deadlock": lambda: transient(1213),
    "MariaDB lock wait": lambda: transient(1205),
}
LOST: dict[str, Callable[[], Exception]] = {
    "server gone": lambda: OperationalError(2006, SECRET),
    "connection refused": lambda: OperationalError(SECRET),
    "closed cursor": lambda: InterfaceError(SECRET),
}
TRANSIENT = {**LOCK_PRESSURE, **LOST}
FAULTS: dict[str, Callable[[], Exception]] = {
    "another database error": lambda: DatabaseError(SECRET),
    "a bug": lambda: RuntimeError(SECRET),
}


@contextmanager
def failing(error: Callable[[], Exception]) -> Iterator[None]:
    """Every operation of the pool fails like this."""

    def fail(*_: Any) -> None:
        raise error()

    with mock.patch.object(pool, "_run_kept", fail):
        yield


def answered(api: ApiClient, error: Callable[[], Exception], send_: Callable[[], Response]) -> Response:
    # The token is cached, so that the failure meets the route's own work.
    assert api.get("/api/cluster/info").status == 200
    with nothing_recorded(), failing(error):
        response = send_()
    assert b"hunter2" not in response.raw
    assert b"SELECT" not in response.raw
    return response


def retried(reason: str, **more: Any) -> dict[str, Any]:
    text = {
        "backend_lock_pressure": "The database is busy; nothing was changed.",
        "backend_unavailable": "The database cannot be reached; the outcome is unknown.",
    }
    return {"reason": reason, "message": text[reason], "retryable": True, "retry_after_seconds": 1, **more}


# -- polls -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", LOCK_PRESSURE)
@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_tells_a_poll_of_lock_pressure(api: ApiClient, kind: str, error: str) -> None:
    response = answered(api, LOCK_PRESSURE[error], lambda: poll(api, kind, poll_request_id="p-1"))

    assert response.status == 503
    assert response.headers["retry-after"] == "1"
    assert response.plain == retried(
        "backend_lock_pressure",
        task=None,
        poll_status="backend_lock_pressure",
        task_kind=f"{kind}_task",
        task_queue=make.QUEUE,
        namespace="default",
        request_admitted=False,
    )


@pytest.mark.parametrize("error", LOST)
@pytest.mark.parametrize("kind", ["workflow", "activity"])
@pytest.mark.parametrize("poll_id", ["p-1", None])
def test_tells_a_poll_that_the_database_is_lost(api: ApiClient, kind: str, error: str, poll_id: str | None) -> None:
    response = answered(api, LOST[error], lambda: poll(api, kind, poll_request_id=poll_id))

    assert response.status == 503
    assert response.headers["retry-after"] == "1"
    assert response.plain == retried(
        "backend_unavailable",
        operation=f"poll_{kind}_task",
        outcome="unknown",
        worker_id="w-1",
        task_queue=make.QUEUE,
        namespace="default",
        task=None,
        poll_status="backend_unavailable",
        poll_request_id=poll_id,
        retry_same_poll_request_id=True,
    )


# -- workers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", LOST)
def test_tells_a_registration_that_the_database_is_lost(api: ApiClient, error: str) -> None:
    response = answered(api, LOST[error], lambda: register(api))

    assert (response.status, response.headers["retry-after"]) == (503, "1")
    assert response.plain == retried(
        "backend_unavailable",
        operation="register_worker",
        outcome="unknown",
        worker_id="w-1",
        task_queue=make.QUEUE,
    )


@pytest.mark.parametrize("error", LOST)
def test_tells_a_worker_heartbeat_that_the_database_is_lost(api: ApiClient, error: str) -> None:
    response = answered(api, LOST[error], lambda: api.post("/api/worker/heartbeat", {"worker_id": "w-1"}))

    assert (response.status, response.headers["retry-after"]) == (503, "1")
    assert response.plain == retried(
        "backend_unavailable",
        operation="heartbeat_worker",
        outcome="unknown",
        worker_id="w-1",
        task_queue=None,
    )


@pytest.mark.parametrize("error", [*LOCK_PRESSURE, *LOST])
def test_tells_a_fenced_deregistration_to_try_again(api: ApiClient, error: str) -> None:
    token = "0123456789abcdef" * 2
    reason = "backend_lock_pressure" if error in LOCK_PRESSURE else "backend_unavailable"

    response = answered(
        api,
        TRANSIENT[error],
        lambda: api.post("/api/worker/registrations/w-1/deregister", {"registration_token": token}),
    )

    assert (response.status, response.headers["retry-after"]) == (503, "1")
    assert response.plain == retried(
        reason,
        operation="deregister_worker",
        outcome="unknown",
        worker_id="w-1",
        registration_token=token,
    )


# -- reports -----------------------------------------------------------------------------------------------------------

CHECKPOINT = {"checkpoint_id": "c-1", "start_sequence": 1, "commands": [make.schedule()]}
WORKFLOW_REPORTS: dict[str, tuple[str, dict[str, Any]]] = {
    "complete": ("complete_workflow_task", {"commands": [make.finish()]}),
    "cancellation-scopes/checkpoint": ("checkpoint_workflow_task", CHECKPOINT),
    "fail": ("fail_workflow_task", {"failure": {"message": "boom"}}),
    "heartbeat": ("heartbeat_workflow_task", {}),
}
ACTIVITY_REPORTS: dict[str, tuple[str, dict[str, Any]]] = {
    "complete": ("complete_activity_task", {"result": make.envelope(1)}),
    "fail": ("fail_activity_task", {"failure": {"message": "boom"}}),
}


@pytest.mark.parametrize("error", LOST)
@pytest.mark.parametrize("verb", WORKFLOW_REPORTS)
def test_tells_a_workflow_task_report_that_the_database_is_lost(api: ApiClient, verb: str, error: str) -> None:
    operation, content = WORKFLOW_REPORTS[verb]
    lease = leased_task()

    response = answered(api, LOST[error], lambda: send(api, lease, verb, **content))

    assert (response.status, response.headers["retry-after"]) == (503, "1")
    assert response.plain == retried(
        "backend_unavailable",
        operation=operation,
        outcome="unknown",
        task_id=lease.task_id,
        lease_owner="w-1",
        workflow_task_attempt=1,
        worker_id="w-1",
        **({"task_queue": None} if verb == "heartbeat" else {}),
    )


@pytest.mark.parametrize("error", LOST)
@pytest.mark.parametrize("verb", ACTIVITY_REPORTS)
def test_tells_an_activity_report_that_the_database_is_lost(api: ApiClient, verb: str, error: str) -> None:
    operation, content = ACTIVITY_REPORTS[verb]
    make.complete(leased_task(), make.schedule())
    lease = make.lease_activity()

    response = answered(api, LOST[error], lambda: send(api, lease, verb, **content))

    assert (response.status, response.headers["retry-after"]) == (503, "1")
    assert response.plain == retried(
        "backend_unavailable",
        operation=operation,
        outcome="unknown",
        task_id=lease.task_id,
        activity_attempt_id=lease.body["activity_attempt_id"],
        lease_owner="w-1",
        worker_id="w-1",
    )


def test_claims_nothing_recorded_when_it_cannot_know(api: ApiClient) -> None:
    lease = leased_task()

    response = answered(api, LOST["server gone"], lambda: send(api, lease, "complete", commands=[make.finish()]))

    assert "recorded" not in response.body


# -- everything else ---------------------------------------------------------------------------------------------------

EVERY_ROUTE: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/api/worker/workflow-tasks/01TASK/complete", {"commands": [make.finish()]}),
    ("POST", "/api/worker/workflow-tasks/01TASK/cancellation-scopes/checkpoint", CHECKPOINT),
    ("POST", "/api/worker/workflow-tasks/01TASK/fail", {"failure": {"message": "boom"}}),
    ("POST", "/api/worker/workflow-tasks/01TASK/heartbeat", {}),
    ("POST", "/api/worker/workflow-tasks/01TASK/history", {"next_history_page_token": "MA=="}),
    ("POST", "/api/worker/activity-tasks/01TASK/complete", {}),
    ("POST", "/api/worker/activity-tasks/01TASK/fail", {"failure": {"message": "boom"}}),
    ("POST", "/api/worker/activity-tasks/01TASK/heartbeat", {}),
    ("POST", "/api/worker/activity-tasks/01TASK/renew-lease", {}),
    ("POST", "/api/worker/activity-tasks/01TASK/status", {}),
    ("DELETE", "/api/worker/registrations/w-1", None),
    ("GET", "/api/workflows", None),
    ("POST", "/api/workflows", {"workflow_type": "five"}),
    ("GET", "/api/workflows/order-1", None),
    ("GET", "/api/workflows/order-1/runs", None),
    ("GET", "/api/workflows/order-1/runs/01RUN", None),
    ("GET", "/api/workflows/order-1/runs/01RUN/history", None),
    ("POST", "/api/workflows/order-1/cancel", {}),
    ("POST", "/api/workflows/order-1/terminate", {}),
    ("POST", "/api/workflows/order-1/repair", {}),
]
FENCES = {"lease_owner": "w-1", "workflow_task_attempt": 1, "activity_attempt_id": "01ATTEMPT"}


@pytest.mark.parametrize("error", [*TRANSIENT, *FAULTS])
def test_shows_no_database_text_on_any_route(api: ApiClient, error: str) -> None:
    lock, lost = (503, "backend_lock_pressure"), (503, "backend_unavailable")
    expected = lock if error in LOCK_PRESSURE else lost if error in LOST else (500, "server_error")
    assert api.get("/api/cluster/info").status == 200
    with failing({**TRANSIENT, **FAULTS}[error]):
        for method, path, body in EVERY_ROUTE:
            content = {**FENCES, **body} if body is not None and path.startswith("/api/worker/") else body
            response = api.request(method, path, content)

            assert (response.status, response.body["reason"]) == expected, path
            assert isinstance(response.body["message"], str)
            assert b"hunter2" not in response.raw
            assert b"SELECT" not in response.raw


@pytest.mark.parametrize("error", TRANSIENT)
def test_shows_no_database_text_where_the_token_is_looked_up(api: ApiClient, error: str) -> None:
    with failing(TRANSIENT[error]):
        response = api.get("/api/workflows", token="dw_000000000000_x")

    assert response.status == 503
    assert b"hunter2" not in response.raw


@pytest.mark.parametrize("error", TRANSIENT)
@pytest.mark.parametrize(("path", "word"), [("/api/health", "degraded"), ("/api/ready", "not_ready")])
def test_says_so_on_health_and_readiness(api: ApiClient, error: str, path: str, word: str) -> None:
    with failing(TRANSIENT[error]):
        response = api.get(path, token=None)

    assert response.status == 503
    assert (response.body["status"], response.body["checks"]) == (word, {"database": "unavailable"})


def test_recovers_as_soon_as_the_database_is_back(api: ApiClient) -> None:
    lease = leased_task()
    with failing(LOST["server gone"]):
        assert send(api, lease, "complete", commands=[make.finish()]).status == 503

    response = send(api, lease, "complete", commands=[make.finish()])

    assert (response.status, response.body["recorded"]) == (200, True)
