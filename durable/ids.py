"""Identifiers: ULIDs, 26 characters of Crockford base 32 (docs/design.md, "Identifiers").

They sort by the millisecond they were made in, which keeps inserts at the end of an index, and hold nothing
but letters and digits, so that a client may put them into a path without encoding.
"""

from __future__ import annotations

import os
import re
import threading
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [high + low for high in _ALPHABET for low in _ALPHABET]

ID_LENGTH = 26

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def is_id(text: str) -> bool:
    """Whether a text can be an id at all; what cannot (control characters, too long) is simply not found."""
    return 0 < len(text) <= 255 and not has_control(text)


def has_control(text: str) -> bool:
    """Whether a text holds a control character."""
    return _CONTROL.search(text) is not None


_lock = threading.Lock()
_last = 0


def new_id() -> str:
    """A fresh ULID: 48 bits of Unix milliseconds, then 80 random bits.

    Within a millisecond this process counts on from its last one, so that what it makes in order sorts in order: tasks
    of one batch that became ready together are taken in the order of their commands.
    """
    global _last
    number = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    with _lock:
        if number >> 80 <= _last >> 80:
            number = _last + 1
        _last = number
    return "".join(_PAIRS[number >> shift & 0x3FF] for shift in range(120, -10, -10))
