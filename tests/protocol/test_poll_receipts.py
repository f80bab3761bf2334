"""A poll id is granted one lease, and finds it again (docs/protocol/worker-protocol.md 6.1)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durable import claims
from durable.models import ActivityAttempt, Namespace, PollReceipt, Task, WorkerRegistration
from tests import factories as make
from tests.client import ApiClient, Response
from tests.concurrency.tools import gate_after
from tests.protocol.closings import close_row, lose
from tests.protocol.reports import A_TIME, leased, poll, send
from tests.protocol.waiting import wait_until
from tests.snapshot import nothing_recorded

KINDS = ("workflow", "activity")


def offer(kind: str, workflow_id: str = "order-1") -> None:
    """Make one task of the kind ready for w-1."""
    make.register("w-1")
    make.start(workflow_id)
    if kind == "activity":
        make.complete(make.lease_workflow("w-1"), make.schedule())


def cached_task_expired(poll_id: str) -> dict[str, Any]:
    return {
        "error": "The task that this poll request id leased is not leased by it any more.",
        "reason": "poll_cached_task_expired",
        "task": None,
        "poll_status": "conflict",
        "poll_request_id": poll_id,
    }


def same_but_for_time(first: Response, second: Response) -> bool:
    bodies = [
        {key: value for key, value in response.plain.items() if key != "server_time"} for response in (first, second)
    ]
    return bodies[0] == bodies[1]


@pytest.mark.parametrize("kind", KINDS)
def test_replays_the_lease_of_a_poll_id(populated: ApiClient, kind: str) -> None:
    offer(kind)
    first = poll(populated, kind, poll_request_id="p-1")

    with nothing_recorded():
        again = poll(populated, kind, poll_request_id="p-1")

    assert again.status == 200
    assert same_but_for_time(first, again)
    assert again.body["server_time"] >= first.body["server_time"]


@pytest.mark.parametrize("kind", KINDS)
def test_replays_the_expiry_as_it_is_now(api: ApiClient, kind: str, override_durable: Any) -> None:
    offer(kind)
    lease = leased(poll(api, kind, poll_request_id="p-1"))
    override_durable(WORKFLOW_LEASE_SECONDS=600, ACTIVITY_LEASE_SECONDS=600)
    renewed = send(api, lease, "heartbeat").body["lease_expires_at"]

    again = poll(api, kind, poll_request_id="p-1")

    assert renewed > lease.body["lease_expires_at"]
    assert again.body["task"]["lease_expires_at"] == renewed


def test_replays_one_attempt_however_often_it_is_asked(api: ApiClient) -> None:
    offer("activity")
    answers = [poll(api, "activity", poll_request_id="p-1") for _ in range(4)]

    assert len({response.body["task"]["activity_attempt_id"] for response in answers}) == 1
    assert ActivityAttempt.objects.count() == 1


def test_replays_within_the_history_that_the_claim_was_shown(api: ApiClient) -> None:
    make.register("w-1")
    make.start("order-1")
    make.complete(make.lease_workflow(), make.schedule(), make.schedule())
    make.complete_step(make.lease_activity())
    other = make.lease_activity()
    first = poll(api, "workflow", poll_request_id="p-1")
    send(api, leased(first), "heartbeat")
    make.complete_step(other)

    again = poll(api, "workflow", poll_request_id="p-1")

    assert again.body["task"]["history_events"] == first.body["task"]["history_events"]
    assert again.body["task"]["total_history_events"] == first.body["task"]["total_history_events"]


def test_replays_the_first_page_in_the_size_asked_for_now(api: ApiClient) -> None:
    offer("workflow")
    poll(api, "workflow", poll_request_id="p-1")

    again = poll(api, "workflow", poll_request_id="p-1", history_page_size=1)

    assert [event["sequence"] for event in again.body["task"]["history_events"]] == [1]
    assert again.body["task"]["next_history_page_token"] == "MQ=="


@pytest.mark.parametrize("kind", KINDS)
def test_remembers_no_empty_poll(api: ApiClient, kind: str) -> None:
    make.register("w-1")
    assert poll(api, kind, poll_request_id="p-1").plain == {"task": None, "poll_status": "empty"}
    assert not PollReceipt.objects.exists()
    offer(kind)

    assert poll(api, kind, poll_request_id="p-1").body["poll_status"] == "leased"


@pytest.mark.parametrize("kind", KINDS)
def test_leases_anew_without_a_poll_id(api: ApiClient, kind: str) -> None:
    offer(kind, "order-1")
    offer(kind, "order-2")

    first, second = (leased(poll(api, kind)) for _ in range(2))

    assert first.task_id != second.task_id
    assert PollReceipt.objects.exclude(poll_request_id__startswith="poll-").count() == 0


@pytest.mark.parametrize("blank", ["", "  ", None])
def test_takes_a_blank_poll_id_for_none(api: ApiClient, blank: str | None) -> None:
    offer("workflow", "order-1")
    offer("workflow", "order-2")

    first, second = (leased(poll(api, "workflow", poll_request_id=blank)) for _ in range(2))

    assert first.task_id != second.task_id


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("over", ["reported", "expired", "taken over", "failed", "run closed"])
def test_refuses_a_poll_id_whose_claim_is_over(populated: ApiClient, kind: str, over: str) -> None:
    offer(kind)
    lease = leased(poll(populated, kind, poll_request_id="p-1"))
    end(populated, lease, kind, over)

    with nothing_recorded():
        again = poll(populated, kind, poll_request_id="p-1")

    assert (again.status, again.plain) == (409, cached_task_expired("p-1"))


def end(api: ApiClient, lease: make.Lease, kind: str, over: str) -> None:
    if over == "reported":
        content = {"commands": [make.schedule()]} if kind == "workflow" else {"result": make.envelope(1)}
        assert send(api, lease, "complete", **content).status == 200
    elif over == "failed":
        assert send(api, lease, "fail", failure={"message": "boom"}).status == 200
    elif over == "run closed":
        assert api.post("/api/workflows/order-1/cancel").status == 200
    elif over == "expired":
        make.expire_lease(lease.task_id)
    else:
        lose(lease)
        make.register("w-2")
        (make.lease_workflow if kind == "workflow" else make.lease_activity)("w-2")


def test_refuses_a_poll_id_after_the_same_worker_claimed_anew(populated: ApiClient) -> None:
    offer("workflow")
    lose(leased(poll(populated, "workflow", poll_request_id="p-1")))
    assert leased(poll(populated, "workflow", poll_request_id="p-2")).body["workflow_task_attempt"] == 2

    with nothing_recorded():
        again = poll(populated, "workflow", poll_request_id="p-1")

    assert again.plain == cached_task_expired("p-1")


def test_leases_nothing_when_it_refuses_a_finished_poll_id(populated: ApiClient) -> None:
    offer("workflow", "order-1")
    offer("workflow", "order-2")
    lose(leased(poll(populated, "workflow", poll_request_id="p-1")))

    with nothing_recorded():
        again = poll(populated, "workflow", poll_request_id="p-1")

    assert again.body["reason"] == "poll_cached_task_expired"


def test_takes_the_same_poll_id_once_per_route(api: ApiClient) -> None:
    offer("activity", "order-1")
    offer("workflow", "order-2")

    answers = [poll(api, kind, poll_request_id="p-1") for kind in KINDS]

    assert [response.body["task"]["task_kind"] for response in answers] == ["workflow", "activity"]


def test_keeps_the_poll_ids_of_workers_apart(api: ApiClient) -> None:
    make.register("w-2")
    offer("workflow", "order-1")
    offer("workflow", "order-2")

    first = leased(poll(api, "workflow", poll_request_id="p-1"))
    second = leased(poll(api, "workflow", poll_request_id="p-1", worker_id="w-2"))

    assert first.task_id != second.task_id


def test_keeps_the_poll_ids_of_namespaces_apart(api: ApiClient) -> None:
    Namespace.objects.create(name="elsewhere")
    make.register("w-1", namespace="elsewhere")
    make.start("order-2", namespace="elsewhere")
    offer("workflow", "order-1")
    first = leased(poll(api, "workflow", poll_request_id="p-1"))

    body = {"worker_id": "w-1", "task_queue": make.QUEUE, "poll_request_id": "p-1", "timeout_seconds": 0}
    second = leased(api.post("/api/worker/workflow-tasks/poll", body, headers={"X-Namespace": "elsewhere"}))

    assert (first.body["workflow_id"], second.body["workflow_id"]) == ("order-1", "order-2")


def test_replays_even_if_only_the_run_row_says_closed(api: ApiClient) -> None:
    offer("workflow")
    lease = leased(poll(api, "workflow", poll_request_id="p-1"))
    close_row(lease, "cancelled")

    assert leased(poll(api, "workflow", poll_request_id="p-1")).task_id == lease.task_id


# -- the binding to task kinds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["workflow"], ["workflow", "update_validation"]),
        (["workflow", "update_validation"], ["workflow"]),
        (["workflow", "update_validation"], None),
        (None, ["update_validation", "workflow"]),
    ],
)
def test_refuses_a_poll_id_with_other_task_kinds(
    populated: ApiClient, first: list[str] | None, second: list[str] | None
) -> None:
    offer("workflow")
    make.register("w-1", capabilities=["update_validation_tasks"])
    leased(poll(populated, "workflow", poll_request_id="p-1", task_kinds=first))

    with nothing_recorded():
        again = poll(populated, "workflow", poll_request_id="p-1", task_kinds=second)

    assert again.status == 409
    assert again.plain == {
        "error": "This poll request id was used for other task kinds.",
        "reason": "poll_request_task_kinds_conflict",
        "task": None,
        "poll_status": "conflict",
        "poll_request_id": "p-1",
        "requested_task_kinds": sorted(second or ["workflow"]),
        "bound_task_kinds": sorted(first or ["workflow"]),
    }


def test_takes_task_kinds_in_any_order(api: ApiClient) -> None:
    offer("workflow")
    make.register("w-1", capabilities=["update_validation_tasks"])
    first = leased(poll(api, "workflow", poll_request_id="p-1", task_kinds=["workflow", "update_validation"]))

    again = leased(poll(api, "workflow", poll_request_id="p-1", task_kinds=["update_validation", "workflow"]))

    assert again.task_id == first.task_id


# -- two requests with one id ------------------------------------------------------------------------------------------


def test_replays_the_winner_to_a_request_that_came_second(api: ApiClient) -> None:
    offer("workflow")

    with gate_after(claims, "_reserve") as gate:
        first = api.begin("POST", "/api/worker/workflow-tasks/poll", poll_body("p-1"))
        gate.wait_until_reached()
        second = api.begin("POST", "/api/worker/workflow-tasks/poll", poll_body("p-1"))
        gate.open()
        answers = [first.result(30), second.result(30)]

    assert {leased(response).task_id for response in answers} == {Task.objects.get().id}
    assert Task.objects.get().attempt_count == 1


def poll_body(poll_id: str, **other: Any) -> dict[str, Any]:
    return {"worker_id": "w-1", "task_queue": make.QUEUE, "poll_request_id": poll_id, "timeout_seconds": 5, **other}


# -- how long a receipt is kept ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lease_seconds", "kept_seconds"), [(60, 120), (300, 300)])
def test_keeps_a_receipt_for_the_lease_and_two_minutes_at_least(
    api: ApiClient, override_durable: Any, lease_seconds: int, kept_seconds: int
) -> None:
    override_durable(WORKFLOW_LEASE_SECONDS=lease_seconds)
    offer("workflow")
    poll(api, "workflow", poll_request_id="p-1")

    receipt = PollReceipt.objects.get()

    assert receipt.expires_at - receipt.created_at == timedelta(seconds=kept_seconds)


# -- draining ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_gives_a_draining_worker_no_new_lease(populated: ApiClient, kind: str) -> None:
    offer(kind)
    WorkerRegistration.objects.filter(worker_id="w-1").update(is_draining=True, drain_reason="deploy")

    with nothing_recorded():
        response = poll(populated, kind, poll_request_id="p-1", timeout_seconds=60)

    assert (response.status, response.plain) == (
        200,
        {"task": None, "poll_status": "draining", "drain_reason": "deploy"},
    )


@pytest.mark.parametrize("kind", KINDS)
def test_gives_a_draining_worker_the_lease_it_holds(populated: ApiClient, kind: str) -> None:
    offer(kind)
    first = poll(populated, kind, poll_request_id="p-1")
    WorkerRegistration.objects.filter(worker_id="w-1").update(is_draining=True, drain_reason=None)

    with nothing_recorded():
        again = poll(populated, kind, poll_request_id="p-1")

    assert same_but_for_time(first, again)


# -- capacity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_refuses_to_wait_when_no_more_polls_may(populated: ApiClient, override_durable: Any, kind: str) -> None:
    make.register("w-1")
    override_durable(LONG_POLL_CAPACITY=0)

    with nothing_recorded():
        response = poll(populated, kind, timeout_seconds=30, poll_request_id="p-1")

    assert response.status == 429
    assert response.headers["retry-after"] == "1"
    assert response.plain == {
        "error": "This server has no room for another waiting poll.",
        "reason": "long_poll_capacity_exhausted",
        "poll_status": "long_poll_capacity_exhausted",
        "task": None,
        "task_kind": f"{kind}_task",
        "task_queue": make.QUEUE,
        "namespace": "default",
        "wait_pool": "worker",
        "retryable": True,
        "retry_after_seconds": 1,
    }


def test_refuses_the_poll_after_the_last_place(api: ApiClient, override_durable: Any) -> None:
    make.register("w-1")
    override_durable(LONG_POLL_CAPACITY=1)
    parked = api.begin("POST", "/api/worker/workflow-tasks/poll", poll_body("p-1", timeout_seconds=30))
    wait_until(lambda: len(api.runtime.hub) == 1)

    assert poll(api, "workflow", timeout_seconds=30).status == 429
    parked.cancel()


@pytest.mark.parametrize("kind", KINDS)
def test_replays_although_no_more_polls_may_wait(api: ApiClient, override_durable: Any, kind: str) -> None:
    offer(kind)
    first = poll(api, kind, poll_request_id="p-1")
    override_durable(LONG_POLL_CAPACITY=0)

    again = poll(api, kind, poll_request_id="p-1", timeout_seconds=30)

    assert same_but_for_time(first, again)


@pytest.mark.parametrize("kind", KINDS)
def test_leases_what_is_ready_although_no_more_polls_may_wait(api: ApiClient, override_durable: Any, kind: str) -> None:
    override_durable(LONG_POLL_CAPACITY=0)
    offer(kind)

    response = poll(api, kind, timeout_seconds=30)

    assert response.body["poll_status"] == "leased"
    assert response.body["server_time"] == A_TIME
