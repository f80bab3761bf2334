"""Further history pages of a claim (docs/protocol/worker-protocol.md 7.2). Reads only; ends at the claim's snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from durable.guards import check_workflow_task, task_not_found, workflow_identity
from durable.history.pages import HistoryPage, decode_token, load_page
from durable.receipts import Report
from durable.sql import claiming
from durable.states import TaskKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHistory:
    """One page, and how many events the claim may see in all."""

    page: HistoryPage
    total_history_events: int


def read_task_history(report: Report, *, page_token: str, page_size: int | None) -> TaskHistory:
    """The page after a token, within what the claim may see. Refuses as the guard does, and invalid_page_token."""
    after_sequence = decode_token(page_token)
    facts = claiming.read_task_facts(report.task_id, kind=TaskKind.WORKFLOW, worker_id=report.lease_owner)
    if facts is None or facts.task.namespace != report.namespace or facts.task.kind != TaskKind.WORKFLOW:
        raise task_not_found(report, **workflow_identity(report))
    if refusal := check_workflow_task(report, facts.task, facts.run, facts.now):
        raise refusal
    page = load_page(
        facts.run.id,
        after_sequence=after_sequence,
        through_sequence=facts.task.visible_sequence,
        size=page_size,
        history_bytes=facts.run.history_bytes,
    )
    return TaskHistory(page=page, total_history_events=facts.task.visible_sequence)
