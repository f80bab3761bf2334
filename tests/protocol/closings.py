"""Claims that hold no completion receipt, on runs that were closed in each of the five ways."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from durable.models import Run, Task
from durable.operations.recover_lease import recover_lease
from durable.operations.time_out_run import time_out_run
from tests import factories as make
from tests.client import ApiClient

# How a run closed, as its refusals say it, and what became of the task of the lost claim.
CLOSINGS: dict[str, dict[str, Any]] = {
    "completed": {
        "run_status": "completed",
        "run_closed_reason": "completed",
        "stop_reason": "run_completed",
        "cancel_requested": False,
        "task_status": "completed",
    },
    "failed": {
        "run_status": "failed",
        "run_closed_reason": "failed",
        "stop_reason": "run_failed",
        "cancel_requested": False,
        "task_status": "completed",
    },
    "timed_out": {
        "run_status": "failed",
        "run_closed_reason": "timed_out",
        "stop_reason": "run_failed",
        "cancel_requested": False,
        "task_status": "cancelled",
    },
    "cancelled": {
        "run_status": "cancelled",
        "run_closed_reason": "cancelled",
        "stop_reason": "run_cancelled",
        "cancel_requested": True,
        "task_status": "cancelled",
    },
    "terminated": {
        "run_status": "terminated",
        "run_closed_reason": "terminated",
        "stop_reason": "run_terminated",
        "cancel_requested": True,
        "task_status": "cancelled",
    },
}


def leased_task(workflow_id: str = "order-1", **options: Any) -> make.Lease:
    """Worker w-1 holds the first task of a new run."""
    make.register("w-1")
    make.register("w-2")
    make.start(workflow_id, **options)
    return make.lease_workflow("w-1")


def closed_claim(api: ApiClient, how: str) -> make.Lease:
    """A claim of w-1 that ended without a receipt, on a run that was then closed as `how`."""
    lease = leased_task()
    if how in ("completed", "failed"):
        lose(lease)
        last = make.finish("done") if how == "completed" else {"type": "fail_workflow", "message": "no stock"}
        make.complete(make.lease_workflow("w-2"), last)
    elif how == "timed_out":
        pass_deadline(lease)
        time_out_run(lease.body["run_id"])
    else:
        verb = {"cancelled": "cancel", "terminated": "terminate"}[how]
        assert api.post(f"/api/workflows/order-1/{verb}").status == 200
    return lease


def lose(lease: make.Lease) -> None:
    """The lease runs out and the task is offered again."""
    make.expire_lease(lease.task_id)
    assert recover_lease(lease.task_id)


def pass_deadline(lease: make.Lease) -> None:
    """The run's deadline is in the past, and nobody has noticed yet."""
    run = Run.objects.get(id=lease.body["run_id"])
    past = run.created_at - timedelta(seconds=1)
    Run.objects.filter(id=run.id).update(run_deadline_at=past, deadline_at=past)


def close_row(lease: make.Lease, how: str) -> None:
    """Close the run's row alone, which no operation does: its task stays leased."""
    closing = CLOSINGS[how]
    run = Run.objects.get(id=lease.body["run_id"])
    Run.objects.filter(id=run.id).update(
        status=closing["run_status"],
        closed_reason=closing["run_closed_reason"],
        closed_at=run.created_at,
        open_task_id=None,
    )


def task_status(lease: make.Lease) -> str:
    return Task.objects.get(id=lease.task_id).status
