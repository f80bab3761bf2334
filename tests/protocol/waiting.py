"""Waiting for what happens off the answer's path: for a condition with a deadline, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 10) -> None:
    """Return once the condition holds; AssertionError if it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.005)
