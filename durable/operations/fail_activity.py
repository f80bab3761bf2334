"""Fail an activity attempt: another one follows, or the step has failed (docs/protocol/worker-protocol.md 8.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from durable.activity_outcomes import end_attempt, end_task, fail_step, schedule_retry
from durable.changes import RunChanges
from durable.commands.retry import is_final
from durable.guards import LockedActivityTask, check_activity_report, lock_activity_task
from durable.operations.complete_activity import ActivityReported, answer, write_receipt
from durable.receipts import Report, body_digest, is_duplicate
from durable.sql.transactions import transactional
from durable.states import AttemptStatus, TaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityFailure:
    """What a worker says went wrong with an attempt; `details` is a payload envelope or text."""

    message: str
    type: str | None = None
    class_name: str | None = None
    code: int | None = None
    non_retryable: bool = False
    kind: str | None = None
    stack_trace: str | None = None
    details: Any = None
    diagnostics: Any = None
    timeout_type: str | None = None
    cancelled: bool = False

    def event_fields(self) -> dict[str, Any]:
        """The failure as events carry it: flat fields for replay, and the whole exception."""
        exception = {
            "type": self.type,
            "class": self.class_name,
            "message": self.message,
            "code": self.code,
            "non_retryable": self.non_retryable,
            "details": self.details,
            "details_payload_codec": self.details.get("codec") if isinstance(self.details, dict) else None,
            "diagnostics": self.diagnostics,
            "stack_trace": self.stack_trace,
            "kind": self.kind,
            "timeout_type": self.timeout_type,
        }
        return {
            "exception_type": self.type,
            "exception_class": self.class_name,
            "message": self.message,
            "code": self.code,
            "exception": {name: value for name, value in exception.items() if value is not None},
        }


@transactional
def fail_activity(report: Report, failure: ActivityFailure, body: dict[str, Any]) -> ActivityReported:
    """Record the failure of the attempt its worker holds; `body` is the request as it was sent.

    Retried under a new task unless the failure is non-retryable, the policy names its type, or attempts ran out.
    Refuses what the guard refuses; an identical repeat is a duplicate.
    """
    digest = body_digest(body)
    locked = lock_activity_task(report)
    if is_duplicate(locked.receipt, report, locked.attempt.attempt_number, outcome="failed", digest=digest):
        return answer(report, "failed", None, is_duplicate=True)
    if refusal := check_activity_report(report, locked):
        raise refusal
    changes = RunChanges(locked.run, locked.now)
    retry_task_id = _record_failure(changes, locked, failure)
    changes.save()
    write_receipt(report, locked, outcome="failed", digest=digest)
    return answer(report, "failed", retry_task_id or changes.next_task_id, is_duplicate=False)


def _record_failure(changes: RunChanges, locked: LockedActivityTask, failure: ActivityFailure) -> str | None:
    execution, attempt = locked.execution, locked.attempt
    execution.attempt_count = attempt.attempt_number
    final = is_final(
        execution.retry_policy,
        after_attempt=attempt.attempt_number,
        non_retryable=failure.non_retryable,
        names=(failure.type, failure.class_name),
    )
    retry_task_id = None
    if final:
        category = "cancelled" if failure.cancelled else "activity"
        payload = {"failure_category": category, "non_retryable": failure.non_retryable, **failure.event_fields()}
        fail_step(changes, execution, attempt, payload)
    else:
        retry = schedule_retry(
            changes,
            execution,
            attempt,
            locked.task,
            attempt_number=attempt.attempt_number,
            retry_reason="failure",
            failure=failure.event_fields(),
        )
        retry_task_id = retry.id
    end_attempt(attempt, AttemptStatus.FAILED, changes.now)
    end_task(locked.task, TaskStatus.COMPLETED, changes.now)
    return retry_task_id
