"""Reading history pages: by key, bounded by count and by bytes, payloads sent as they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from durable.jsontext import JSONText
from durable.models import HistoryEvent
from durable.sql.rows import fetch_all, known

_TABLE = HistoryEvent._meta.db_table
_COLUMNS = "e.id, e.sequence, e.event_type, e.payload, e.recorded_at, e.workflow_task_id, e.workflow_command_id"

# Served by the unique key (run_id, sequence) on each database.
_PAGE = (
    f"SELECT {_COLUMNS} FROM {_TABLE} e WHERE e.run_id = %s AND e.sequence > %s AND e.sequence <= %s"
    " ORDER BY e.sequence LIMIT %s"
)
# The running total is taken over sizes only; payloads are fetched for the rows that fit, and for the first in any case.
_PAGE_WITHIN_BYTES = (
    f"SELECT {_COLUMNS} FROM (SELECT p.sequence, p.payload_bytes, SUM(p.payload_bytes) OVER (ORDER BY p.sequence)"
    f" AS total_bytes FROM (SELECT q.sequence, q.payload_bytes FROM {_TABLE} q WHERE q.run_id = %s AND q.sequence > %s"
    " AND q.sequence <= %s ORDER BY q.sequence LIMIT %s) p) s"
    f" JOIN {_TABLE} e ON e.run_id = %s AND e.sequence = s.sequence"
    " WHERE s.total_bytes <= %s OR s.total_bytes = s.payload_bytes ORDER BY e.sequence"
)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as a page sends it: the payload stays the text it was stored as."""

    id: str
    sequence: int
    event_type: str
    payload: JSONText
    recorded_at: datetime
    workflow_task_id: str | None
    workflow_command_id: str | None


def read_page(
    run_id: str, *, after_sequence: int, through_sequence: int, count: int, max_bytes: int, history_bytes: int
) -> list[StoredEvent]:
    """Events after one sequence and through another: at most `count` and `max_bytes`, at least one if any.

    `history_bytes` is the size of the run's whole history; only one larger than a page needs byte accounting.
    """
    if history_bytes <= max_bytes:
        rows = fetch_all(_PAGE, (run_id, after_sequence, through_sequence, count))
    else:
        parameters = (run_id, after_sequence, through_sequence, count, run_id, max_bytes)
        rows = fetch_all(_PAGE_WITHIN_BYTES, parameters)
    return [_stored(*row) for row in rows]


def _stored(
    id_: str,
    sequence: int,
    event_type: str,
    payload: str,
    recorded_at: object,
    workflow_task_id: str | None,
    workflow_command_id: str | None,
) -> StoredEvent:
    moment = known(recorded_at)
    return StoredEvent(id_, sequence, event_type, JSONText(payload), moment, workflow_task_id, workflow_command_id)
