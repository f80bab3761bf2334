"""Receipts of reports: what was recorded, and the proof that nothing was (docs/protocol/receipts.md)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from durable.models import CheckpointReceipt, CompletionReceipt, Task
from durable.refusals import Reason, Refusal

# Fields of a completion that ask for more work or repeat the fence: they play no part in "the same report".
_NOT_COMPARED = {"activity_poll", "workflow_poll", "lease_owner", "workflow_task_attempt", "activity_attempt_id"}

NOT_RECORDED_REASONS = frozenset({Reason.TASK_NOT_LEASED, Reason.RUN_CLOSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Who reports about which claim of which task."""

    namespace: str
    task_id: str
    lease_owner: str
    # Workflow tasks: the epoch. Activities are fenced by their attempt id instead.
    attempt: int = 0
    activity_attempt_id: str = ""


def body_digest(body: dict[str, Any]) -> str:
    """SHA-256 of a report's canonical JSON: key order does not matter, nor do fields that are not compared."""
    compared = {key: value for key, value in body.items() if key not in _NOT_COMPARED}
    text = json.dumps(compared, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def is_duplicate(receipt: CompletionReceipt | None, report: Report, attempt: int, *, outcome: str, digest: str) -> bool:
    """Whether this very report was recorded before.

    False when there is no receipt for this owner and attempt; refuses conflicting_completion when there is one for
    another body.
    """
    if receipt is None or (receipt.lease_owner, receipt.attempt_number) != (report.lease_owner, attempt):
        return False
    if (receipt.outcome, receipt.body_digest) == (outcome, digest):
        return True
    raise _conflicting_completion(report)


def check_same_checkpoint(receipt: CheckpointReceipt, report: Report, *, digest: str) -> None:
    """Refuse conflicting_completion when the claim has used this checkpoint id for another body."""
    if receipt.body_digest != digest:
        raise _conflicting_completion(report)


def _conflicting_completion(report: Report) -> Refusal:
    return Refusal(
        Reason.CONFLICTING_COMPLETION,
        "Another report was recorded for this claim already.",
        task_id=report.task_id,
        **({"activity_attempt_id": report.activity_attempt_id} if report.activity_attempt_id else
           {"workflow_task_attempt": report.attempt}),
    )  # fmt: skip


def checkpoint_receipt_id(report: Report, checkpoint_id: str) -> str:
    """The key of a checkpoint's receipt: a claim may use each checkpoint id once."""
    parts = (report.task_id, report.lease_owner, str(report.attempt), checkpoint_id)
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()


def new_receipt(
    task: Task, report: Report, *, now: datetime, outcome: str, digest: str, attempt_number: int
) -> CompletionReceipt:
    """The receipt of a report that is being recorded; the caller inserts it with the effects."""
    return CompletionReceipt(
        id=report.activity_attempt_id or task.id,
        namespace=task.namespace,
        kind=task.kind,
        task_id=task.id,
        run_id=task.run_id,
        lease_owner=report.lease_owner,
        attempt_number=attempt_number,
        outcome=outcome,
        body_digest=digest,
        recorded_at=now,
    )


def not_recorded(refusal: Refusal, task: Task, request_attempt: int) -> Refusal:
    """A workflow-task report's refusal with its not-recorded receipt; unchanged unless it is one of the two reasons.

    The identity is authoritative and overwrites whatever the refusal said; `task_status` is filled in only if missing.
    """
    if refusal.reason not in NOT_RECORDED_REASONS:
        return refusal
    fields = {"task_status": task.status, **refusal.fields}
    fields |= {
        "task_id": task.id,
        "workflow_task_attempt": int(request_attempt),
        "recorded": False,
        "run_id": task.run_id,
    }
    return Refusal(refusal.reason, refusal.message, **fields)
