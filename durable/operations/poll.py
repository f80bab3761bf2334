"""Poll: look for a task, lease it, and fetch what its worker needs (docs/protocol/worker-protocol.md 5 and 6).

Two steps, because only the second writes: on SQLite they run in different threads. Neither waits for work; whoever
serves the poll parks it between tries (durable.wakeups).
"""

from __future__ import annotations

from durable import claims
from durable.claims import Claimed, Nothing, NothingReadyError, PollRequest, Ready
from durable.leases import Leased, read_lease
from durable.refusals import PollRefusal, Reason
from durable.sql.transactions import transactional


def look(
    request: PollRequest, before: Nothing | None = None, *, history_page_size: int | None = None
) -> Leased | Ready | Nothing:
    """Fetch the lease of this poll's id, or see whether something is ready; nothing is written.

    `before` is what an earlier look of the same poll found: it need not be admitted again, the claim does that. Refuses
    what `claims.look` refuses.
    """
    if before is not None and not before.was_busy:
        return claims.look_again(request, before)
    seen = claims.look(request)
    if isinstance(seen, Claimed):
        return read_lease(seen, history_page_size=history_page_size, is_replay=True)
    return seen


def lease(request: PollRequest, ready: Ready, *, history_page_size: int | None = None) -> Leased | Nothing:
    """Claim what `look` saw: one transaction, then the first history page. Nothing if others were faster.

    Refuses what changed since admission.
    """
    try:
        claimed = _claim(request, ready)
    except NothingReadyError:
        return Nothing(worker=ready.worker, clock=ready.clock)
    except PollRefusal as refusal:
        if refusal.reason != Reason.POLL_REQUEST_BUSY:
            raise
        return Nothing(worker=ready.worker, clock=ready.clock, was_busy=True)
    return read_lease(claimed, history_page_size=history_page_size, is_replay=False)


_claim = transactional(claims.claim)
