"""`complete_workflow` and `fail_workflow`: how workflow code ends its run (docs/protocol/history.md 5.5 and 5.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from durable.commands.batch import Batch
from durable.commands.fields import Fields, envelope_bytes
from durable.commands.registry import CommandType, register
from durable.history import events
from durable.ids import new_id
from durable.models import ActivityExecution
from durable.states import ClosedReason, RunStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteWorkflow:
    """A validated `complete_workflow`."""

    result: dict[str, Any] | None


def _validate_complete(fields: Fields) -> CompleteWorkflow:
    return CompleteWorkflow(result=fields.envelope("result"))


def _apply_complete(batch: Batch, command: CompleteWorkflow) -> None:
    batch.check_payload(envelope_bytes(command.result))
    batch.changes.append(events.workflow_completed(command.result, batch.task.id))
    batch.changes.close(status=RunStatus.COMPLETED, closed_reason=ClosedReason.COMPLETED)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailWorkflow:
    """A validated `fail_workflow`; the `exception` object's own fields win over the flat ones."""

    message: str
    exception_type: str | None
    exception_class: str | None
    exception: dict[str, Any] | None
    non_retryable: bool
    failed_step_sequence: int | None
    failed_activity_execution_id: str | None


def _validate_fail(fields: Fields) -> FailWorkflow | None:
    message = fields.message(required=True)
    exception = fields.mapping("exception")
    inner = exception or {}
    exception_type = inner.get("type") or fields.text("exception_type", longest=1000)
    exception_class = inner.get("class") or fields.text("exception_class", longest=1000)
    non_retryable = fields.flag("non_retryable")
    failed_step_sequence = fields.whole("failed_step_sequence", least=1)
    failed_activity_execution_id = fields.text("failed_activity_execution_id")
    if message is None:
        return None
    return FailWorkflow(
        message=str(inner.get("message") or message or exception_type or "The workflow failed."),
        exception_type=exception_type,
        exception_class=exception_class,
        exception=exception,
        non_retryable=non_retryable,
        failed_step_sequence=failed_step_sequence,
        failed_activity_execution_id=failed_activity_execution_id,
    )


def _names_own_step(run_id: str, command: FailWorkflow) -> bool:
    """Whether the step that the command blames is one of this run's activities; a wrong pair is ignored."""
    if command.failed_step_sequence is None or command.failed_activity_execution_id is None:
        return False
    return ActivityExecution.objects.filter(
        id=command.failed_activity_execution_id, run_id=run_id, step_number=command.failed_step_sequence
    ).exists()


def _apply_fail(batch: Batch, command: FailWorkflow) -> None:
    changes, run = batch.changes, batch.changes.run
    has_step = _names_own_step(run.id, command)
    payload: dict[str, Any] = {
        "failure_id": new_id(),
        "failure_category": "application",
        "source_kind": "activity_execution" if has_step else "workflow_run",
        "source_id": command.failed_activity_execution_id if has_step else run.id,
        "non_retryable": command.non_retryable,
        "exception_type": command.exception_type,
        "exception_class": command.exception_class,
        "message": command.message,
        "exception": command.exception,
    }
    if has_step:
        payload |= {"failed_step_sequence": command.failed_step_sequence, "failed_step_kind": "activity"}
    sequence = changes.append(events.workflow_failed(payload, batch.task.id))
    changes.add_failure(source_kind="workflow_run", source_id=run.id, sequence=sequence, payload=payload)
    changes.close(status=RunStatus.FAILED, closed_reason=ClosedReason.FAILED)


register(CommandType(name="complete_workflow", validate=_validate_complete, apply=_apply_complete, is_terminal=True))
register(
    CommandType(
        name="fail_workflow",
        validate=_validate_fail,
        apply=_apply_fail,
        is_terminal=True,
        owns=frozenset({"non_retryable", "exception"}),
    )
)
