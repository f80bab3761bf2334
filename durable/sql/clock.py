"""The one clock: the database's, read after the last lock (docs/concurrency.md 14).

`now` must not be older than a lock wait that came before it. So it is read by a statement of its own, or by one that
takes no lock, after the locks are held: a statement that cannot wait has one moment. On SQLite the database has no
clock finer than the process's, and it is the same machine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from durable.sql.rows import aware, fetch_one, vendor

_EXPRESSIONS = {
    # now() would be the start of the transaction.
    "postgresql": "clock_timestamp()",
    # The moment this statement began; the session's time zone plays no part in it.
    "mysql": "UTC_TIMESTAMP(6)",
}


def clock_sql() -> str:
    """The expression to put into a SELECT list that also reads other things; NULL on SQLite."""
    return _EXPRESSIONS.get(vendor(), "NULL")


def clock_value(value: object) -> datetime:
    """What `clock_sql()` returned, as an aware time."""
    return aware(value) or datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The database's time as it was read, and how far this process's monotonic clock was then, in seconds."""

    moment: datetime
    read_at: float

    def now(self) -> datetime:
        """The database's time now, as well as this process can tell."""
        return self.moment + timedelta(seconds=time.monotonic() - self.read_at)


def read_clock() -> datetime:
    """The current time by the database's clock: one read (none on SQLite)."""
    if vendor() == "sqlite":
        return datetime.now(UTC)
    return clock_value(fetch_one(f"SELECT {clock_sql()}", ())[0])


def after(now: datetime, seconds: float | None) -> datetime | None:
    """`now` plus some seconds; None for no limit."""
    return None if seconds is None else now + timedelta(seconds=seconds)


def earliest(*moments: datetime | None) -> datetime | None:
    """The first of some moments, leaving out those that are None."""
    return min((moment for moment in moments if moment is not None), default=None)
