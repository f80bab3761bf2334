"""A server process that comes back fast: a process that has imported everything forks one `manage.py serve` at a time.

It is killed from outside at any moment, or kills itself at its n-th COMMIT: `before:17` right before it, `after:17`
when it is done and nobody has been told.

`python -m tests.crash.killable_server PORT` reads one line a life, the doom or nothing, and answers two: the process id
when it lives, the wait status when it is dead.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from typing import Any

from tests.server import ROOT, ServerProcess


class KillableServer(ServerProcess):
    """The test's end; a restart keeps port and database and costs little."""

    def __init__(self, **settings: str) -> None:
        super().__init__(**settings)
        self._pid: int | None = None
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.killable_server", str(self.port)],
                cwd=ROOT,
                env=self.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def start(self) -> None:
        self._begin("")
        self.wait_until_ready()

    def live_until(self, doom: str) -> None:
        """Serve until it has killed itself."""
        self._begin(doom)
        assert self._wait_for_death() == signal.SIGKILL

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)
        if self.process is not None:
            self.process.communicate(timeout=10)
            self.process = None

    def _begin(self, doom: str) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(f"{doom}\n".encode())
        self.process.stdin.flush()
        self._pid = self._read_number()

    def _end(self, number: signal.Signals) -> None:
        if self._pid is not None:
            os.kill(self._pid, number)
            self._wait_for_death()

    def _wait_for_death(self) -> int:
        status = self._read_number()
        self._pid = None
        return os.WTERMSIG(status)

    def _read_number(self) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process that forks has ended: {self.log.read_text()[-3000:]}"
        return int(line)


# -- the process that forks --------------------------------------------------------------------------------------------


def _count_commits(doom: str) -> None:
    """Let the commits of every connection count, and the chosen one be the last."""
    from django.db.backends.signals import connection_created

    moment, _, number = doom.partition(":")
    commits = itertools.count(1)

    def watch(*, connection: Any, **_: Any) -> None:
        commit = type(connection)._commit

        def commit_or_die() -> None:
            is_last = next(commits) == int(number)
            if is_last and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            commit(connection)
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)

        connection._commit = commit_or_die

    connection_created.connect(watch, weak=False)


def _serve(port: str, doom: str) -> None:
    from django.core.management import execute_from_command_line

    # What the test's end hears is said by the process that forks.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if doom:
        _count_commits(doom)
    execute_from_command_line(["manage.py", "serve", "--port", port])


def _main(port: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "server.settings")
    # Everything is imported, nothing is started: no thread, no connection, no event loop.
    import server.asgi
    import server.management.commands.serve  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _serve(port, line.strip())
            os._exit(0)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
