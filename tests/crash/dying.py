"""Operations in child processes that kill themselves at a chosen point, and the process that forks them.

`python -m tests.crash.dying` reads requests and forks a child for each, with Django loaded and no connection open; the
test's side of it is `ForkServer`. A point is a moment between two statements as the database sees them: before each
statement, before COMMIT, and after COMMIT, before anybody is told.
"""

from __future__ import annotations

import base64
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

COMMIT, COMMITTED = "COMMIT", "COMMITTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function of this code base with its arguments; `settings` override the engine's."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Any:
        return self.function(*self.args, **self.kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How a child ended: `points` are those it passed, all of them if it lived."""

    signal: int
    points: list[str]
    error: str

    @property
    def was_committed(self) -> bool:
        return COMMIT in self.points


class ForkServer:
    """The test's end: `run(call)` lets a child live, `run(call, die_at=k)` kills it at its k-th point (from 0)."""

    def __init__(self, environment: dict[str, str], directory: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.dying"],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, call: Call, *, die_at: int | None = None) -> Death:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(base64.b64encode(pickle.dumps((call, die_at))) + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the fork server ended"
        death: Death = pickle.loads(base64.b64decode(answer))
        assert not death.error, death.error
        return death

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()


# -- the child ---------------------------------------------------------------------------------------------------------


def _run_to_point(call: Call, die_at: int | None, report: int) -> None:
    """In the child: tell of each point as it is passed, and die at the chosen one."""
    from django.db import connection
    from django.test import override_settings

    passed = 0

    def point(label: str) -> None:
        nonlocal passed
        if passed == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        passed += 1
        os.write(report, f"{label}\n".encode())

    def before_statement(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        point(" ".join(sql.split()[:2]))
        return execute(sql, *rest)

    connection.ensure_connection()
    commit = connection._commit

    def commit_between_points() -> None:
        point(COMMIT)
        commit()
        point(COMMITTED)

    connection._commit = commit_between_points  # type: ignore[method-assign]
    from django.conf import settings

    with override_settings(DURABLE={**settings.DURABLE, **call.settings}), connection.execute_wrapper(before_statement):
        call.run()


def _fork(call: Call, die_at: int | None) -> Death:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 0
        try:
            os.close(read_end)
            _run_to_point(call, die_at, write_end)
        except BaseException:
            os.write(write_end, b"!" + traceback.format_exc().encode())
            code = 1
        os._exit(code)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        passed, _, error = pipe.read().partition("!")
    _, status = os.waitpid(child, 0)
    return Death(signal=os.WTERMSIG(status), points=passed.splitlines(), error=error)


def _warm_up() -> None:
    """Import what every child needs and let go of the connection again: a fork must not share one."""
    import django.test  # noqa: F401
    from django.db import connection

    connection.ensure_connection()
    connection.close()


def _serve() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "server.settings")
    import django

    django.setup()
    _warm_up()
    for line in sys.stdin.buffer:
        call, die_at = pickle.loads(base64.b64decode(line))
        sys.stdout.buffer.write(base64.b64encode(pickle.dumps(_fork(call, die_at))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    # The classes are pickled by this module's real name.
    from tests.crash import dying

    dying._serve()
