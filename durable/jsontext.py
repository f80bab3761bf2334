"""JSON text: encoding values that may hold pieces which are encoded already.

A history page is mostly stored payloads; they are spliced into the answer as they are, never parsed.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from typing import Any

# Unguessable, so that no caller's text can be mistaken for the place of a piece.
_MARK = secrets.token_hex(12)
_PLACES = re.compile(f'"{_MARK}"')


@dataclass(frozen=True, slots=True)
class JSONText:
    """A value that is JSON text already."""

    text: str

    def parse(self) -> Any:
        return json.loads(self.text)


def dump_json(value: Any) -> str:
    """Compact JSON text; refuses NaN and infinities, which are not JSON."""
    if isinstance(value, JSONText):
        return value.text
    pieces: list[str] = []

    def hold(piece: Any) -> str:
        if isinstance(piece, JSONText):
            pieces.append(piece.text)
            return _MARK
        raise TypeError(f"{type(piece).__name__} is not JSON")

    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=hold)
    if not pieces:
        return text
    gaps = _PLACES.split(text)
    return "".join(part for pair in zip(gaps, [*pieces, ""], strict=True) for part in pair)
