"""Poll: look for a task, lease it, and fetch what its worker needs (docs/protocol/worker-protocol.md 5 and 6).

Two steps, because only the second writes: on SQLite they run in different threads. Neither waits for work; whoever
serves the poll parks it between tries (durable.wakeups).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from durable import claims
from durable.claims import Claimed, NothingReadyError, PollRequest
from durable.history.pages import HistoryPage, load_page
from durable.models import WorkerRegistration
from durable.refusals import Reason, Refusal
from durable.sql import claiming
from durable.sql.claiming import Candidate
from durable.sql.clock import ClockReading
from durable.sql.transactions import transactional
from durable.states import TaskKind
from durable.wakeups.hints import publish


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """A lease, new or replayed. `page` is the first history page of a workflow task."""

    claimed: Claimed
    page: HistoryPage | None
    # The database's time when the answer was put together: after the claim committed.
    server_time: datetime
    # Whether this is the replay of an earlier claim.
    is_replay: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Something to lock was seen."""

    worker: WorkerRegistration
    candidates: list[Candidate]
    clock: ClockReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """Nothing for this worker now. `was_busy`: another request with this poll id is being served, look again soon."""

    worker: WorkerRegistration
    clock: ClockReading
    was_busy: bool = False


def look(request: PollRequest, *, history_page_size: int | None = None) -> Leased | Ready | Nothing:
    """Admit the poll, replay the lease of its id, or see whether something is ready. Two reads when empty; no writes.

    Refuses what `claims.admit` and `claims.replay` refuse, and worker_draining.
    """
    facts = claiming.look_up_poll(request.namespace, request.worker_id, request.receipt_id)
    worker = claims.admit(request, facts.worker, facts.clock.moment)
    if (found := claims.replay(request, facts)) is not None:
        return _leased(found, history_page_size, is_replay=True)
    claims.refuse_draining(worker)
    return look_again(request, Nothing(worker=worker, clock=facts.clock))


def look_again(request: PollRequest, before: Nothing) -> Ready | Nothing:
    """Probe for an admitted poll: one read. The claim itself admits again."""
    if request.kind == TaskKind.WORKFLOW and "workflow" not in request.task_kinds:
        # There are no update validation tasks yet, so a poll for nothing else finds nothing.
        return before
    candidates = claiming.probe(claims.wanted_by(request, before.worker), before.clock.now())
    if not candidates:
        return Nothing(worker=before.worker, clock=before.clock)
    return Ready(worker=before.worker, candidates=candidates, clock=before.clock)


def lease(request: PollRequest, ready: Ready, *, history_page_size: int | None = None) -> Leased | Nothing:
    """Claim what `look` saw: one transaction, then the first history page. Nothing if others were faster.

    Refuses what changed since admission. Whatever ends without a lease after a task was locked passes the hint on.
    """
    # Whether a ready task may have been locked and let go again: then somebody else should look at it.
    let_go = True
    try:
        found = _claim(request, ready)
        let_go = False
    except NothingReadyError:
        let_go = False
        return Nothing(worker=ready.worker, clock=ready.clock)
    except Refusal as refusal:
        if refusal.reason != Reason.POLL_REQUEST_BUSY:
            raise
        let_go = False
        return Nothing(worker=ready.worker, clock=ready.clock, was_busy=True)
    finally:
        if let_go:
            publish(request.queue_key)
    return _leased(found, history_page_size, is_replay=False)


@transactional
def _claim(request: PollRequest, ready: Ready) -> Claimed:
    return claims.claim(request, ready.worker, ready.candidates, clock=ready.clock)


def _leased(claimed: Claimed, history_page_size: int | None, *, is_replay: bool) -> Leased:
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
