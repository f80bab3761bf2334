"""Times as the wire and the history write them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import overload


@overload
def stamp(moment: datetime) -> str: ...
@overload
def stamp(moment: None) -> None: ...
def stamp(moment: datetime | None) -> str | None:
    """UTC with exactly six fractional digits and a `Z`: clients accept nothing else (worker-protocol.md 1.7)."""
    if moment is None:
        return None
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
