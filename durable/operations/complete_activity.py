"""Complete an activity: its result becomes history and the run goes on (docs/protocol/worker-protocol.md 8.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from durable import conf
from durable.activity_outcomes import close_step, end_attempt, end_task, fail_step
from durable.carried_polls import (
    NO_RESULTS,
    NOTHING_CARRIED,
    CarriedOutcome,
    CarriedPolls,
    CarriedResults,
    claim_carried,
    fetch_wanted,
    unserved,
)
from durable.changes import RunChanges
from durable.commands.fields import envelope_bytes, envelope_fault
from durable.guards import LockedActivityTask, check_activity_report, lock_activity_task
from durable.history import events
from durable.receipts import Report, body_digest, is_duplicate, new_receipt
from durable.refusals import invalid
from durable.sql import rows
from durable.sql.transactions import transactional
from durable.states import ActivityStatus, AttemptStatus, TaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityReported:
    """The answer to a complete or fail report; `next_task_id` names the task that this report created, if any."""

    task_id: str
    activity_attempt_id: str
    outcome: str
    next_task_id: str | None
    is_duplicate: bool
    carried: CarriedResults = NO_RESULTS


def complete_activity(
    report: Report, body: dict[str, Any], carried: CarriedPolls = NOTHING_CARRIED
) -> ActivityReported:
    """Record the result of the attempt its worker holds; `body` is the request as it was sent.

    A result over the payload limit is recorded as a failure of the activity (`structural_limit`): the worker's part is
    done either way. Refuses validation_failed and what the guard refuses; an identical repeat is a duplicate. The poll
    it carries is claimed for at the end of the same transaction; a duplicate claims for none.
    """
    result = body.get("result")
    if result is not None and (fault := envelope_fault(result)):
        raise invalid({"result": [fault]})
    done = _complete(report, result, body_digest(body), carried)
    return replace(done, carried=fetch_wanted(done.carried))


@transactional
def _complete(report: Report, result: dict[str, Any] | None, digest: str, carried: CarriedPolls) -> ActivityReported:
    locked = lock_activity_task(report)
    if is_duplicate(locked.receipt, report, locked.attempt.attempt_number, outcome="completed", digest=digest):
        unclaimed = unserved(carried, CarriedOutcome.NOT_ATTEMPTED)
        return replace(answer(report, "completed", None, is_duplicate=True), carried=unclaimed)
    if refusal := check_activity_report(report, locked):
        raise refusal
    owner = locked.attempt.lease_owner
    changes = RunChanges(locked.run, locked.now)
    locked.execution.attempt_count = locked.attempt.attempt_number
    _record_result(changes, locked, result)
    changes.save()
    write_receipt(report, locked, outcome="completed", digest=digest)
    results = claim_carried(carried, owner=owner)
    changes.note_leased(results.leased_task_ids)
    return replace(answer(report, "completed", changes.next_task_id, is_duplicate=False), carried=results)


def _record_result(changes: RunChanges, locked: LockedActivityTask, result: dict[str, Any] | None) -> None:
    execution, attempt = locked.execution, locked.attempt
    size, most = envelope_bytes(result), conf.current().payload_size_bytes
    if most and size > most:
        failure = {
            "failure_category": "structural_limit",
            "non_retryable": True,
            "exception_type": "StructuralLimitExceeded",
            "exception_class": "StructuralLimitExceeded",
            "message": f"The activity's result has {size} encoded bytes; at most {most} are allowed.",
            "structural_limit_kind": "payload_size_bytes",
            "structural_limit_value": size,
            "structural_limit_configured": most,
        }
        fail_step(changes, execution, attempt, failure)
        end_attempt(attempt, AttemptStatus.FAILED, changes.now)
    else:
        for event in events.held_back(execution, attempt):
            changes.append(event)
        sequence = changes.append(events.activity_completed(execution, attempt, result))
        close_step(changes, execution, ActivityStatus.COMPLETED, sequence)
        end_attempt(attempt, AttemptStatus.COMPLETED, changes.now)
    end_task(locked.task, TaskStatus.COMPLETED, changes.now)


def write_receipt(report: Report, locked: LockedActivityTask, *, outcome: str, digest: str) -> None:
    """The proof that this attempt's report was recorded, in the same transaction."""
    rows.insert(
        [
            new_receipt(
                locked.task,
                report,
                now=locked.now,
                outcome=outcome,
                digest=digest,
                attempt_number=locked.attempt.attempt_number,
            )
        ]
    )


def answer(report: Report, outcome: str, next_task_id: str | None, *, is_duplicate: bool) -> ActivityReported:
    return ActivityReported(
        task_id=report.task_id,
        activity_attempt_id=report.activity_attempt_id,
        outcome=outcome,
        next_task_id=next_task_id,
        is_duplicate=is_duplicate,
    )
