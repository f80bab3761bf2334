"""Refusals of registrations and deregistrations."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from durable.models import WorkerIncarnation
from durable.operations.deregister_worker import deregister_worker
from durable.refusals import Reason
from tests import factories as make
from tests.client import ApiClient, Response
from tests.protocol.cases import Case, case
from tests.protocol.reports import register

TOKEN = "0123456789abcdef" * 2


def deregister(api: ApiClient, token: str) -> Response:
    return api.post("/api/worker/registrations/w-1/deregister", {"registration_token": token})


def capability_body(capability: str, version: str, floor: str) -> dict[str, Any]:
    return {
        "error": f"The capability {capability} does not fit the manifest or the protocol version of this request.",
        "registered": False,
        "capability": capability,
        "requested_version": version,
        "minimum_protocol_version": floor,
    }


@case(Reason.WORKFLOW_DEFINITION_CHANGED)
def _(api: ApiClient, override: Any) -> Case:
    make.register("w-1", workflow_definition_fingerprints={"five": "sha256:1", "six": "sha256:6"})
    return Case(
        lambda: register(api, workflow_definition_fingerprints={"six": "sha256:6", "five": "sha256:2"}),
        409,
        {
            "error": "An active registration of this worker id has another definition of the workflow type.",
            "workflow_type": "five",
            "remediation": "Register under a new worker id, or deregister the old worker first.",
        },
    )


@case(Reason.WORKFLOW_METADATA_CAPABILITY_PROTOCOL_MISMATCH)
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        lambda: register(api, version="1.13", capabilities=["memo_upserts"]),
        409,
        capability_body("memo_upserts", "1.13", "1.14"),
    )


@case(Reason.WORKER_CAPABILITY_MANIFEST_MISMATCH)
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        lambda: register(api, capabilities=["local_activities"]),
        409,
        capability_body("local_activities", "1.20", "1.18"),
    )


@case(Reason.WORKER_CAPABILITY_PROTOCOL_FLOOR_MISMATCH)
def _(api: ApiClient, override: Any) -> Case:
    manifest = {"sticky_execution": {"supported": True, "minimum_protocol_version": "1.18"}}
    return Case(
        lambda: register(api, version="1.17", capabilities=["sticky_execution"], capability_manifest=manifest),
        409,
        capability_body("sticky_execution", "1.17", "1.18"),
    )


@case(Reason.PREPARED_LOCAL_ACTIVITY_CAPABILITY_MISMATCH)
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        lambda: register(api, capabilities=["prepared_local_activities"]),
        409,
        {
            "error": "prepared_local_activities needs cooperative_cancellation and protocol 1.20.",
            "registered": False,
        },
    )


@case(Reason.WORKER_NOT_FOUND)
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        lambda: api.delete("/api/worker/registrations/w-9"),
        404,
        {"error": "There is no such worker in this namespace.", "worker_id": "w-9"},
    )


@case(Reason.WORKER_REGISTRATION_TOKEN_NOT_FOUND)
def _(api: ApiClient, override: Any) -> Case:
    make.register("w-1")
    return Case(
        lambda: deregister(api, TOKEN),
        404,
        {
            "error": "This worker has no registration with this token.",
            "worker_id": "w-1",
            "registration_token": TOKEN,
        },
    )


@case(Reason.WORKER_REGISTRATION_LOST_AUTHORITY)
def _(api: ApiClient, override: Any) -> Case:
    old = make.register("w-1").registration_token
    make.register("w-1")
    return Case(
        lambda: deregister(api, old),
        409,
        {
            "error": "A later registration replaced this one.",
            "worker_id": "w-1",
            "registration_token": old,
            "retryable": False,
        },
    )


@case(Reason.WORKER_REGISTRATION_RECEIPT_EXPIRED)
def _(api: ApiClient, override: Any) -> Case:
    token = make.register("w-1").registration_token
    deregister_worker("default", "w-1")
    incarnation = WorkerIncarnation.objects.get(registration_token=token)
    WorkerIncarnation.objects.filter(registration_token=token).update(
        ended_at=incarnation.created_at - timedelta(seconds=601)
    )
    return Case(
        lambda: deregister(api, token),
        410,
        {
            "error": "The receipt of this deregistration is not kept any more.",
            "worker_id": "w-1",
            "registration_token": token,
        },
    )
