"""What upkeep duties share: find rows by their sweep key, handle each in its own transaction, count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from durable import metrics

log = structlog.get_logger("durable.upkeep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What one pass of a duty did."""

    handled: int = 0
    failed: int = 0
    error: str = ""


def handle_each(duty: str, ids: Iterable[str], operation: Callable[[str], bool]) -> Pass:
    """Run an operation for each id. One row that cannot be handled is counted and passed over, the others go on."""
    handled = failed = 0
    error = ""
    for item in ids:
        try:
            handled += operation(item)
        except Exception as fault:
            failed += 1
            error = type(fault).__name__
            log.exception("upkeep_item_failed", duty=duty, item=item)
    metrics.UPKEEP_HANDLED.labels(duty=duty).inc(handled)
    metrics.UPKEEP_FAILED.labels(duty=duty).inc(failed)
    return Pass(handled=handled, failed=failed, error=error)
