"""`manage.py serve` that kills itself at its n-th COMMIT: right before it, or after it and before anybody is told.

DOOM=after:17 python -m tests.crash.doomed_server serve --port …    (without DOOM it lives)
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from typing import Any

from django.core.management import execute_from_command_line
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

_commits = itertools.count(1)


def doom(*, connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Let this connection's commits count."""
    moment, _colon, number = os.environ["DOOM"].partition(":")
    commit = type(connection)._commit

    def commit_or_die() -> None:
        is_last = next(_commits) == int(number)
        if is_last and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        commit(connection)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)

    connection._commit = commit_or_die  # type: ignore[method-assign]


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "server.settings")
    if "DOOM" in os.environ:
        connection_created.connect(doom)
    execute_from_command_line(["manage.py", *sys.argv[1:]])
