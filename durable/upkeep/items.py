"""What upkeep duties share: handle rows each in its own transaction, count, set aside what cannot be handled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from durable import metrics
from durable.logs import traceback_without_values

log = structlog.get_logger("durable.upkeep")

# How long a row that failed is passed over, so that many of them do not keep a sweep from all others.
ASIDE_SECONDS = 30.0
_MOST_ASIDE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What one pass of a duty did. `is_broken`: the duty itself failed, not one of its rows."""

    handled: int = 0
    failed: int = 0
    error: str = ""
    is_broken: bool = False
    # Whether there was as much as a pass takes, so that another should follow at once.
    was_full: bool = False


_aside: dict[tuple[str, str], float] = {}


def set_aside(duty: str) -> set[str]:
    """The rows of a duty that failed lately in this process."""
    now = time.monotonic()
    for key in [key for key, until in _aside.items() if until < now]:
        _aside.pop(key, None)
    return {item for of_duty, item in _aside if of_duty == duty}


def handle_each(duty: str, ids: Iterable[str], operation: Callable[[str], bool], *, batch_size: int) -> Pass:
    """Run an operation for each id. One row that cannot be handled is counted and set aside, the others go on."""
    handled = failed = seen = 0
    error = ""
    for item in ids:
        seen += 1
        try:
            handled += operation(item)
        except Exception as fault:
            failed += 1
            error = type(fault).__name__
            if len(_aside) < _MOST_ASIDE:
                _aside[duty, item] = time.monotonic() + ASIDE_SECONDS
            log.error(
                "upkeep_item_failed", duty=duty, item=item, error=error, traceback=traceback_without_values(fault)
            )
    count(duty, handled=handled, failed=failed)
    return Pass(handled=handled, failed=failed, error=error, was_full=handled > 0 and seen >= batch_size)


def count(duty: str, *, handled: int, failed: int = 0) -> None:
    """Add to the duty's metrics."""
    metrics.UPKEEP_HANDLED.labels(duty=duty).inc(handled)
    metrics.UPKEEP_FAILED.labels(duty=duty).inc(failed)
