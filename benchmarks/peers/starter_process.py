"""What the peers' starters share: a conversation with the benchmark over standard input and output.

    starter:    {"event": "ready"}                              connected
    benchmark:  start
    starter:    {"event": "started", "started_at": ..., "starting_seconds": ...}
    benchmark:  check
    starter:    {"event": "checked", "last_closed_at": ...}

It ends when its standard input ends, and with a traceback when anything is not as it must be.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from benchmarks.worker_process import report


class WrongOutcome(Exception):
    """The workflows ended, but not with what the workload must leave behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterOptions:
    url: str
    polling_seconds: float  # how often a worker looks for work, on systems whose workers look


class Starter(Protocol):
    def start(self, workflow_ids: Sequence[str]) -> None:
        """Start them one after another, each start awaited before the next."""

    def check(self, workflow_ids: Sequence[str]) -> float:
        """Check that all are completed with the right result; when the last one closed, in Unix seconds.

        Raises WrongOutcome.
        """


def run_starter(connect: Callable[[StarterOptions], AbstractContextManager[Starter]], description: str) -> None:
    """Hold the conversation for the workflows named on the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--url", required=True)
    parser.add_argument("--polling-seconds", type=float, required=True)
    parser.add_argument("workflow_ids", nargs="+")
    arguments = parser.parse_args()
    with connect(StarterOptions(url=arguments.url, polling_seconds=arguments.polling_seconds)) as starter:
        report("ready")
        for line in sys.stdin:
            if line == "start\n":
                started_at = time.time()
                starter.start(arguments.workflow_ids)
                report("started", started_at=started_at, starting_seconds=time.time() - started_at)
            elif line == "check\n":
                report("checked", last_closed_at=starter.check(arguments.workflow_ids))
            else:
                raise ValueError(f"no such word: {line!r}")
