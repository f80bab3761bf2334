"""Start a workflow: instance, run, first two events and first task exist, or nothing does (control-plane.md 7.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils import timezone

from durable import conf
from durable.changes import new_workflow_task
from durable.history import events
from durable.history.events import NewEvent
from durable.ids import new_id
from durable.jsontext import JSONText, dump_json
from durable.models import HistoryEvent, Run, Workflow, WorkflowCommand
from durable.principals import Principal
from durable.refusals import Reason, Refusal, invalid
from durable.sql import rows, starting
from durable.sql.clock import after, earliest, read_clock
from durable.sql.transactions import transactional_or_nested
from durable.states import CommandStatus, RunStatus, is_terminal
from durable.wakeups.hints import hint_after_commit


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """A validated start. `arguments` is an envelope; `duplicate_policy` is `fail` or `use-existing`."""

    namespace: str
    workflow_type: str
    workflow_id: str | None
    task_queue: str
    arguments: dict[str, Any]
    principal: Principal
    execution_timeout_seconds: int | None = None
    run_timeout_seconds: int | None = None
    duplicate_policy: str = "fail"
    business_key: str | None = None
    memo: dict[str, Any] | None = None
    search_attributes: dict[str, Any] | None = None
    priority: int = 5
    build_id: str = ""
    labels: dict[str, Any] | None = field(default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The run that carries the workflow id now. `is_new` is false when `use-existing` found an open one."""

    run: Run
    command_id: str | None
    is_new: bool


@transactional_or_nested
def start_workflow(request: StartRequest) -> Started:
    """Create the workflow's first run, or find the one that `use-existing` asks for.

    Needs no worker. Safe to call at the same time for one id: one caller creates, the others are answered typed.
    Refuses instance_already_started, workflow_id_reserved_in_namespace, validation_failed (another type, or an input
    over the payload limit). Changes nothing when it refuses.
    """
    _check_input(request)
    workflow = Workflow(
        id=request.workflow_id or new_id(),
        namespace=request.namespace,
        workflow_type=request.workflow_type,
        current_run_id=new_id(),
        created_at=timezone.now(),
    )
    if not rows.insert([workflow], or_ignore=True):
        return _answer_existing(request, workflow.id)
    contract = starting.find_command_contract(request.namespace, request.task_queue, request.workflow_type)
    # After the insert, which may have waited for another start of the same id.
    now = read_clock()
    command_id = new_id()
    run = _new_run(request, workflow, now, contract)
    recorded = [events.start_accepted(run, command_id), events.workflow_started(run, command_id, request.arguments)]
    _insert(run, recorded, command_id, request, now)
    return Started(run=run, command_id=command_id, is_new=True)


def _check_input(request: StartRequest) -> None:
    size, most = len(str(request.arguments.get("blob", ""))), conf.current().payload_size_bytes
    if most and size > most:
        raise invalid({"input": [f"The payload has {size} encoded bytes; at most {most} are allowed."]})


def _new_run(request: StartRequest, workflow: Workflow, now: datetime, contract: dict[str, Any] | None) -> Run:
    execution_deadline_at = after(now, request.execution_timeout_seconds)
    run_deadline_at = after(now, request.run_timeout_seconds)
    return Run(
        id=workflow.current_run_id,
        namespace=request.namespace,
        workflow_id=workflow.id,
        workflow_type=request.workflow_type,
        task_queue=request.task_queue,
        status=RunStatus.PENDING,
        priority=request.priority,
        build_id=request.build_id,
        business_key=request.business_key,
        memo=request.memo,
        search_attributes=request.search_attributes,
        labels=request.labels,
        execution_timeout_seconds=request.execution_timeout_seconds,
        run_timeout_seconds=request.run_timeout_seconds,
        execution_deadline_at=execution_deadline_at,
        run_deadline_at=run_deadline_at,
        deadline_at=earliest(execution_deadline_at, run_deadline_at),
        created_at=now,
        last_progress_at=now,
        input_sequence=2,
        command_contract=contract,
    )


def _insert(run: Run, recorded: list[NewEvent], command_id: str, request: StartRequest, now: datetime) -> None:
    rows_of_history = []
    for sequence, event in enumerate(recorded, 1):
        text = dump_json(event.payload)
        rows_of_history.append(
            HistoryEvent(
                id=new_id(),
                run_id=run.id,
                sequence=sequence,
                event_type=event.event_type,
                payload=JSONText(text),
                payload_bytes=len(text.encode()),
                recorded_at=now,
                workflow_command_id=command_id,
            )
        )
    run.last_history_sequence = run.wake_sequence = len(recorded)
    run.history_bytes = sum(row.payload_bytes for row in rows_of_history)
    task = new_workflow_task(run, now)
    run.open_task_id = task.id
    command = WorkflowCommand(
        id=command_id,
        namespace=run.namespace,
        workflow_id=run.workflow_id,
        run_id=run.id,
        command_type="start",
        status=CommandStatus.ACCEPTED,
        outcome="started_new",
        principal_type=request.principal.type,
        principal_id=request.principal.id,
        created_at=now,
    )
    for row in (run, command, task):
        rows.insert([row])
    rows.insert(rows_of_history)
    hint_after_commit(task)


def _answer_existing(request: StartRequest, workflow_id: str) -> Started:
    found = starting.find_current_run(workflow_id)
    if found is None:
        raise AssertionError(f"workflow {workflow_id} exists without a run")
    identity = {"workflow_id": workflow_id}
    if found.namespace != request.namespace:
        raise Refusal(
            Reason.WORKFLOW_ID_RESERVED_IN_NAMESPACE,
            "This workflow id is taken in another namespace.",
            outcome="rejected_workflow_id_reserved_in_namespace",
            **identity,
        )
    if found.workflow_type != request.workflow_type:
        raise invalid({"workflow_type": ["This workflow id belongs to a workflow of another type."]})
    if request.duplicate_policy == "use-existing" and not is_terminal(found.status):
        return Started(run=found, command_id=None, is_new=False)
    raise Refusal(
        Reason.INSTANCE_ALREADY_STARTED,
        "A workflow with this id was started already.",
        outcome="rejected_duplicate",
        run_id=found.id,
        workflow_type=found.workflow_type,
        **identity,
    )
