"""Refusals of polls."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from unittest import mock

from durable.models import WorkerRegistration
from durable.operations import poll as poll_operation
from durable.refusals import Reason, Refusal
from tests import factories as make
from tests.client import ApiClient, undocumented
from tests.protocol.cases import Case, case
from tests.protocol.reports import ABSENT, poll


@case(Reason.VALIDATION_FAILED)
def _(api: ApiClient, override: Any) -> Case:
    errors = {"worker_id": ["This field is required."]}
    return Case(
        lambda: poll(api, "workflow", worker_id=ABSENT),
        422,
        {"message": "The request is not valid.", "errors": errors, "validation_errors": errors},
    )


@case(Reason.WORKER_NOT_REGISTERED)
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        lambda: poll(api, "workflow"),
        412,
        {"error": "The worker is not registered in this namespace.", "worker_id": "w-1"},
    )


@case(Reason.TASK_QUEUE_MISMATCH)
def _(api: ApiClient, override: Any) -> Case:
    make.register("w-1", task_queue="returns")
    return Case(
        lambda: poll(api, "workflow"),
        409,
        {
            "error": "The worker is registered for another task queue.",
            "worker_id": "w-1",
            "registered_task_queue": "returns",
            "requested_task_queue": make.QUEUE,
        },
    )


@case(Reason.BUILD_ID_MISMATCH)
def _(api: ApiClient, override: Any) -> Case:
    make.register("w-1", build_id="a")
    return Case(
        lambda: poll(api, "activity", build_id="b"),
        409,
        {
            "error": "The worker is registered with another build id.",
            "worker_id": "w-1",
            "registered_build_id": "a",
            "requested_build_id": "b",
        },
    )


@case(Reason.STALE_WORKER_REGISTRATION)
def _(api: ApiClient, override: Any) -> Case:
    registration = make.register("w-1")
    WorkerRegistration.objects.filter(worker_id="w-1").update(
        last_heartbeat_at=registration.last_heartbeat_at - timedelta(seconds=61)
    )
    return Case(
        lambda: poll(api, "activity"),
        409,
        {
            "error": "The worker's registration is stale: it has not been heard of for too long.",
            "worker_id": "w-1",
        },
    )


@case(Reason.WORKER_DRAINING)
def _(api: ApiClient, override: Any) -> Case:
    make.register("w-1")
    WorkerRegistration.objects.filter(worker_id="w-1").update(is_draining=True)
    # A 200 that names no reason: nothing is wrong with the poll.
    body = {"task": None, "poll_status": "draining", "drain_reason": None, "reason": ABSENT}
    return Case(lambda: poll(api, "activity"), 200, body)


@case(Reason.POLL_REQUEST_TASK_KINDS_CONFLICT)
def _(api: ApiClient, override: Any) -> Case:
    make.register("w-1", capabilities=["update_validation_tasks"])
    make.start()
    make.lease_workflow("w-1", poll_request_id="p-1")
    return Case(
        lambda: poll(api, "workflow", poll_request_id="p-1", task_kinds=["workflow", "update_validation"]),
        409,
        {
            "error": "This poll request id was used for other task kinds.",
            "task": None,
            "poll_status": "conflict",
            "poll_request_id": "p-1",
            "requested_task_kinds": ["update_validation", "workflow"],
            "bound_task_kinds": ["workflow"],
        },
    )


@case(Reason.POLL_CACHED_TASK_EXPIRED)
def _(api: ApiClient, override: Any) -> Case:
    make.register("w-1")
    make.start()
    make.expire_lease(make.lease_workflow("w-1", poll_request_id="p-1").task_id)
    return Case(
        lambda: poll(api, "workflow", poll_request_id="p-1"),
        409,
        {
            "error": "The task that this poll request id leased is not leased by it any more.",
            "task": None,
            "poll_status": "conflict",
            "poll_request_id": "p-1",
        },
    )


@case(Reason.UPDATE_VALIDATION_CAPABILITY_NOT_ADVERTISED)
def _(api: ApiClient, override: Any) -> Case:
    make.register("w-1")
    return Case(
        lambda: poll(api, "workflow", task_kinds=["update_validation"]),
        409,
        {
            "error": "The worker is registered without the capability update_validation_tasks.",
            "task": None,
            "poll_status": "unsupported",
        },
    )


@case(Reason.POLL_REQUEST_BUSY)
def _(api: ApiClient, override: Any) -> Case:
    # Internal: an ordinary poll looks again, so no route answers it. Injected where a carried claim would meet it.
    make.register("w-1")
    busy = Refusal(Reason.POLL_REQUEST_BUSY, "Another request with this poll request id is being served.")

    def send() -> Any:
        with undocumented(), mock.patch.object(poll_operation, "look", side_effect=busy):
            return poll(api, "workflow")

    return Case(send, 409, {"error": "Another request with this poll request id is being served."})


@case(Reason.LONG_POLL_CAPACITY_EXHAUSTED)
def _(api: ApiClient, override: Any) -> Case:
    make.register("w-1")
    override(LONG_POLL_CAPACITY=0)
    return Case(
        lambda: poll(api, "workflow", timeout_seconds=5),
        429,
        {
            "error": "This server has no room for another waiting poll.",
            "poll_status": "long_poll_capacity_exhausted",
            "task": None,
            "task_kind": "workflow_task",
            "task_queue": make.QUEUE,
            "namespace": "default",
            "wait_pool": "worker",
            "retryable": True,
            "retry_after_seconds": 1,
        },
    )
