"""History page compression, only for clients that ask (docs/protocol/worker-protocol.md 14.3)."""

from __future__ import annotations

import base64
import gzip
import zlib
from typing import Any

from durable.jsontext import dump_json

THRESHOLD_EVENTS = 50


def compress_history(fields: dict[str, Any], asked: str | None) -> dict[str, Any]:
    """Replace `history_events` by its compressed form if the client asked for it and the page is long enough."""
    encoding = (asked or "").strip().lower()
    events = fields["history_events"]
    if encoding not in ("gzip", "deflate") or len(events) < THRESHOLD_EVENTS:
        return fields
    text = dump_json(events).encode()
    packed = gzip.compress(text, mtime=0) if encoding == "gzip" else zlib.compress(text)
    rest = {name: value for name, value in fields.items() if name != "history_events"}
    return {
        **rest,
        "history_events_compressed": base64.b64encode(packed).decode(),
        "history_events_encoding": encoding,
    }
