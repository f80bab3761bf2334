"""Reads for clients and operators: lists by key, descriptions, histories (docs/protocol/control-plane.md 7.2 to 7.5).

Off the hot path, so they use the ORM. Lists never select payloads and never count a table.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from durable.history.pages import decode_token, encode_token
from durable.history.times import stamp
from durable.ids import is_id
from durable.models import HistoryEvent, Run, Task, Workflow, WorkflowCommand
from durable.refusals import Reason, Refusal, invalid
from durable.sql import listing
from durable.sql.history import StoredEvent, read_page
from durable.sql.rows import aware
from durable.states import STATUS_BUCKETS, TaskStatus

_LIST_COLUMNS = (
    "id", "namespace", "workflow_id", "run_number", "workflow_type", "business_key", "status", "closed_reason",
    "task_queue", "build_id", "created_at", "started_at", "closed_at", "last_progress_at", "search_attributes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RunList:
    """A page of runs, newest first."""

    runs: list[Run]
    next_page_token: str | None


def list_runs(
    namespace: str, *, workflow_type: str | None, status: str | None, search: str | None, page_size: int,
    page_token: str | None,
) -> RunList:  # fmt: skip
    """Runs of a namespace, one row a run, by keyset. `status` is a bucket; `search` the beginning of a workflow id.

    Refuses validation_failed for a status that is no bucket or a token that is not ours.
    """
    if status and status not in STATUS_BUCKETS:
        raise invalid({"status": [f"This must be one of: {', '.join(STATUS_BUCKETS)}."]})
    before = _read_list_token(page_token) if page_token else None
    found = listing.run_ids_beginning_with(search, _MOST_SEARCHED + 1) if search else []
    keys: list[listing.Key] = []
    for one in STATUS_BUCKETS[status] if status else (None,):
        if search and len(found) <= _MOST_SEARCHED:
            keys += listing.newest_of(
                found, namespace, workflow_type=workflow_type, status=one, before=before, count=page_size + 1
            )
        else:
            keys += listing.newest_runs(
                namespace, workflow_type=workflow_type, status=one, begins_with=search, before=before,
                count=page_size + 1,
            )  # fmt: skip
    keys.sort(reverse=True)
    rows = Run.objects.only(*_LIST_COLUMNS).in_bulk([run_id for _, run_id in keys[:page_size]])
    return RunList(
        runs=[rows[run_id] for _, run_id in keys[:page_size] if run_id in rows],
        next_page_token=_list_token(*keys[page_size - 1]) if len(keys) > page_size else None,
    )


# A search that matches at most this many runs is answered from them; a wider one from the list, newest first.
_MOST_SEARCHED = 1000


def _list_token(created_at: datetime, run_id: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([stamp(created_at), run_id]).encode()).decode()


def _read_list_token(token: str) -> tuple[datetime, str]:
    try:
        moment, run_id = json.loads(base64.urlsafe_b64decode(token.encode()))
        created_at = aware(moment.replace("Z", "+00:00"))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise invalid({"next_page_token": ["This is not a page token of this list."]}) from error
    if created_at is None or not isinstance(run_id, str):
        raise invalid({"next_page_token": ["This is not a page token of this list."]})
    return created_at, run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDescription:
    """A run with what a client is shown of it."""

    run: Run
    run_count: int
    is_current: bool
    # Whether a worker has the run's workflow task now; derived, never stored.
    is_running: bool
    input: dict[str, Any] | None
    output: dict[str, Any] | None


def find_workflow(namespace: str, workflow_id: str) -> Workflow:
    """Refuses instance_not_found; another namespace's id is not found either."""
    found = Workflow.objects.filter(id=workflow_id, namespace=namespace).first() if is_id(workflow_id) else None
    if found is None:
        raise Refusal(
            Reason.INSTANCE_NOT_FOUND, "There is no such workflow in this namespace.", workflow_id=workflow_id
        )
    return found


def find_run(workflow: Workflow, run_id: str | None) -> Run:
    """One run of a workflow, the current one by default. Refuses run_not_found."""
    wanted = run_id or workflow.current_run_id
    found = Run.objects.filter(id=wanted, workflow_id=workflow.id).first() if is_id(wanted) else None
    if found is None:
        raise Refusal(Reason.RUN_NOT_FOUND, "This workflow has no such run.", workflow_id=workflow.id, run_id=run_id)
    return found


def describe_run(namespace: str, workflow_id: str, run_id: str | None = None) -> RunDescription:
    """Everything about one run. Refuses instance_not_found, run_not_found."""
    workflow = find_workflow(namespace, workflow_id)
    run = find_run(workflow, run_id)
    sequences = [sequence for sequence in (run.input_sequence, run.outcome_sequence) if sequence]
    payloads = dict(
        HistoryEvent.objects.filter(run_id=run.id, sequence__in=sequences).values_list("sequence", "payload")
    )
    return RunDescription(
        run=run,
        run_count=workflow.run_count,
        is_current=run.id == workflow.current_run_id,
        is_running=Task.objects.filter(id=run.open_task_id, status=TaskStatus.LEASED).exists(),
        input=(payloads.get(run.input_sequence or 0) or {}).get("arguments"),
        output=(payloads.get(run.outcome_sequence or 0) or {}).get("output"),
    )


def list_workflow_runs(namespace: str, workflow_id: str) -> tuple[Workflow, list[Run]]:
    """All runs of a workflow, oldest first. Refuses instance_not_found."""
    workflow = find_workflow(namespace, workflow_id)
    return workflow, list(Run.objects.filter(workflow_id=workflow.id).only(*_LIST_COLUMNS).order_by("run_number"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """A page of a run's history; `principals` maps command ids to who gave the command."""

    run: Run
    events: list[StoredEvent]
    principals: dict[str, WorkflowCommand]
    next_page_token: str | None


def read_run_history(
    namespace: str, workflow_id: str, run_id: str, *, page_size: int, page_token: str | None, page_bytes: int
) -> RunHistory:
    """Refuses instance_not_found, run_not_found, invalid_page_token."""
    after_sequence = decode_token(page_token)
    run = find_run(find_workflow(namespace, workflow_id), run_id)
    events = read_page(
        run.id,
        after_sequence=after_sequence,
        through_sequence=run.last_history_sequence,
        count=page_size,
        max_bytes=page_bytes,
        history_bytes=run.history_bytes,
    )
    last = events[-1].sequence if events else run.last_history_sequence
    command_ids = {event.workflow_command_id for event in events if event.workflow_command_id}
    return RunHistory(
        run=run,
        events=events,
        principals=WorkflowCommand.objects.in_bulk(command_ids),
        next_page_token=encode_token(last) if last < run.last_history_sequence else None,
    )
