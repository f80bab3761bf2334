"""Heartbeat, renewal and status of an activity attempt (docs/protocol/worker-protocol.md 8.4 to 8.6)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from durable.history.times import stamp
from durable.models import ActivityAttempt, ActivityExecution, HistoryEvent, Run, Task
from tests import factories as make
from tests.client import ApiClient
from tests.protocol.closings import close_row, leased_task, lose
from tests.protocol.reports import A_TIME, fence, path, send
from tests.snapshot import nothing_recorded


def leased_activity(workflow_id: str = "order-1", **command: Any) -> make.Lease:
    make.complete(leased_task(workflow_id), make.schedule(**command))
    return make.lease_activity("w-1")


def attempt_of(lease: make.Lease) -> ActivityAttempt:
    return ActivityAttempt.objects.get(id=lease.body["activity_attempt_id"])


def changed_columns(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


# -- heartbeat ---------------------------------------------------------------------------------------------------------


def test_heartbeat_extends_lease_and_deadline(api: ApiClient, override_durable: Any) -> None:
    lease = leased_activity(heartbeat_timeout=20)
    override_durable(ACTIVITY_LEASE_SECONDS=600)

    response = send(api, lease, "heartbeat")

    task = Task.objects.get(id=lease.task_id)
    beat = attempt_of(lease).last_heartbeat_at
    assert response.status == 200
    assert response.plain == {
        "task_id": lease.task_id,
        "activity_attempt_id": lease.body["activity_attempt_id"],
        "lease_owner": "w-1",
        "can_continue": True,
        "cancel_requested": False,
        "reason": None,
        "heartbeat_recorded": True,
        "lease_expires_at": stamp(task.lease_expires_at),
        "last_heartbeat_at": stamp(beat),
        "run_closed_reason": None,
        "run_closed_at": None,
    }
    assert task.lease_expires_at - beat == timedelta(seconds=600)
    assert task.heartbeat_at - beat == timedelta(seconds=20)
    assert task.deadline_at == task.heartbeat_at


def test_heartbeat_changes_only_the_lease_and_the_progress(api: ApiClient) -> None:
    """A heartbeat that put its task back into the queue is a bug that other engines had."""
    lease = leased_activity(heartbeat_timeout=20, start_to_close_timeout=100)
    tables = (Run, Task, ActivityAttempt, ActivityExecution, HistoryEvent)
    before = [list(table.objects.order_by("pk").values()) for table in tables]

    send(api, lease, "heartbeat", details={"row": 7})

    after = [list(table.objects.order_by("pk").values()) for table in tables]
    moved = {
        table.__name__: changed_columns(old, new)
        for table, olds, news in zip(tables, before, after, strict=True)
        for old, new in zip(olds, news, strict=True)
        if old != new
    }
    assert moved == {
        "Task": {"lease_expires_at", "renewal_count", "heartbeat_at", "deadline_at"},
        "ActivityAttempt": {"lease_expires_at", "last_heartbeat_at", "progress"},
    }


def test_heartbeat_keeps_progress_for_the_outcome(api: ApiClient) -> None:
    lease = leased_activity()
    progress = {"details": [1, "two"], "message": "half way", "current": 5.0, "total": 10.0, "unit": "rows"}

    send(api, lease, "heartbeat", details={"row": 1})
    send(api, lease, "heartbeat", **progress)
    assert send(api, lease, "heartbeat").status == 200
    assert attempt_of(lease).progress == progress

    send(api, lease, "complete", result=make.envelope(1))
    events = [event for event in HistoryEvent.objects.order_by("sequence") if event.sequence > 3]
    assert [event.event_type for event in events] == [
        "ActivityStarted", "ActivityHeartbeatRecorded", "ActivityCompleted",
    ]  # fmt: skip
    assert events[1].payload["progress"] == progress
    assert events[1].payload["heartbeat_at"] == A_TIME


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("details", value) for value in ("x", 7, True, list(range(21)), {str(number): 1 for number in range(21)})],
        *[("message", value) for value in (7, [], "x" * 281)],
        *[
            (field, value)
            for field in ("current", "total")
            for value in ("x", [], {}, "nan", "NaN", "inf", "-Infinity")
        ],
        *[("unit", value) for value in (7, [], "x" * 65)],
    ],
)
def test_heartbeat_refuses_progress_of_the_wrong_form(api: ApiClient, field: str, value: Any) -> None:
    lease = leased_activity()

    with nothing_recorded():
        response = send(api, lease, "heartbeat", **{field: value})

    assert (response.status, list(response.body["errors"])) == (422, [field])


@pytest.mark.parametrize("digits", ["1" + "0" * 400, "9" * 4000])
def test_heartbeat_has_no_fault_with_a_number_beyond_all_measure(api: ApiClient, digits: str) -> None:
    lease = leased_activity()
    body = str(fence(lease)).replace("'", '"')[:-1] + f', "current": {digits}}}'

    response = api.post(path(lease, "heartbeat"), raw=body.encode())

    assert response.status in (400, 422)


@pytest.mark.parametrize("seconds", [1, 300])
def test_heartbeat_never_shortens_a_lease(api: ApiClient, override_durable: Any, seconds: int) -> None:
    lease = leased_activity()
    override_durable(ACTIVITY_LEASE_SECONDS=seconds)

    assert send(api, lease, "heartbeat").body["lease_expires_at"] >= lease.body["lease_expires_at"]


# -- what makes an attempt stop ----------------------------------------------------------------------------------------


def set_deadline(lease: make.Lease, column: str) -> None:
    past = Task.objects.get(id=lease.task_id).leased_at - timedelta(seconds=1)
    Task.objects.filter(id=lease.task_id).update(**{column: past})


STOPS: dict[str, Any] = {
    "run_cancelled": lambda api, lease: api.post("/api/workflows/order-1/cancel"),
    "run_terminated": lambda api, lease: api.post("/api/workflows/order-1/terminate"),
    "attempt_closed": lambda api, lease: lose(lease),
    "activity_cancelled": lambda api, lease: ActivityExecution.objects.update(status="cancelled"),
    "run_closed": lambda api, lease: close_row(lease, "completed"),
    "activity_not_running": lambda api, lease: ActivityExecution.objects.update(status="failed"),
    "stale_attempt": lambda api, lease: Task.objects.filter(id=lease.task_id).update(attempt_count=2),
    "stale_task": lambda api, lease: ActivityExecution.objects.update(task_id="01ANOTHER"),
    "task_not_leased": lambda api, lease: Task.objects.filter(id=lease.task_id).update(
        status="ready", lease_owner=None, leased_at=None, lease_expires_at=None
    ),
    "lease_expired": lambda api, lease: make.expire_lease(lease.task_id),
    "heartbeat_timeout": lambda api, lease: set_deadline(lease, "heartbeat_at"),
    "start_to_close_timeout": lambda api, lease: set_deadline(lease, "start_to_close_at"),
    "schedule_to_close_timeout": lambda api, lease: set_deadline(lease, "schedule_to_close_at"),
}
CANCELS = {"run_cancelled", "run_terminated", "activity_cancelled"}


@pytest.mark.parametrize("route", ["heartbeat", "status"])
@pytest.mark.parametrize("reason", STOPS)
def test_tells_an_attempt_to_stop_without_an_error(api: ApiClient, reason: str, route: str) -> None:
    lease = leased_activity()
    STOPS[reason](api, lease)

    with nothing_recorded():
        response = send(api, lease, route)

    run = Run.objects.get()
    assert response.status == 200
    expected = {
        "task_id": lease.task_id,
        "activity_attempt_id": lease.body["activity_attempt_id"],
        "lease_owner": "w-1",
        "can_continue": False,
        "cancel_requested": reason in CANCELS,
        "reason": reason,
        "heartbeat_recorded": False,
        "last_heartbeat_at": None,
        "run_closed_reason": run.closed_reason,
        "run_closed_at": stamp(run.closed_at),
    }
    assert expected.items() <= response.plain.items()


@pytest.mark.parametrize("route", ["heartbeat", "status"])
@pytest.mark.parametrize(
    ("reason", "fields", "status"),
    [
        ("task_not_found", {"task_id": "01UNKNOWN"}, 404),
        ("attempt_not_found", {"activity_attempt_id": "01UNKNOWN"}, 404),
        ("task_mismatch", {"activity_attempt_id": "other"}, 409),
        ("lease_owner_mismatch", {"lease_owner": "w-2"}, 409),
    ],
)
def test_refuses_who_does_not_hold_the_attempt(
    populated: ApiClient, route: str, reason: str, fields: dict[str, str], status: int
) -> None:
    lease, other = leased_activity("order-1"), leased_activity("order-2")
    named = {name: other.body["activity_attempt_id"] if text == "other" else text for name, text in fields.items()}
    asked = make.Lease({**lease.body, "task_id": named.pop("task_id", lease.task_id)}, [])

    with nothing_recorded():
        response = send(populated, asked, route, **named)

    assert (response.status, response.body["reason"]) == (status, reason)
    assert response.body.get("lease_owner") == ("w-1" if reason == "lease_owner_mismatch" else None)


def test_names_the_owner_of_a_lost_lease_and_refuses_its_result_alike(api: ApiClient) -> None:
    """A worker that lost its lease hears so from its heartbeat, and its result is refused for the same reason."""
    lease = leased_activity()
    lose(lease)
    make.lease_activity("w-2")

    beat = send(api, lease, "heartbeat").body
    late = send(api, lease, "complete", result=make.envelope(1))

    assert (beat["can_continue"], beat["reason"]) == (False, "attempt_closed")
    assert (late.status, late.body["reason"], late.body["recorded"]) == (409, "stale_attempt", False)


# -- renewal -----------------------------------------------------------------------------------------------------------


def test_renews_the_lease_and_nothing_else(api: ApiClient, override_durable: Any) -> None:
    lease = leased_activity(heartbeat_timeout=20, start_to_close_timeout=100)
    override_durable(ACTIVITY_LEASE_SECONDS=600)
    task_before = Task.objects.filter(id=lease.task_id).values().get()
    attempt_before = ActivityAttempt.objects.values().get()
    events_before = HistoryEvent.objects.count()

    response = send(api, lease, "renew-lease")

    task = Task.objects.get(id=lease.task_id)
    assert response.status == 200
    assert response.plain == {
        "task_id": lease.task_id,
        "workflow_task_id": lease.task_id,
        "workflow_instance_id": "order-1",
        "workflow_run_id": lease.body["run_id"],
        "activity_execution_id": lease.body["activity_execution_id"],
        "activity_attempt_id": lease.body["activity_attempt_id"],
        "attempt_number": 1,
        "lease_owner": "w-1",
        "lease_renewed": True,
        "can_continue": True,
        "cancel_requested": False,
        "heartbeat_recorded": False,
        "reason": None,
        "server_time": A_TIME,
        "lease_expires_at": stamp(task.lease_expires_at),
        "last_heartbeat_at": None,
        "heartbeat_deadline_at": stamp(task.heartbeat_at),
    }
    changed = changed_columns(task_before, Task.objects.filter(id=lease.task_id).values().get())
    assert changed == {"lease_expires_at", "renewal_count"}
    assert changed_columns(attempt_before, ActivityAttempt.objects.values().get()) == {"lease_expires_at"}
    assert HistoryEvent.objects.count() == events_before


def test_moves_both_times_forward_with_every_renewal(api: ApiClient) -> None:
    lease = leased_activity()

    answers = [send(api, lease, "renew-lease").body for _ in range(5)]

    times = [answer["server_time"] for answer in answers]
    assert times == sorted(set(times))
    expiries = [lease.body["lease_expires_at"], *(answer["lease_expires_at"] for answer in answers)]
    assert expiries == sorted(expiries)
    for answer in answers:
        left = datetime.fromisoformat(answer["lease_expires_at"]) - datetime.fromisoformat(answer["server_time"])
        assert timedelta(0) < left <= timedelta(seconds=86_400)


@pytest.mark.parametrize("seconds", [1, 300])
def test_renewal_never_shortens_a_lease(api: ApiClient, override_durable: Any, seconds: int) -> None:
    lease = leased_activity()
    override_durable(ACTIVITY_LEASE_SECONDS=seconds)

    assert send(api, lease, "renew-lease").body["lease_expires_at"] >= lease.body["lease_expires_at"]


@pytest.mark.parametrize("reason", ["heartbeat_timeout", "start_to_close_timeout", "schedule_to_close_timeout"])
def test_renews_no_lease_past_a_deadline(populated: ApiClient, reason: str) -> None:
    lease = leased_activity()
    STOPS[reason](populated, lease)

    with nothing_recorded():
        response = send(populated, lease, "renew-lease")

    assert (response.status, response.body["reason"]) == (409, reason)


# -- status ------------------------------------------------------------------------------------------------------------


def test_says_how_an_attempt_stands(populated: ApiClient) -> None:
    lease = leased_activity(start_to_close_timeout=60)

    with nothing_recorded():
        response = send(populated, lease, "status")

    assert response.status == 200
    assert response.plain == {
        "task_id": lease.task_id,
        "activity_attempt_id": lease.body["activity_attempt_id"],
        "lease_owner": "w-1",
        "can_continue": True,
        "cancel_requested": False,
        "reason": None,
        "heartbeat_recorded": False,
        "lease_expires_at": lease.body["lease_expires_at"],
        "last_heartbeat_at": None,
        "run_status": "waiting",
        "run_closed_reason": None,
        "run_closed_at": None,
        "activity_status": "pending",
        "attempt_status": "running",
        "task_status": "leased",
        "deadlines": {"start_to_close": A_TIME},
        "worker_session": None,
    }


def test_says_null_for_deadlines_that_there_are_not(api: ApiClient) -> None:
    assert send(api, leased_activity(), "status").body["deadlines"] is None


@pytest.mark.parametrize(("version", "status"), [("1.19", 422), ("1.20", 200)])
def test_asks_for_the_version_that_has_a_status(api: ApiClient, version: str, status: int) -> None:
    lease = leased_activity()
    headers = {"X-Durable-Workflow-Protocol-Version": version}

    response = api.post(path(lease, "status"), fence(lease), headers=headers)

    assert response.status == status
    assert response.body.get("minimum_protocol_version") == ("1.20" if status == 422 else None)
