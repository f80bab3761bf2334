"""What both kinds of worker process share: options, reports to the benchmark, and the sign to stop.

A worker reports on standard output, one JSON object a line:

    {"event": "ready"}                          registered; polling starts now
    {"event": "closed", "workflow_id": "..."}   this worker completed that workflow
    {"event": "withdrawn", "kind": "..."}       it ended a waiting poll in favour of a carried one

It stops when its standard input ends (so also when the benchmark dies) or on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, get_args

Carry = Literal["off", "on", "inline"]
CARRY_CHOICES: tuple[Carry, ...] = get_args(Carry)

TOKEN_VARIABLE = "DURABLE_DEV_TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    url: str
    token: str  # empty for a system that asks for none
    task_queue: str
    worker_id: str
    activity_seconds: float
    carry: Carry = "off"


def report(event: str, **fields: str | float) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


Work = Callable[[WorkerOptions, asyncio.Event], Awaitable[None]]


def run_worker(
    work: Work, description: str, *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> None:
    """Read the options from the command line and run this worker until its stop event is set."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--url", required=True)
    parser.add_argument("--task-queue", required=True)
    parser.add_argument("--worker-id", required=True)
    parser.add_argument("--activity-ms", type=float, required=True)
    parser.add_argument("--carry", choices=CARRY_CHOICES, default="off", help="polls on completions; raw worker only")
    arguments = parser.parse_args()
    options = WorkerOptions(
        url=arguments.url,
        token=os.environ.get(TOKEN_VARIABLE, ""),
        task_queue=arguments.task_queue,
        worker_id=arguments.worker_id,
        activity_seconds=arguments.activity_ms / 1000,
        carry=arguments.carry,
    )
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_run(work, options))


async def _run(work: Work, options: WorkerOptions) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def input_is_readable() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            stop.set()

    loop.add_reader(sys.stdin.fileno(), input_is_readable)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    await work(options, stop)
