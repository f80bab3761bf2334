"""The engine's clock in a test's hands: it stands still until the test turns it forward.

The engine reads the time by one expression per database (durable/sql/clock.py), and that expression is replaced here.
Nothing waits, and a deadline can be met to the microsecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from unittest import mock

from django.utils import timezone

from durable.sql import clock as engine_clock

MICROSECOND = timedelta(microseconds=1)


class EngineClock:
    """`now` is what every operation, duty and claim sees until it is advanced."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def advance(self, by: float | timedelta) -> datetime:
        """Turn the clock forward, by seconds or a timedelta; returns the new time."""
        self.now += by if isinstance(by, timedelta) else timedelta(seconds=by)
        return self.now

    def turn_to(self, moment: datetime) -> None:
        """Turn the clock to a moment that is not in its past."""
        assert moment >= self.now, "the engine's clock never goes back"
        self.now = moment


class _Expressions(dict[str, str]):
    """The SQL for "now", made anew for every statement."""

    def __init__(self, clock: EngineClock) -> None:
        super().__init__()
        self._clock = clock

    def get(self, vendor: str, default: str) -> str:  # type: ignore[override]
        text = self._clock.now.strftime("%Y-%m-%d %H:%M:%S.%f")
        if vendor == "postgresql":
            return f"TIMESTAMPTZ '{text}+00'"
        return f"CAST('{text}' AS DATETIME(6))" if vendor == "mysql" else default


@contextmanager
def engine_clock_in_hand() -> Iterator[EngineClock]:
    """Replace the engine's clock in this process, for all its threads."""
    clock = EngineClock()

    class Still(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return clock.now.astimezone(tz)

    def still() -> datetime:
        return clock.now

    def no_time_passes(reading: engine_clock.ClockReading) -> datetime:
        return clock.now

    with (
        mock.patch.object(engine_clock, "_EXPRESSIONS", _Expressions(clock)),
        mock.patch.object(engine_clock, "datetime", Still),
        mock.patch.object(engine_clock.ClockReading, "now", no_time_passes),
        mock.patch.object(timezone, "now", still),
    ):
        yield clock
