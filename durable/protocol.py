"""Worker protocol versions: which are accepted, and which feature needs which (worker-protocol.md 1.3)."""

from __future__ import annotations

import re
from typing import NamedTuple

_FORM = re.compile(r"^\d{1,6}\.\d{1,6}$")


class ProtocolVersion(NamedTuple):
    """A `MAJOR.MINOR` version; tuples compare as versions do."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


SERVED = ProtocolVersion(1, 20)

MEMO_FLOOR = ProtocolVersion(1, 14)
TYPED_SEARCH_ATTRIBUTES_FLOOR = ProtocolVersion(1, 16)
AFFINITY_FLOOR = ProtocolVersion(1, 18)
COOPERATIVE_FLOOR = ProtocolVersion(1, 20)


def parse_version(text: str) -> ProtocolVersion | None:
    """The version a text names, or None if it is not one."""
    if not _FORM.match(text):
        return None
    major, minor = text.split(".")
    return ProtocolVersion(int(major), int(minor))


def is_served(version: ProtocolVersion) -> bool:
    """Whether a worker that speaks this version can be served: same major, minor at most ours."""
    return version.major == SERVED.major and version.minor <= SERVED.minor
