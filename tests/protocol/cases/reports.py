"""Refusals of reports about tasks. Workflow tasks where both kinds have the reason."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from durable.models import Task
from durable.refusals import Reason
from tests import factories as make
from tests.client import ApiClient
from tests.protocol.cases import Case, case
from tests.protocol.closings import leased_task, lose
from tests.protocol.reports import A_TIME, send, send_report

RESULT = {"result": make.envelope("late")}


def workflow_identity(lease: make.Lease, attempt: int = 1) -> dict[str, Any]:
    return {"task_id": lease.task_id, "workflow_task_attempt": attempt}


def activity_identity(lease: make.Lease) -> dict[str, Any]:
    return {"task_id": lease.task_id, "activity_attempt_id": lease.body["activity_attempt_id"]}


def leased_activity(workflow_id: str = "order-1", **command: Any) -> make.Lease:
    make.complete(leased_task(workflow_id), make.schedule(**command))
    return make.lease_activity("w-1")


@case(Reason.STRUCTURAL_LIMIT_EXCEEDED)
def _(api: ApiClient, override: Any) -> Case:
    lease = leased_task()
    override(COMMAND_BATCH_SIZE=2)
    return Case(
        lambda: send(api, lease, "complete", commands=[make.schedule()] * 3),
        422,
        {
            "message": "A batch may hold 2 commands; this one has 3.",
            "outcome": "rejected",
            "limit_kind": "command_batch_size",
            "current_value": 3,
            "configured_limit": 2,
        },
    )


@case(Reason.INVALID_PAGE_TOKEN)
def _(api: ApiClient, override: Any) -> Case:
    lease = leased_task()
    return Case(
        lambda: send(api, lease, "history", next_history_page_token="not a token"),
        400,
        {"error": "The history page token is not one of this server's."},
    )


@case(Reason.TASK_NOT_FOUND)
def _(api: ApiClient, override: Any) -> Case:
    lease = make.Lease({**leased_task().body, "task_id": "01UNKNOWN"}, [])
    return Case(
        lambda: send(api, lease, "complete", commands=[make.finish()]),
        404,
        {"error": "There is no such task in this namespace.", **workflow_identity(lease)},
    )


@case(Reason.CONFLICTING_COMPLETION)
def _(api: ApiClient, override: Any) -> Case:
    lease = leased_task()
    make.complete(lease, make.schedule())
    return Case(
        lambda: send(api, lease, "complete", commands=[make.finish()]),
        409,
        {"error": "Another report was recorded for this claim already.", **workflow_identity(lease)},
    )


@case(Reason.CHECKPOINT_SEQUENCE_MISMATCH)
def _(api: ApiClient, override: Any) -> Case:
    lease = leased_task()
    make.checkpoint(lease, make.schedule(), make.schedule())
    return Case(
        lambda: send_report(api, lease, "checkpoint", checkpoint_id="c-2", start_sequence="2"),
        409,
        {
            "error": "The checkpoint does not begin with the run's next step.",
            "start_sequence": 2,
            "next_sequence": 3,
            **workflow_identity(lease),
        },
    )


@case(Reason.TASK_NOT_LEASED)
def _(api: ApiClient, override: Any) -> Case:
    lease = leased_task()
    make.report_waiting(lease)
    return Case(
        lambda: send(api, lease, "complete", commands=[make.finish()]),
        409,
        {
            "error": "Workflow task is not currently leased.",
            "task_status": "completed",
            "recorded": False,
            "run_id": lease.body["run_id"],
            **workflow_identity(lease),
        },
    )


@case(Reason.LEASE_EXPIRED)
def _(api: ApiClient, override: Any) -> Case:
    lease = leased_task()
    make.expire_lease(lease.task_id)
    return Case(
        lambda: send(api, lease, "complete", commands=[make.finish()]),
        409,
        {
            "error": "Workflow task lease has expired.",
            "task_status": "leased",
            "lease_owner": "w-1",
            "lease_expires_at": A_TIME,
            **workflow_identity(lease),
        },
    )


@case(Reason.LEASE_OWNER_MISMATCH)
def _(api: ApiClient, override: Any) -> Case:
    lease = leased_task()
    return Case(
        lambda: send(api, lease, "complete", commands=[make.finish()], lease_owner="w-2"),
        409,
        {"error": "Workflow task is leased by another worker.", "lease_owner": "w-1", **workflow_identity(lease)},
    )


@case(Reason.WORKFLOW_TASK_ATTEMPT_MISMATCH)
def _(api: ApiClient, override: Any) -> Case:
    lease = leased_task()
    return Case(
        lambda: send(api, lease, "complete", commands=[make.finish()], workflow_task_attempt=2),
        409,
        {
            "error": "Workflow task is leased under another attempt.",
            "current_attempt": 1,
            **workflow_identity(lease, 2),
        },
    )


@case(Reason.RUN_CLOSED)
def _(api: ApiClient, override: Any) -> Case:
    lease = leased_task()
    lose(lease)
    make.complete(make.lease_workflow("w-2"), make.finish())
    return Case(
        lambda: send(api, lease, "complete", commands=[make.finish()]),
        409,
        {
            "error": "Workflow run is already closed.",
            "stop_reason": "run_completed",
            "cancel_requested": False,
            "can_continue": False,
            "run_status": "completed",
            "run_closed_reason": "completed",
            "run_closed_at": A_TIME,
            "task_status": "completed",
            "lease_owner": None,
            "lease_expires_at": None,
            "recorded": False,
            "run_id": lease.body["run_id"],
            **workflow_identity(lease),
        },
    )


@case(Reason.WORKER_SESSIONS_UNAVAILABLE)
def _(api: ApiClient, override: Any) -> Case:
    lease = leased_task()
    return Case(
        lambda: send(api, lease, "complete", commands=[make.schedule(worker_session={"session_id": "s-1"})]),
        409,
        {"error": "Worker sessions are not available on this server."},
    )


@case(Reason.WORKER_CAPABILITY_NOT_SUPPORTED)
def _(api: ApiClient, override: Any) -> Case:
    lease = leased_task()
    return Case(
        lambda: send(api, lease, "complete", commands=[make.schedule(cancellation_policy="abandon")]),
        409,
        {
            "error": "This cancellation policy needs cooperative cancellation, which this server does not offer.",
            "capability": "cooperative_cancellation",
            "command_type": "schedule_activity",
        },
    )


# -- activities --------------------------------------------------------------------------------------------------------


@case(Reason.ATTEMPT_NOT_FOUND)
def _(api: ApiClient, override: Any) -> Case:
    lease = leased_activity()
    return Case(
        lambda: send(api, lease, "complete", **RESULT, activity_attempt_id="01UNKNOWN"),
        404,
        {
            "error": "There is no such activity attempt in this namespace.",
            "task_id": lease.task_id,
            "activity_attempt_id": "01UNKNOWN",
        },
    )


@case(Reason.TASK_MISMATCH)
def _(api: ApiClient, override: Any) -> Case:
    lease, other = leased_activity("order-1"), leased_activity("order-2")
    return Case(
        lambda: send(api, lease, "complete", **RESULT, activity_attempt_id=other.body["activity_attempt_id"]),
        409,
        {
            "error": "The attempt belongs to another task.",
            "task_id": lease.task_id,
            "activity_attempt_id": other.body["activity_attempt_id"],
        },
    )


@case(Reason.STALE_ATTEMPT)
def _(api: ApiClient, override: Any) -> Case:
    lease = leased_activity()
    lose(lease)
    make.lease_activity("w-2")
    return Case(
        lambda: send(api, lease, "complete", **RESULT),
        409,
        {
            "error": "The attempt is not the current one any more.",
            "outcome": "ignored",
            "recorded": False,
            **activity_identity(lease),
        },
    )


def _after_stop(api: ApiClient, verb: str, status: str) -> Case:
    lease = leased_activity()
    assert api.post(f"/api/workflows/order-1/{verb}").status == 200
    return Case(
        lambda: send(api, lease, "complete", **RESULT),
        409,
        {
            "error": "Workflow run is already closed.",
            "outcome": "ignored",
            "recorded": False,
            "cancel_requested": True,
            "can_continue": False,
            "run_status": status,
            "run_closed_reason": status,
            "run_closed_at": A_TIME,
            "activity_status": "cancelled",
            "attempt_status": "cancelled",
            "task_status": "cancelled",
            "lease_owner": None,
            "lease_expires_at": None,
            **activity_identity(lease),
        },
    )


@case(Reason.RUN_CANCELLED)
def _(api: ApiClient, override: Any) -> Case:
    return _after_stop(api, "cancel", "cancelled")


@case(Reason.RUN_TERMINATED)
def _(api: ApiClient, override: Any) -> Case:
    return _after_stop(api, "terminate", "terminated")


def _past_deadline(api: ApiClient, column: str) -> Case:
    lease = leased_activity()
    past = Task.objects.get(id=lease.task_id).leased_at - timedelta(seconds=1)
    Task.objects.filter(id=lease.task_id).update(**{column: past})
    return Case(
        lambda: send(api, lease, "renew-lease"),
        409,
        {"error": "The attempt's deadline has passed.", **activity_identity(lease)},
    )


@case(Reason.HEARTBEAT_TIMEOUT)
def _(api: ApiClient, override: Any) -> Case:
    return _past_deadline(api, "heartbeat_at")


@case(Reason.START_TO_CLOSE_TIMEOUT)
def _(api: ApiClient, override: Any) -> Case:
    return _past_deadline(api, "start_to_close_at")


@case(Reason.SCHEDULE_TO_CLOSE_TIMEOUT)
def _(api: ApiClient, override: Any) -> Case:
    return _past_deadline(api, "schedule_to_close_at")


@case(Reason.ACTIVITY_ATTEMPT_STATUS_UNAVAILABLE)
def _(api: ApiClient, override: Any) -> Case:
    lease = leased_activity()
    body = {"activity_attempt_id": lease.body["activity_attempt_id"], "lease_owner": "w-1"}
    return Case(
        lambda: api.post(
            f"/api/worker/activity-tasks/{lease.task_id}/status",
            body,
            headers={"X-Durable-Workflow-Protocol-Version": "1.19"},
        ),
        422,
        {"error": "The status of an attempt needs a newer protocol version.", "minimum_protocol_version": "1.20"},
    )
