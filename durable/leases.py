"""A lease as its worker gets it: the claimed task's body and, for a workflow task, the first page of its history."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from durable.claims import Claimed
from durable.history.pages import HistoryPage, load_page
from durable.states import TaskKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """A lease, new or replayed. `page` is the first history page of a workflow task."""

    claimed: Claimed
    page: HistoryPage | None
    # The database's time when the answer was put together: after the claim committed.
    server_time: datetime
    # Whether this is the replay of an earlier claim.
    is_replay: bool


def read_lease(claimed: Claimed, *, history_page_size: int | None, is_replay: bool) -> Leased:
    """What a committed claim hands out: one more read for a workflow task, none for an activity."""
    facts, page = claimed.facts, None
    if facts.task.kind == TaskKind.WORKFLOW:
        page = load_page(
            facts.run.id,
            after_sequence=0,
            through_sequence=facts.task.visible_sequence,
            size=history_page_size,
            history_bytes=facts.run.history_bytes,
        )
    return Leased(claimed=claimed, page=page, server_time=facts.clock.now(), is_replay=is_replay)
