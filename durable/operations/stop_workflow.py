"""Cancel or terminate: close a run at once, without running its code again (history.md 11.1 and 11.2)."""

from __future__ import annotations

from dataclasses import dataclass

from durable.changes import RunChanges
from durable.history import events
from durable.ids import new_id
from durable.models import Run, WorkflowCommand
from durable.operations.start_workflow import Principal
from durable.refusals import Reason, Refusal
from durable.run_closing import cancel_activities, cancel_tasks, lock_open_work
from durable.sql import locking, rows, starting
from durable.sql.transactions import transactional
from durable.states import ClosedReason, CommandStatus, RunStatus, is_terminal


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stop:
    command_type: str
    status: RunStatus
    closed_reason: ClosedReason


_STOPS = {
    "cancel": _Stop(command_type="cancel", status=RunStatus.CANCELLED, closed_reason=ClosedReason.CANCELLED),
    "terminate": _Stop(command_type="terminate", status=RunStatus.TERMINATED, closed_reason=ClosedReason.TERMINATED),
}


def cancel_workflow(target: WorkflowTarget, *, reason: str | None) -> CommandAccepted:
    """Close the run as cancelled. Refuses what `lock_current_run` refuses; changes nothing then."""
    return _stop(target, _STOPS["cancel"], reason)


def terminate_workflow(target: WorkflowTarget, *, reason: str | None) -> CommandAccepted:
    """Close the run as terminated. Refuses what `lock_current_run` refuses; changes nothing then."""
    return _stop(target, _STOPS["terminate"], reason)


@transactional
def _stop(target: WorkflowTarget, stop: _Stop, reason: str | None) -> CommandAccepted:
    run = lock_current_run(target)
    work = lock_open_work(run)
    changes = RunChanges(run, work.now)
    command_id = new_id()
    changes.append(events.stop_requested(run, command_type=stop.command_type, command_id=command_id, reason=reason))
    cancel_tasks(work.tasks, work.now)
    cancel_activities(changes, command_id=command_id, with_events=True)
    event = events.workflow_stopped(
        run, closed_reason=stop.closed_reason, command_id=command_id, failure_id=new_id(), reason=reason
    )
    sequence = changes.append(event)
    changes.add_failure(source_kind="workflow_run", source_id=run.id, sequence=sequence, payload=event.payload)
    changes.close(status=stop.status, closed_reason=stop.closed_reason)
    changes.save()
    return record_command(target, changes, command_id, stop.command_type, outcome=stop.closed_reason, reason=reason)


def lock_current_run(target: WorkflowTarget) -> Run:
    """The workflow's current run, open and locked; if it moved to another run meanwhile, that one (three tries).

    Refuses instance_not_found, run_not_found, historical_run_command_rejected, run_not_active.
    """
    for _ in range(3):
        current = starting.find_current_run(target.workflow_id)
        if current is None or current.namespace != target.namespace:
            raise Refusal(
                Reason.INSTANCE_NOT_FOUND,
                "There is no such workflow in this namespace.",
                workflow_id=target.workflow_id,
            )
        if target.run_id is not None and target.run_id != current.id:
            _refuse_other_run(target)
        run = locking.lock_run(current.id)
        if run is None:
            raise AssertionError(f"run {current.id} vanished")
        latest = starting.find_current_run(target.workflow_id)
        if latest is not None and latest.id == run.id:
            return _refuse_closed(target, run)
    raise Refusal(
        Reason.RUN_NOT_ACTIVE,
        "The workflow kept moving to new runs.",
        workflow_id=target.workflow_id,
        is_terminal=False,
    )


def _refuse_other_run(target: WorkflowTarget) -> None:
    identity = {"workflow_id": target.workflow_id, "run_id": target.run_id}
    if not Run.objects.filter(id=target.run_id, workflow_id=target.workflow_id, namespace=target.namespace).exists():
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
