"""Reports about workflow tasks (docs/protocol/worker-protocol.md 7.2 to 7.7)."""

from __future__ import annotations

from typing import Any

from durable import logs, metrics
from durable.history.pages import encode_token
from durable.history.times import stamp
from durable.operations.checkpoint_workflow_task import (
    Checkpoint,
    WorkflowTaskCheckpointed,
    checkpoint_workflow_task,
)
from durable.operations.complete_workflow_task import WorkflowTaskCompleted, complete_workflow_task
from durable.operations.fail_workflow_task import TaskFailure, fail_workflow_task
from durable.operations.heartbeat_workflow_task import heartbeat_workflow_task
from durable.operations.read_task_history import read_task_history
from durable.receipts import Report
from durable.sql.pool import Work
from durable.task_bodies import history_fields
from wire.compression import compress_history
from wire.errors import ErrorAnswer
from wire.process import runtime
from wire.refused import counts_refusals
from wire.views import Answer, Call, WorkerView
from worker_api.answers import workflow_tasks
from worker_api.backend import backend_lost
from worker_api.carried_polls import ON_WORKFLOW_TASK, carried_fields, read_carried_polls
from worker_api.requests import (
    WorkflowTaskCheckpointFence,
    WorkflowTaskCheckpointRequest,
    WorkflowTaskCompleteRequest,
    WorkflowTaskFailRequest,
    WorkflowTaskFence,
    WorkflowTaskHistoryRequest,
)


def _report(call: Call, task_id: str, data: dict[str, Any]) -> Report:
    logs.bind(worker_id=data["lease_owner"])
    return Report(
        namespace=call.namespace,
        task_id=task_id,
        lease_owner=data["lease_owner"],
        attempt=data["workflow_task_attempt"],
    )


class CompleteView(WorkerView):
    """Report the commands of a workflow task

    All commands become history in one transaction with a receipt, or nothing changes. Sent again, the same report gets
    the duplicate receipt, also after the run has closed. A report that comes too late gets the not-recorded receipt.

    It may carry the worker's next polls, for which its own transaction claims.
    """

    route = "workflow-task-complete"
    request_serializer = WorkflowTaskCompleteRequest
    answers = {"post": workflow_tasks.COMPLETE}

    @counts_refusals
    async def post(self, call: Call, task_id: str) -> Answer:
        # Only the fence: the engine validates the commands, each under its own path, after the claim was checked.
        report = _report(call, task_id, self.checked(WorkflowTaskFence, call.body))
        carried = read_carried_polls(call, ON_WORKFLOW_TASK)
        done = await runtime().pool.run(Work.LOCK_RUN, complete_workflow_task, report, call.body, carried)
        metrics.COMPLETIONS.labels(kind="workflow", outcome="duplicate" if done.is_duplicate else "completed").inc()
        logs.bind(run_id=done.run_id)
        return Answer({**_completed(done), **carried_fields(call, ON_WORKFLOW_TASK, done.carried)})

    def unavailable(self, answer: ErrorAnswer, call: Call, path: dict[str, Any]) -> ErrorAnswer:
        return _task_unavailable(answer, call, path, "complete_workflow_task")


def _completed(done: WorkflowTaskCompleted) -> dict[str, Any]:
    return {
        "task_id": done.task_id,
        "run_id": done.run_id,
        "run_status": done.run_status,
        "workflow_task_attempt": done.workflow_task_attempt,
        "outcome": "completed",
        "recorded": not done.is_duplicate,
        "reason": "already_completed" if done.is_duplicate else None,
        "created_task_ids": done.created_task_ids,
    }


class CheckpointView(WorkerView):
    """Record the first commands of a workflow task whose claim goes on

    What a completion does for all commands, this does for some, in the order of the code: they become history with a
    receipt, or nothing changes. The lease is neither renewed nor released, and the history can be read again to the end
    of what was recorded, from `history_refresh_page_token` on. Sent again, the same checkpoint gets the same receipt
    with `duplicate: true`, also after the claim or the run is over. One that comes too late gets the not-recorded
    receipt. Carried polls are ignored.

    A recorded checkpoint, without the envelope:

    ```json
    {"checkpointed": true, "duplicate": false, "checkpoint_id": "before-payment",
     "task_id": "01K00000000000000000000001", "workflow_run_id": "01K00000000000000000000002",
     "workflow_task_attempt": 1, "lease_owner": "w-1", "start_sequence": 1, "next_sequence": 2,
     "created_task_ids": ["01K00000000000000000000003"], "recorded_at": "2026-11-03T10:00:00.000000Z",
     "reason": null, "history_refresh_page_token": "MA=="}
    ```

    One that came after the run was cancelled, without the envelope:

    ```json
    {"error": "Workflow run is already closed.", "reason": "run_closed", "stop_reason": "run_cancelled",
     "cancel_requested": true, "can_continue": false, "run_status": "cancelled", "run_closed_reason": "cancelled",
     "run_closed_at": "2026-11-03T10:00:00.000000Z", "task_status": "cancelled", "lease_owner": null,
     "lease_expires_at": null, "task_id": "01K00000000000000000000001", "workflow_task_attempt": 1,
     "recorded": false, "run_id": "01K00000000000000000000002"}
    ```

    One whose worker knows of fewer steps than there are, without the envelope:

    ```json
    {"error": "The checkpoint does not begin with the run's next step.", "reason": "checkpoint_sequence_mismatch",
     "task_id": "01K00000000000000000000001", "workflow_task_attempt": 1, "start_sequence": 1, "next_sequence": 3}
    ```
    """

    route = "workflow-task-checkpoint"
    request_serializer = WorkflowTaskCheckpointRequest
    answers = {"post": workflow_tasks.CHECKPOINT}

    @counts_refusals
    async def post(self, call: Call, task_id: str) -> Answer:
        # Without the commands, which the engine validates after the claim was checked.
        data = self.checked(WorkflowTaskCheckpointFence, call.body)
        checkpoint = Checkpoint.of(
            call.body, checkpoint_id=data["checkpoint_id"], start_sequence=data["start_sequence"]
        )
        report = _report(call, task_id, data)
        done = await runtime().pool.run(Work.LOCK_RUN, checkpoint_workflow_task, report, checkpoint)
        metrics.COMPLETIONS.labels(kind="workflow", outcome="duplicate" if done.is_duplicate else "checkpointed").inc()
        logs.bind(run_id=done.receipt.run_id)
        return Answer(_checkpointed(done))

    def unavailable(self, answer: ErrorAnswer, call: Call, path: dict[str, Any]) -> ErrorAnswer:
        return _task_unavailable(answer, call, path, "checkpoint_workflow_task")


def _checkpointed(done: WorkflowTaskCheckpointed) -> dict[str, Any]:
    receipt = done.receipt
    return {
        "checkpointed": True,
        "duplicate": done.is_duplicate,
        "checkpoint_id": receipt.checkpoint_id,
        "task_id": receipt.task_id,
        "workflow_run_id": receipt.run_id,
        "workflow_task_attempt": receipt.attempt_number,
        "lease_owner": receipt.lease_owner,
        "start_sequence": receipt.start_sequence,
        "next_sequence": receipt.next_sequence,
        "created_task_ids": receipt.created_task_ids,
        "recorded_at": stamp(receipt.recorded_at),
        "reason": None,
        "history_refresh_page_token": encode_token(0),
    }


class FailView(WorkerView):
    """Report that a workflow task failed, or that it waits for history

    Writes no history. It is a waiting report if `failure.type` is `WorkflowTaskWaitingForHistory` or `failure.message`
    starts with `workflow task waiting for scheduled history`, in any case. No receipt is kept: sent again, the report
    is refused with the not-recorded receipt.
    """

    route = "workflow-task-fail"
    request_serializer = WorkflowTaskFailRequest
    answers = {"post": workflow_tasks.FAIL}

    @counts_refusals
    async def post(self, call: Call, task_id: str) -> Answer:
        data = self.validated(call)
        report = _report(call, task_id, data)
        done = await runtime().pool.run(Work.LOCK_RUN, fail_workflow_task, report, TaskFailure(**data["failure"]))
        metrics.COMPLETIONS.labels(kind="workflow", outcome=done.outcome).inc()
        return Answer(
            {
                "task_id": done.task_id,
                "workflow_task_attempt": done.workflow_task_attempt,
                "outcome": done.outcome,
                "recorded": True,
                "reason": None,
                "next_task_id": done.next_task_id,
            }
        )

    def unavailable(self, answer: ErrorAnswer, call: Call, path: dict[str, Any]) -> ErrorAnswer:
        return _task_unavailable(answer, call, path, "fail_workflow_task")


class HeartbeatView(WorkerView):
    """Renew the lease of a workflow task

    May be sent again at any time; the lease never becomes shorter.
    """

    route = "workflow-task-heartbeat"
    request_serializer = WorkflowTaskFence
    answers = {"post": workflow_tasks.HEARTBEAT}

    async def post(self, call: Call, task_id: str) -> Answer:
        report = _report(call, task_id, self.validated(call))
        lease = await runtime().pool.run(Work.WRITE, heartbeat_workflow_task, report)
        return Answer(
            {
                "task_id": lease.task_id,
                "workflow_task_attempt": lease.workflow_task_attempt,
                "lease_owner": lease.lease_owner,
                "renewed": True,
                "lease_expires_at": stamp(lease.lease_expires_at),
                "run_status": lease.run_status,
                "task_status": "leased",
                "reason": None,
            }
        )

    def unavailable(self, answer: ErrorAnswer, call: Call, path: dict[str, Any]) -> ErrorAnswer:
        named = _task_unavailable(answer, call, path, "heartbeat_workflow_task")
        return ErrorAnswer(named.status, {**named.body, "task_queue": None}, named.headers)


class HistoryView(WorkerView):
    """Read a further page of a claim's history

    Never shows more than the claim saw; changes nothing. `MA==` is the token of the first page.
    """

    route = "workflow-task-history"
    request_serializer = WorkflowTaskHistoryRequest
    answers = {"post": workflow_tasks.HISTORY}

    async def post(self, call: Call, task_id: str) -> Answer:
        data = self.validated(call)
        report = _report(call, task_id, data)
        found = await runtime().pool.run(
            Work.READ,
            read_task_history,
            report,
            page_token=data["next_history_page_token"],
            page_size=data.get("history_page_size"),
        )
        fields = history_fields(found.page)
        return Answer(
            {
                "task_id": task_id,
                "workflow_task_attempt": report.attempt,
                "total_history_events": found.total_history_events,
                **compress_history(fields, data.get("accept_history_encoding")),
            }
        )


def _task_unavailable(answer: ErrorAnswer, call: Call, path: dict[str, Any], operation: str) -> ErrorAnswer:
    owner, attempt = call.body.get("lease_owner"), call.body.get("workflow_task_attempt")
    return backend_lost(
        answer,
        operation,
        task_id=path["task_id"],
        lease_owner=owner,
        worker_id=owner,
        workflow_task_attempt=attempt,
    )
