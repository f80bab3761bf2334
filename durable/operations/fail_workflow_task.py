"""Fail a workflow task: a worker's failure report, or its word that it waits for history (worker-protocol.md 7.6)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from durable import conf
from durable.changes import RunChanges
from durable.guards import lock_workflow_task
from durable.models import Task
from durable.operations.complete_workflow_task import check_live, finish_claim
from durable.operations.time_out_run import RunPastDeadlineError, time_out_run
from durable.receipts import Report
from durable.sql.transactions import transactional
from durable.states import TaskStatus

_WAITING_TYPE = "workflowtaskwaitingforhistory"
_WAITING_MESSAGE = "workflow task waiting for scheduled history"

# Reasons that say "replaying this would fail again": retrying would loop for ever.
_REPLAY_REASONS = re.compile(
    r"activity_\w+_mismatch|child_workflow_identity_mismatch|condition_wait_\w+|continue_as_new_sequence_missing"
    r"|duplicate_memo_upsert_record|duplicate_version_marker(_record)?|durable_command_sequence_\w+|memo_\w+"
    r"|parallel_group_\w+|recorded_command_\w+|recorded_commands_unconsumed|recorded_continue_as_new_unconsumed"
    r"|search_attribute_\w+|side_effect_\w+|signal_wait_\w+|timer_\w+_mismatch|timer_history_field_missing"
    r"|unsupported_payload_codec|version_\w+|workflow_nondeterministic"
)
_REPLAY_TEXTS = (
    "nondetermin",
    "non-determin",
    "determinism",
    "replay error",
    "replay failed",
    "history shape",
    "history mismatch",
    "invalidargument",
    "servererror",
    "unexpected history",
    "validationexception",
    "cannot decode workflow start input",
    "cannot replay workflow history",
    "unsupported payload codec",
    "unsupported_payload_codec",
    "workflow task completion failed after commands were produced",
    "no workflow registered",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    """What a worker says went wrong."""

    message: str
    type: str | None = None
    reason: str | None = None
    stack_trace: str | None = None
    sequence: int | None = None

    def is_waiting(self) -> bool:
        """Not a failure at all: the code has no command to give until something happens."""
        return (self.type or "").strip().lower() == _WAITING_TYPE or self.message.lower().startswith(_WAITING_MESSAGE)

    def blocks_run(self) -> bool:
        """Whether replaying the task again would fail the same way."""
        reason = (self.reason or "").strip(" \t\r\n\f\v").lower()
        if reason and _REPLAY_REASONS.fullmatch(reason):
            return True
        text = f"{_cut(self.type or '', 512)} {_cut(self.message, 4096)}".lower()
        return any(part in text for part in _REPLAY_TEXTS)

    def as_json(self) -> dict[str, Any]:
        """What operators see on the failed task."""
        fields = {"message": self.message, "type": self.type, "reason": self.reason, "stack_trace": self.stack_trace,
                  "sequence": self.sequence}  # fmt: skip
        return {name: value for name, value in fields.items() if value is not None}


def _cut(text: str, most_bytes: int) -> str:
    return text.encode()[:most_bytes].decode(errors="ignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTaskFailed:
    """The answer: `outcome` is `waiting_for_history` or `failed`; `next_task_id` names the task that follows."""

    task_id: str
    workflow_task_attempt: int
    outcome: str
    next_task_id: str | None


def fail_workflow_task(report: Report, failure: TaskFailure) -> WorkflowTaskFailed:
    """Record a failure report, or a waiting report, for the claim its worker holds. No history event is written.

    Waiting: the task is finished, and the next one follows at once if something happened that the claim was not shown.
    An ordinary failure is tried again under a new task that carries the attempt counter, from the second on after a
    back-off. A replay failure blocks the run until repair or new work. Refuses what the guard refuses;
    task_not_leased and run_closed with the not-recorded receipt.
    """
    try:
        return _fail(report, failure)
    except RunPastDeadlineError as error:
        time_out_run(error.run_id)
        return _fail(report, failure)


@transactional
def _fail(report: Report, failure: TaskFailure) -> WorkflowTaskFailed:
    locked = lock_workflow_task(report)
    run, task = locked.run, locked.task
    check_live(report, locked)
    changes = RunChanges(run, locked.now)
    if failure.is_waiting():
        finish_claim(changes, task, TaskStatus.COMPLETED)
        return _answer(report, "waiting_for_history", changes)
    if failure.blocks_run():
        reason = (failure.reason or failure.message)[:1000]
        changes.set(blocked_at=changes.now, blocked_reason=reason)
        finish_claim(changes, task, TaskStatus.FAILED, last_error=failure.as_json(), create_next=False)
        return _answer(report, "failed", changes)
    finish_claim(changes, task, TaskStatus.FAILED, last_error=failure.as_json(), **_retry_of(task, changes, failure))
    return _answer(report, "failed", changes)


def _retry_of(task: Task, changes: RunChanges, failure: TaskFailure) -> dict[str, Any]:
    failure_count = task.failure_count + 1
    seconds = min(conf.current().workflow_task_backoff_max_seconds, 2 ** min(failure_count - 1, 30))
    delay = timedelta(seconds=seconds if failure_count > 1 else 0)
    return {
        "attempt_count": task.attempt_count,
        "failure_count": failure_count,
        "available_at": changes.now + delay,
    }


def _answer(report: Report, outcome: str, changes: RunChanges) -> WorkflowTaskFailed:
    return WorkflowTaskFailed(
        task_id=report.task_id,
        workflow_task_attempt=report.attempt,
        outcome=outcome,
        next_task_id=changes.next_task_id,
    )
