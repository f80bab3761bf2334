"""Refusals of the transport itself, before any operation: they are no members of `Reason`."""

from __future__ import annotations

from typing import Any
from unittest import mock

from django.db import OperationalError

from durable.operations import poll as poll_operation
from durable.sql.pool import PoolBusyError
from tests import factories as make
from tests.client import ApiClient
from tests.protocol.cases import Case, case
from tests.protocol.reports import poll
from tests.protocol.waiting import wait_until
from wire.models import ApiToken
from wire.tokens import create_token

DISCOVERY = "/api/cluster/info"


@case("payload_too_large")
def _(api: ApiClient, override: Any) -> Case:
    override(MAX_PAYLOAD_BYTES=100, BODY_SLACK_BYTES=28)
    return Case(
        lambda: api.post("/api/workflows", raw=b"x" * 129),
        413,
        {"message": "The request body is larger than 128 bytes.", "limit": 128, "size": 129},
    )


@case("unsupported_media_type")
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        lambda: api.post("/api/workflows", raw=b"{}", headers={"Content-Type": "text/plain"}),
        415,
        {
            "message": "The request body must be application/json.",
            "accepted_content_types": ["application/json", "application/*+json"],
        },
    )


@case("malformed_json")
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        lambda: api.post("/api/workflows", raw=b"{"),
        400,
        {"message": "The request body is not JSON.", "json_error": "JSONDecodeError"},
    )


@case("unauthorized")
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        lambda: api.get("/api/workflows", token="wrong"),
        401,
        {"message": "Invalid or missing authentication token."},
    )


@case("forbidden")
def _(api: ApiClient, override: Any) -> Case:
    _, secret = create_token("a worker", roles=["worker"], namespaces=["default"])
    api.get(DISCOVERY, token=secret)
    wait_until(ApiToken.objects.exclude(last_used_at=None).exists)
    return Case(
        lambda: api.get("/api/workflows", token=secret),
        403,
        {"message": "This token may not use this route.", "role": "worker", "allowed_roles": ["admin", "operator"]},
    )


@case("missing_protocol_version")
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        lambda: api.post("/api/worker/heartbeat", headers={"X-Durable-Workflow-Protocol-Version": ""}),
        400,
        {
            "message": "The protocol version header is missing.",
            "error": "The protocol version header is missing.",
            "supported_version": "1.20",
            "requested_version": None,
            "remediation": "Send X-Durable-Workflow-Protocol-Version: 1.20.",
        },
    )


@case("unsupported_protocol_version")
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        lambda: api.post("/api/worker/heartbeat", headers={"X-Durable-Workflow-Protocol-Version": "1.21"}),
        400,
        {
            "message": "This protocol version is not served.",
            "error": "This protocol version is not served.",
            "supported_version": "1.20",
            "requested_version": "1.21",
            "remediation": "Use a worker that speaks protocol 1.x up to 1.20.",
        },
    )


@case("missing_control_plane_version")
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        lambda: api.get("/api/workflows", headers={"X-Durable-Workflow-Control-Plane-Version": ""}),
        400,
        {"message": "Send X-Durable-Workflow-Control-Plane-Version: 2.", "supported_version": "2"},
    )


@case("unsupported_control_plane_version")
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        lambda: api.get("/api/workflows", headers={"X-Durable-Workflow-Control-Plane-Version": "3"}),
        400,
        {"message": "Send X-Durable-Workflow-Control-Plane-Version: 2.", "supported_version": "2"},
    )


@case("invalid_namespace")
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        lambda: api.get("/api/workflows?namespace[]=default", headers={"X-Namespace": ""}),
        400,
        {"message": "The namespace must be one name."},
    )


@case("namespace_not_found")
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        lambda: api.get("/api/workflows", headers={"X-Namespace": "Nowhere"}),
        404,
        {
            "message": "There is no such namespace.",
            "namespace": "nowhere",
            "remediation": "Create the namespace, or name another one in the X-Namespace header.",
        },
    )


@case("not_found")
def _(api: ApiClient, override: Any) -> Case:
    return Case(lambda: api.get("/api/nothing/here"), 404, {"message": "There is no such route."})


@case("method_not_allowed")
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        lambda: api.delete("/api/workflows"),
        405,
        {"message": "This route does not take this method."},
    )


# -- faults ------------------------------------------------------------------------------------------------------------


def _failing_poll(api: ApiClient, fault: Exception) -> Any:
    make.register("w-1")

    def send() -> Any:
        with mock.patch.object(poll_operation, "look", side_effect=fault):
            return poll(api, "workflow", poll_request_id="p-1")

    return send


@case("backend_lock_pressure")
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        _failing_poll(api, PoolBusyError()),
        503,
        {
            "message": "The database is busy; nothing was changed.",
            "poll_status": "backend_lock_pressure",
            "task": None,
            "task_kind": "workflow_task",
            "task_queue": make.QUEUE,
            "namespace": "default",
            "retryable": True,
            "retry_after_seconds": 1,
            "request_admitted": False,
        },
    )


@case("backend_unavailable")
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        _failing_poll(api, OperationalError("SELECT secret FROM host")),
        503,
        {
            "message": "The database cannot be reached; the outcome is unknown.",
            "poll_status": "backend_unavailable",
            "operation": "poll_workflow_task",
            "outcome": "unknown",
            "worker_id": "w-1",
            "task": None,
            "task_queue": make.QUEUE,
            "namespace": "default",
            "poll_request_id": "p-1",
            "retry_same_poll_request_id": True,
            "retryable": True,
            "retry_after_seconds": 1,
        },
    )


@case("server_error")
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        _failing_poll(api, RuntimeError("with a secret in it")),
        500,
        {"message": "An unexpected error occurred.", "retryable": True},
    )
