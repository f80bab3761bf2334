"""Reports about activity tasks (docs/protocol/worker-protocol.md 8.2 to 8.6)."""

from __future__ import annotations

from typing import Any

from durable import logs, metrics
from durable.history.times import stamp
from durable.operations.complete_activity import ActivityReported, complete_activity
from durable.operations.fail_activity import ActivityFailure, fail_activity
from durable.operations.heartbeat_activity import (
    AttemptStanding,
    heartbeat_activity,
    read_activity_status,
    renew_activity_lease,
)
from durable.protocol import COOPERATIVE_FLOOR
from durable.receipts import Report
from durable.refusals import Reason, Refusal
from durable.sql.pool import Work
from durable.task_bodies import activity_deadlines
from wire.errors import ErrorAnswer
from wire.process import runtime
from wire.refused import counts_refusals
from wire.views import Answer, Call, WorkerView
from worker_api.answers import activity_tasks
from worker_api.backend import backend_lost
from worker_api.carried_polls import ON_ACTIVITY_TASK, carried_fields, read_carried_polls
from worker_api.requests import (
    ActivityHeartbeatRequest,
    ActivityTaskCompleteRequest,
    ActivityTaskFailRequest,
    ActivityTaskFence,
    ActivityTaskResult,
)

PROGRESS_FIELDS = ("details", "message", "current", "total", "unit")


def _report(call: Call, task_id: str, data: dict[str, Any]) -> Report:
    logs.bind(worker_id=data["lease_owner"])
    return Report(
        namespace=call.namespace,
        task_id=task_id,
        lease_owner=data["lease_owner"],
        activity_attempt_id=data["activity_attempt_id"],
    )


class CompleteView(WorkerView):
    """Report the result of an activity attempt

    A result over the payload limit is recorded as a failure of the activity. Sent again, the same report gets the
    duplicate receipt. It may carry the worker's next workflow poll, for which its own transaction claims.
    """

    route = "activity-task-complete"
    request_serializer = ActivityTaskCompleteRequest
    answers = {"post": activity_tasks.COMPLETE}

    @counts_refusals
    async def post(self, call: Call, task_id: str) -> Answer:
        # Without the poll it carries: nothing that is wrong with that concerns the result.
        report = _report(call, task_id, self.checked(ActivityTaskResult, call.body))
        carried = read_carried_polls(call, ON_ACTIVITY_TASK)
        done = await runtime().pool.run(Work.LOCK_RUN, complete_activity, report, call.body, carried)
        return Answer({**_reported(done), **carried_fields(call, ON_ACTIVITY_TASK, done.carried)})

    def unavailable(self, answer: ErrorAnswer, call: Call, path: dict[str, Any]) -> ErrorAnswer:
        return _task_unavailable(answer, call, path, "complete_activity_task")


class FailView(WorkerView):
    """Report that an activity attempt failed

    Another attempt follows unless the failure is non-retryable, the retry policy names its type or class, or attempts
    have run out. Sent again, the same report gets the duplicate receipt.
    """

    route = "activity-task-fail"
    request_serializer = ActivityTaskFailRequest
    answers = {"post": activity_tasks.FAIL}

    @counts_refusals
    async def post(self, call: Call, task_id: str) -> Answer:
        data = self.validated(call)
        report = _report(call, task_id, data)
        done = await runtime().pool.run(Work.LOCK_RUN, fail_activity, report, _failure(data["failure"]), call.body)
        return Answer(_reported(done))

    def unavailable(self, answer: ErrorAnswer, call: Call, path: dict[str, Any]) -> ErrorAnswer:
        return _task_unavailable(answer, call, path, "fail_activity_task")


def _failure(data: dict[str, Any]) -> ActivityFailure:
    flags = {name: bool(data.get(name)) for name in ("non_retryable", "cancelled")}
    texts = ("type", "code", "kind", "stack_trace", "details", "diagnostics", "timeout_type")
    return ActivityFailure(
        message=data["message"],
        class_name=data.get("class") or None,
        **flags,
        **{name: data.get(name) for name in texts},
    )


def _reported(done: ActivityReported) -> dict[str, Any]:
    outcome = "duplicate" if done.is_duplicate else done.outcome
    metrics.COMPLETIONS.labels(kind="activity", outcome=outcome).inc()
    return {
        "task_id": done.task_id,
        "activity_attempt_id": done.activity_attempt_id,
        "outcome": done.outcome,
        "recorded": not done.is_duplicate,
        "reason": "already_completed" if done.is_duplicate else None,
        "next_task_id": done.next_task_id,
    }


class HeartbeatView(WorkerView):
    """Say that an activity attempt goes on, and how far it is

    Renews the lease and the heartbeat deadline, and keeps the progress, which enters history with the attempt's
    outcome. That the attempt must stop is said with 200 and `can_continue: false`.
    """

    route = "activity-task-heartbeat"
    request_serializer = ActivityHeartbeatRequest
    answers = {"post": activity_tasks.HEARTBEAT}

    async def post(self, call: Call, task_id: str) -> Answer:
        data = self.validated(call)
        progress = {name: data[name] for name in PROGRESS_FIELDS if data.get(name) is not None}
        standing = await runtime().pool.run(Work.WRITE, heartbeat_activity, _report(call, task_id, data), progress)
        run = standing.locked.run
        return Answer(
            {
                **_standing(standing),
                "run_closed_reason": run.closed_reason,
                "run_closed_at": stamp(run.closed_at),
            }
        )


class RenewLeaseView(WorkerView):
    """Renew the lease of an activity attempt

    Renews nothing else, and never revives a lease that has run out.
    """

    route = "activity-task-renew-lease"
    request_serializer = ActivityTaskFence
    answers = {"post": activity_tasks.RENEW_LEASE}

    async def post(self, call: Call, task_id: str) -> Answer:
        report = _report(call, task_id, self.validated(call))
        locked = await runtime().pool.run(Work.WRITE, renew_activity_lease, report)
        task, attempt = locked.task, locked.attempt
        return Answer(
            {
                "task_id": task.id,
                "workflow_task_id": task.id,
                "workflow_instance_id": task.workflow_id,
                "workflow_run_id": task.run_id,
                "activity_execution_id": locked.execution.id,
                "activity_attempt_id": attempt.id,
                "attempt_number": attempt.attempt_number,
                "lease_owner": attempt.lease_owner,
                "lease_renewed": True,
                "can_continue": True,
                "cancel_requested": False,
                "heartbeat_recorded": False,
                "reason": None,
                "server_time": stamp(locked.now),
                "lease_expires_at": stamp(task.lease_expires_at),
                "last_heartbeat_at": stamp(attempt.last_heartbeat_at),
                "heartbeat_deadline_at": stamp(task.heartbeat_at),
            }
        )


class StatusView(WorkerView):
    """Ask whether an activity attempt may go on

    Changes nothing. Needs protocol version 1.20.
    """

    route = "activity-task-status"
    request_serializer = ActivityTaskFence
    answers = {"post": activity_tasks.STATUS}

    async def post(self, call: Call, task_id: str) -> Answer:
        if call.version < COOPERATIVE_FLOOR:
            raise Refusal(
                Reason.ACTIVITY_ATTEMPT_STATUS_UNAVAILABLE,
                "The status of an attempt needs a newer protocol version.",
                minimum_protocol_version=str(COOPERATIVE_FLOOR),
            )
        report = _report(call, task_id, self.validated(call))
        standing = await runtime().pool.run(Work.READ, read_activity_status, report)
        locked = standing.locked
        return Answer(
            {
                **_standing(standing),
                "run_status": locked.run.status,
                "run_closed_reason": locked.run.closed_reason,
                "run_closed_at": stamp(locked.run.closed_at),
                "activity_status": locked.execution.status,
                "attempt_status": locked.attempt.status,
                "task_status": locked.task.status,
                "deadlines": activity_deadlines(locked.task, locked.run) or None,
                "worker_session": None,
            }
        )


def _standing(standing: AttemptStanding) -> dict[str, Any]:
    task, attempt = standing.locked.task, standing.locked.attempt
    return {
        "task_id": task.id,
        "activity_attempt_id": attempt.id,
        "lease_owner": attempt.lease_owner,
        "can_continue": standing.can_continue,
        "cancel_requested": standing.cancel_requested,
        "reason": standing.reason,
        "heartbeat_recorded": standing.recorded,
        "lease_expires_at": stamp(task.lease_expires_at or attempt.lease_expires_at),
        "last_heartbeat_at": stamp(attempt.last_heartbeat_at),
    }


def _task_unavailable(answer: ErrorAnswer, call: Call, path: dict[str, Any], operation: str) -> ErrorAnswer:
    owner = call.body.get("lease_owner")
    return backend_lost(
        answer,
        operation,
        task_id=path["task_id"],
        activity_attempt_id=call.body.get("activity_attempt_id"),
        lease_owner=owner,
        worker_id=owner,
    )
