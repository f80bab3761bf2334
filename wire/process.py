"""The runtime of this process: made when the server starts (server/asgi.py), used by every view."""

from __future__ import annotations

from durable.wakeups.runtime import Runtime

_current: list[Runtime] = []


def runtime() -> Runtime:
    """The running process's pool and hub."""
    return _current[0]


def set_runtime(new: Runtime | None) -> None:
    """Put the runtime in place, or take it away."""
    _current[:] = [] if new is None else [new]
