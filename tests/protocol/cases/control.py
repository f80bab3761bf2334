"""Refusals of the control plane."""

from __future__ import annotations

from typing import Any

from durable.ids import new_id
from durable.models import Namespace, Run
from durable.refusals import Reason
from tests import factories as make
from tests.client import ApiClient
from tests.protocol.cases import Case, case


def earlier_run(workflow_id: str) -> Run:
    """An older, closed run of a workflow; nothing makes one yet, so its row is written directly."""
    run = Run.objects.get(workflow_id=workflow_id)
    Run.objects.filter(id=run.id).update(run_number=2)
    run.pk = new_id()
    run.status, run.closed_reason, run.closed_at = "completed", "completed", run.created_at
    run.open_task_id, run.pending_activity_count = None, 0
    run.save(force_insert=True)
    return run


@case(Reason.INSTANCE_NOT_FOUND)
def _(api: ApiClient, override: Any) -> Case:
    return Case(
        lambda: api.post("/api/workflows/nobody/cancel"),
        404,
        {"message": "There is no such workflow in this namespace.", "workflow_id": "nobody"},
    )


@case(Reason.RUN_NOT_FOUND)
def _(api: ApiClient, override: Any) -> Case:
    make.start("order-1")
    return Case(
        lambda: api.get("/api/workflows/order-1/runs/01UNKNOWN"),
        404,
        {"message": "This workflow has no such run.", "workflow_id": "order-1", "run_id": "01UNKNOWN"},
    )


@case(Reason.INSTANCE_ALREADY_STARTED)
def _(api: ApiClient, override: Any) -> Case:
    started = make.start("order-1")
    return Case(
        lambda: api.post("/api/workflows", {"workflow_type": "five", "workflow_id": "order-1"}),
        409,
        {
            "message": "A workflow with this id was started already.",
            "outcome": "rejected_duplicate",
            "workflow_id": "order-1",
            "run_id": started.run.id,
            "workflow_type": "five",
        },
    )


@case(Reason.WORKFLOW_ID_RESERVED_IN_NAMESPACE)
def _(api: ApiClient, override: Any) -> Case:
    Namespace.objects.create(name="elsewhere")
    make.start("order-1", namespace="elsewhere")
    return Case(
        lambda: api.post("/api/workflows", {"workflow_type": "five", "workflow_id": "order-1"}),
        409,
        {
            "message": "This workflow id is taken in another namespace.",
            "outcome": "rejected_workflow_id_reserved_in_namespace",
            "workflow_id": "order-1",
        },
    )


@case(Reason.HISTORICAL_RUN_COMMAND_REJECTED)
def _(api: ApiClient, override: Any) -> Case:
    make.start("order-1")
    old = earlier_run("order-1")
    return Case(
        lambda: api.post(f"/api/workflows/order-1/runs/{old.id}/cancel"),
        409,
        {
            "message": "The run is not the workflow's current one.",
            "target_scope": "run",
            "outcome": "rejected_not_current",
            "workflow_id": "order-1",
            "run_id": old.id,
        },
    )


@case(Reason.RUN_NOT_ACTIVE)
def _(api: ApiClient, override: Any) -> Case:
    started = make.start("order-1")
    api.post("/api/workflows/order-1/terminate")
    return Case(
        lambda: api.post("/api/workflows/order-1/cancel"),
        409,
        {
            "message": "The run is closed.",
            "workflow_id": "order-1",
            "run_id": started.run.id,
            "run_status": "terminated",
            "is_terminal": True,
            "outcome": "rejected_not_active",
        },
    )
