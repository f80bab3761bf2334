"""History pages and their tokens (docs/protocol/worker-protocol.md 7.2, docs/protocol/history.md 15)."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from durable import conf
from durable.refusals import Reason, Refusal
from durable.sql.history import StoredEvent, read_page


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """A stretch of history; `next_page_token` is None at the end of what the reader may see."""

    events: list[StoredEvent]
    next_page_token: str | None


def encode_token(sequence: int) -> str:
    """The token after `sequence`: base64 of its decimal digits. `MA==`, before the first event, is part of the wire."""
    return base64.b64encode(str(sequence).encode()).decode()


def decode_token(token: str | None) -> int:
    """The sequence a token stands after; None is the beginning. Refuses `invalid_page_token`."""
    if token is None:
        return 0
    try:
        text = base64.b64decode(token, validate=True).decode("ascii")
    except (binascii.Error, ValueError) as error:
        raise _invalid_token() from error
    if not text.isdigit() or len(text) > 10:
        raise _invalid_token()
    return int(text)


def _invalid_token() -> Refusal:
    return Refusal(Reason.INVALID_PAGE_TOKEN, "The history page token is not one of this server's.")


def page_size(asked: int | None) -> int:
    """How many events a page holds: what was asked for, or the default, within the server's maximum."""
    settings = conf.current()
    return min(asked or settings.history_page_size, settings.history_page_size_max)


def load_page(
    run_id: str, *, after_sequence: int, through_sequence: int, size: int | None, history_bytes: int
) -> HistoryPage:
    """The page after one sequence; nothing beyond `through_sequence` is ever shown."""
    events = read_page(
        run_id,
        after_sequence=after_sequence,
        through_sequence=through_sequence,
        count=page_size(size),
        max_bytes=conf.current().history_page_bytes,
        history_bytes=history_bytes,
    )
    last = events[-1].sequence if events else through_sequence
    return HistoryPage(events=events, next_page_token=encode_token(last) if last < through_sequence else None)
