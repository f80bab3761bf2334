"""Start, list, describe, history, cancel, terminate, repair (docs/protocol/control-plane.md 7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from rest_framework.serializers import Serializer

from control_api.answers import workflows
from control_api.bodies import event_body, run_body, run_item
from control_api.requests import HistoryQuery, ListQuery, RepairRequestBody, StartRequestBody, StopRequestBody
from durable import conf, logs, queries
from durable.commands.activities import EMPTY_LIST
from durable.operations.repair_workflow import repair_workflow
from durable.operations.start_workflow import StartRequest, start_workflow
from durable.operations.stop_workflow import cancel_workflow, terminate_workflow
from durable.sql.pool import Work
from durable.workflow_commands import CommandAccepted, WorkflowTarget
from wire.auth import principal_of
from wire.process import runtime
from wire.views import Answer, Call, ControlView

LIST_PAGE_SIZE = 50
HISTORY_PAGE_SIZE = 100


class WorkflowsView(ControlView):
    """`GET` lists, `POST` starts."""

    route = "workflows"
    request_serializer = StartRequestBody
    query_serializer = ListQuery
    answers = {"get": workflows.LIST, "post": workflows.START}

    def operation_of(self, call: Call | None) -> str | None:
        return "start" if self.request.method == "POST" else "list"

    async def get(self, call: Call) -> Answer:
        """List runs, newest first, one row a run"""
        query = self.queried(call)
        found = await runtime().pool.run(
            Work.READ,
            queries.list_runs,
            call.namespace,
            workflow_type=query.get("workflow_type"),
            status=query.get("status"),
            search=query.get("query"),
            page_size=query.get("page_size") or LIST_PAGE_SIZE,
            page_token=query.get("next_page_token"),
        )
        return Answer(
            {
                "workflows": [run_item(run) for run in found.runs],
                "workflow_count": len(found.runs),
                "next_page_token": found.next_page_token,
            }
        )

    async def post(self, call: Call) -> Answer:
        """Start a workflow

        Needs no worker. The instance, its run, the first two events and a workflow task are made in one transaction.
        A repeat is refused, or with `use-existing` finds the run that is open.
        """
        request = _start_request(call, self.validated(call))
        started = await runtime().pool.run(Work.WRITE, start_workflow, request)
        run = started.run
        logs.bind(workflow_id=run.workflow_id, run_id=run.id)
        return Answer(
            {
                "workflow_id": run.workflow_id,
                "run_id": run.id,
                "workflow_type": run.workflow_type,
                "namespace": run.namespace,
                "status": run.status,
                "business_key": run.business_key,
                "payload_codec": "avro",
                "outcome": "started_new" if started.is_new else "returned_existing_active",
                "command_id": started.command_id,
                "command_status": "accepted",
                "command_source": "control_plane",
                "reason": None,
                "rejection_reason": None,
                "message": "Workflow started." if started.is_new else "The workflow was running already.",
            },
            status=201 if started.is_new else 200,
        )


def _start_request(call: Call, data: dict[str, Any]) -> StartRequest:
    kept = ("fairness_key", "fairness_weight", "visibility_labels")
    labels = {name: data[name] for name in kept if data.get(name) is not None}
    context = call.body.get("observability_context")
    if isinstance(context, dict):
        labels["observability_context"] = context
    priority = data.get("priority")
    return StartRequest(
        namespace=call.namespace,
        workflow_type=data["workflow_type"],
        workflow_id=data.get("workflow_id"),
        task_queue=data.get("task_queue") or "default",
        arguments=data.get("input") or EMPTY_LIST,
        principal=principal_of(call.access),
        execution_timeout_seconds=data.get("execution_timeout_seconds"),
        run_timeout_seconds=data.get("run_timeout_seconds"),
        duplicate_policy=data.get("duplicate_policy") or "fail",
        business_key=data.get("business_key"),
        memo=data.get("memo"),
        search_attributes=data.get("search_attributes"),
        priority=5 if priority is None else priority,
        build_id=data.get("build_id") or data.get("compatibility") or "",
        labels=labels or None,
    )


class DescribeView(ControlView):
    """Describe the current run of a workflow"""

    route = "workflow"
    operation = "describe"
    answers = {"get": workflows.DESCRIBE}

    async def get(self, call: Call, workflow_id: str) -> Answer:
        return Answer(run_body(await runtime().pool.run(Work.READ, queries.describe_run, call.namespace, workflow_id)))


class DescribeRunView(ControlView):
    """Describe one run of a workflow"""

    route = "workflow-run"
    operation = "describe_run"
    answers = {"get": workflows.DESCRIBE_RUN}

    async def get(self, call: Call, workflow_id: str, run_id: str) -> Answer:
        description = await runtime().pool.run(Work.READ, queries.describe_run, call.namespace, workflow_id, run_id)
        return Answer(run_body(description))


class RunsView(ControlView):
    """List all runs of a workflow, oldest first"""

    route = "workflow-runs"
    operation = "list_runs"
    answers = {"get": workflows.LIST_RUNS}

    async def get(self, call: Call, workflow_id: str) -> Answer:
        workflow, runs = await runtime().pool.run(Work.READ, queries.list_workflow_runs, call.namespace, workflow_id)
        items = [{**run_item(run), "is_current_run": run.id == workflow.current_run_id} for run in runs]
        return Answer({"workflow_id": workflow.id, "run_count": workflow.run_count, "runs": items})


class HistoryView(ControlView):
    """Read a page of a run's history"""

    route = "workflow-history"
    operation = "history"
    query_serializer = HistoryQuery
    answers = {"get": workflows.HISTORY}

    async def get(self, call: Call, workflow_id: str, run_id: str) -> Answer:
        query = self.queried(call)
        history = await runtime().pool.run(
            Work.READ,
            queries.read_run_history,
            call.namespace,
            workflow_id,
            run_id,
            page_size=query.get("page_size") or HISTORY_PAGE_SIZE,
            page_token=query.get("next_page_token") or None,
            page_bytes=conf.current().history_page_bytes,
        )
        return Answer(
            {
                "workflow_id": history.run.workflow_id,
                "run_id": history.run.id,
                "compatibility": history.run.build_id or None,
                "events": [event_body(event, history) for event in history.events],
                "next_page_token": history.next_page_token,
            }
        )


class CommandView(ControlView):
    """What the commands on a running workflow share. The run form takes only the current run."""

    request_serializer: ClassVar[type[Serializer[Any]]] = StopRequestBody

    def target(self, call: Call, data: dict[str, Any], workflow_id: str, run_id: str | None) -> WorkflowTarget:
        return WorkflowTarget(
            namespace=call.namespace,
            workflow_id=workflow_id,
            run_id=run_id,
            principal=principal_of(call.access),
            request_id=data.get("request_id"),
        )

    @staticmethod
    def accepted(done: CommandAccepted, *, run_id: str | None, reason: str | None) -> Answer:
        return Answer(
            {
                "outcome": done.outcome,
                "workflow_id": done.run.workflow_id,
                "run_id": done.run.id,
                "requested_run_id": run_id,
                "resolved_run_id": done.run.id,
                "command_id": done.command_id,
                "command_status": "accepted",
                "command_source": "control_plane",
                "target_scope": "run" if run_id else "instance",
                "workflow_type": done.run.workflow_type,
                "run_status": done.run.status,
                "reason": reason,
                "rejection_reason": None,
            }
        )


class StopView(CommandView):
    """Close a run at once; a subclass says how."""

    stop: ClassVar[Callable[..., CommandAccepted]]

    async def post(self, call: Call, workflow_id: str, run_id: str | None = None) -> Answer:
        data = self.validated(call)
        reason = (data.get("reason") or "").strip() or None
        target = self.target(call, data, workflow_id, run_id)
        done = await runtime().pool.run(Work.LOCK_RUN, type(self).stop, target, reason=reason)
        return self.accepted(done, run_id=run_id, reason=reason)


class CancelView(StopView):
    """Cancel a workflow at once

    Closes the current run with its tasks and activities; workflow code does not run again.
    """

    route = "workflow-cancel"
    operation = "cancel"
    stop = staticmethod(cancel_workflow)
    answers = {"post": workflows.CANCEL}


class CancelRunView(CancelView):
    """Cancel a run at once, if it is the workflow's current one"""

    route = "workflow-run-cancel"
    answers = {"post": workflows.CANCEL_RUN}


class TerminateView(StopView):
    """Terminate a workflow at once

    Closes the current run with its tasks and activities; workflow code does not run again.
    """

    route = "workflow-terminate"
    operation = "terminate"
    stop = staticmethod(terminate_workflow)
    answers = {"post": workflows.TERMINATE}


class TerminateRunView(TerminateView):
    """Terminate a run at once, if it is the workflow's current one"""

    route = "workflow-run-terminate"
    answers = {"post": workflows.TERMINATE_RUN}


class RepairView(CommandView):
    """Give the current run the workflow task that it lacks

    A run whose replay failed is blocked until it is repaired or something happens to it. A live lease is never touched.
    """

    route = "workflow-repair"
    operation = "repair"
    request_serializer = RepairRequestBody
    answers = {"post": workflows.REPAIR}

    async def post(self, call: Call, workflow_id: str) -> Answer:
        target = self.target(call, self.validated(call), workflow_id, None)
        done = await runtime().pool.run(Work.LOCK_RUN, repair_workflow, target)
        return self.accepted(done, run_id=None, reason=None)
