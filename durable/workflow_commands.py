"""What commands on a workflow share: who they are for, who gave them, and that a repeated one is answered as before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec

from durable.changes import RunChanges
from durable.ids import is_id
from durable.models import Run, WorkflowCommand
from durable.principals import Principal
from durable.refusals import Reason, Refusal
from durable.sql import locking, rows, starting
from durable.states import CommandStatus, is_terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTarget:
    """A workflow by id, or one run of it that must be the current one. `request_id` is kept with the command."""

    namespace: str
    workflow_id: str
    run_id: str | None = None
    principal: Principal
    request_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAccepted:
    """An external command that was carried out."""

    run: Run
    command_id: str
    outcome: str


class RunMovedError(Exception):
    """The workflow went on to another run between finding its current one and locking it."""


P = ParamSpec("P")


def following_moves(operation: Callable[P, CommandAccepted]) -> Callable[P, CommandAccepted]:
    """Run the whole transaction again if the workflow moved to another run, at most three times (concurrency.md 18)."""

    @wraps(operation)
    def run(*args: P.args, **kwargs: P.kwargs) -> CommandAccepted:
        for _ in range(2):
            try:
                return operation(*args, **kwargs)
            except RunMovedError:
                continue
        return operation(*args, **kwargs)

    return run


def begin_command(target: WorkflowTarget, command_type: str) -> Run | CommandAccepted:
    """The workflow's current run, open and locked; or the answer that this request id was given before.

    Raises RunMovedError when the workflow moved on meanwhile. Refuses instance_not_found, run_not_found,
    historical_run_command_rejected, run_not_active.
    """
    current = starting.find_current_run(target.workflow_id)
    if current is None or current.namespace != target.namespace:
        raise Refusal(
            Reason.INSTANCE_NOT_FOUND, "There is no such workflow in this namespace.", workflow_id=target.workflow_id
        )
    if target.run_id is not None and target.run_id != current.id:
        _refuse_other_run(target)
    run = locking.lock_run(current.id)
    latest = starting.find_current_run(target.workflow_id)
    if run is None or latest is None or latest.id != run.id:
        raise RunMovedError(target.workflow_id)
    if (earlier := _earlier_answer(target, command_type)) is not None:
        return earlier
    return _refuse_closed(target, run)


def _earlier_answer(target: WorkflowTarget, command_type: str) -> CommandAccepted | None:
    """A client that lost the answer asks again under the same request id: it gets the same one."""
    if target.request_id is None:
        return None
    command = WorkflowCommand.objects.filter(
        workflow_id=target.workflow_id, command_type=command_type, request_id=target.request_id
    ).first()
    if command is None:
        return None
    run = Run.objects.get(id=command.run_id)
    return CommandAccepted(run=run, command_id=command.id, outcome=command.outcome)


def _refuse_other_run(target: WorkflowTarget) -> None:
    identity = {"workflow_id": target.workflow_id, "run_id": target.run_id}
    of_workflow = Run.objects.filter(workflow_id=target.workflow_id, namespace=target.namespace)
    if not is_id(target.run_id or "") or not of_workflow.filter(id=target.run_id).exists():
        raise Refusal(Reason.RUN_NOT_FOUND, "This workflow has no such run.", **identity)
    raise Refusal(
        Reason.HISTORICAL_RUN_COMMAND_REJECTED,
        "The run is not the workflow's current one.",
        target_scope="run",
        outcome="rejected_not_current",
        **identity,
    )


def _refuse_closed(target: WorkflowTarget, run: Run) -> Run:
    if is_terminal(run.status):
        raise Refusal(
            Reason.RUN_NOT_ACTIVE,
            "The run is closed.",
            workflow_id=target.workflow_id,
            run_id=run.id,
            run_status=run.status,
            is_terminal=True,
            outcome="rejected_not_active",
        )
    return run


def record_command(
    target: WorkflowTarget, changes: RunChanges, command_id: str, command_type: str, *, outcome: str, reason: str | None
) -> CommandAccepted:
    """Keep an accepted command with who asked and why."""
    rows.insert(
        [
            WorkflowCommand(
                id=command_id,
                namespace=target.namespace,
                workflow_id=target.workflow_id,
                run_id=changes.run.id,
                command_type=command_type,
                status=CommandStatus.ACCEPTED,
                outcome=outcome,
                reason=reason,
                request_id=target.request_id,
                principal_type=target.principal.type,
                principal_id=target.principal.id,
                created_at=changes.now,
            )
        ]
    )
    return CommandAccepted(run=changes.run, command_id=command_id, outcome=outcome)
