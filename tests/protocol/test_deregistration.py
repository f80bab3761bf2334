"""Deregistration, unfenced and by token (docs/protocol/worker-protocol.md 3.3 and 3.4)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durable.models import Namespace, Task, WorkerIncarnation, WorkerRegistration
from tests import factories as make
from tests.client import ApiClient, Response
from tests.protocol.reports import ABSENT, poll, register, send
from tests.snapshot import nothing_recorded


def deregister(api: ApiClient, token: str, worker_id: str = "w-1") -> Response:
    return api.post(f"/api/worker/registrations/{worker_id}/deregister", {"registration_token": token})


def held_by_w1(count: int) -> list[make.Lease]:
    make.register("w-1")
    for number in range(count):
        make.start(f"order-{number}")
    return [make.lease_workflow("w-1") for _ in range(count)]


def test_ends_the_workflow_leases_of_a_worker_that_leaves(api: ApiClient) -> None:
    leases = held_by_w1(3)
    make.complete(leases[0], make.schedule())
    activity = make.lease_activity()

    response = api.delete("/api/worker/registrations/w-1")

    assert response.status == 200
    assert response.plain == {"worker_id": "w-1", "outcome": "deregistered", "recovered_workflow_task_count": 2}
    assert not WorkerRegistration.objects.exists()
    assert make.task_of(activity).lease_expires_at > make.task_of(activity).leased_at
    for lease in leases[1:]:
        late = send(api, lease, "complete", commands=[make.finish()])
        assert (late.status, late.body["reason"]) == (409, "lease_expired")


def test_leaves_the_leases_of_others_alone(api: ApiClient) -> None:
    make.register("w-2")
    Namespace.objects.create(name="elsewhere")
    make.register("w-1", namespace="elsewhere")
    make.start("theirs", namespace="elsewhere")
    others = [make.lease_workflow("w-1", namespace="elsewhere")]
    make.start("order-9")
    others.append(make.lease_workflow("w-2"))
    before = list(Task.objects.order_by("id").values())
    register(api)

    assert api.delete("/api/worker/registrations/w-1").body["recovered_workflow_task_count"] == 0

    assert list(Task.objects.order_by("id").values()) == before
    assert len(others) == 2


def test_knows_no_worker_that_left(api: ApiClient) -> None:
    register(api)
    api.delete("/api/worker/registrations/w-1")

    with nothing_recorded():
        response = api.delete("/api/worker/registrations/w-1")

    assert (response.status, response.body["reason"]) == (404, "worker_not_found")
    assert poll(api, "workflow").body["reason"] == "worker_not_registered"


def test_deregisters_by_token_and_keeps_the_receipt(api: ApiClient) -> None:
    held_by_w1(1)
    token = WorkerRegistration.objects.get(worker_id="w-1").registration_token
    first = deregister(api, token)

    with nothing_recorded():
        again = deregister(api, token)

    assert first.status == again.status == 200
    assert first.plain == {
        "worker_id": "w-1",
        "registration_token": token,
        "outcome": "deregistered",
        "recovered_workflow_task_count": 1,
    }
    assert again.raw == first.raw


def test_keeps_the_receipt_although_the_worker_registered_again(api: ApiClient) -> None:
    token = register(api).body["registration_token"]
    first = deregister(api, token)
    register(api)

    with nothing_recorded():
        again = deregister(api, token)

    assert again.raw == first.raw


def test_never_touches_the_registration_that_replaced_this_one(api: ApiClient) -> None:
    old = register(api).body["registration_token"]
    register(api)

    with nothing_recorded():
        response = deregister(api, old)

    assert (response.status, response.body["reason"], response.body["retryable"]) == (
        409, "worker_registration_lost_authority", False,
    )  # fmt: skip


@pytest.mark.parametrize(("age", "status"), [(599, 200), (601, 410)])
def test_keeps_a_receipt_for_ten_minutes(api: ApiClient, age: int, status: int) -> None:
    token = register(api).body["registration_token"]
    deregister(api, token)
    ended_at = WorkerIncarnation.objects.get(registration_token=token).ended_at
    WorkerIncarnation.objects.filter(registration_token=token).update(ended_at=ended_at - timedelta(seconds=age))

    with nothing_recorded():
        assert deregister(api, token).status == status


def test_knows_a_token_only_with_its_worker_and_namespace(api: ApiClient) -> None:
    Namespace.objects.create(name="elsewhere")
    token = register(api).body["registration_token"]
    make.register("w-2")

    with nothing_recorded():
        other_worker = deregister(api, token, "w-2")
        elsewhere = api.post(
            "/api/worker/registrations/w-1/deregister",
            {"registration_token": token},
            headers={"X-Namespace": "elsewhere"},
        )

    for response in (other_worker, elsewhere):
        assert (response.status, response.body["reason"]) == (404, "worker_registration_token_not_found")


@pytest.mark.parametrize(
    "token", [ABSENT, None, "", "x" * 32, "0" * 31, "0" * 33, "A" * 32, 7, "0" * 32 + "\n", " " * 32]
)
def test_refuses_a_token_of_another_form(api: ApiClient, token: Any) -> None:
    body = {} if token is ABSENT else {"registration_token": token}

    with nothing_recorded():
        response = api.post("/api/worker/registrations/w-1/deregister", body)

    assert (response.status, list(response.body["errors"])) == (422, ["registration_token"])
