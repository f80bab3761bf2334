"""Who asks: kept with every external command."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """A caller, by the kind of its credential and its name."""

    type: str
    id: str
