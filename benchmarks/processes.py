"""The processes of one run: a server and its workers, started in their own sessions and always ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.http1 import Client, ConnectionLost

PROJECT = Path(__file__).resolve().parent.parent

_FINISH_SECONDS = 90
_READY_SECONDS = 30
_STOP_SECONDS = 6
_WORKERS_READY_SECONDS = 30
_LOG_TAIL_LINES = 12


class ChildFailed(Exception):
    """A process of the run ended, or never became ready."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def log_tails(directory: Path) -> str:
    """The last lines of every log of the run that has any."""
    tails = []
    for log in sorted(directory.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        if lines:
            tails.append("\n".join([f"--- {log.name}", *lines]))
    return "\n".join(tails)


async def migrate(manage: Path, environment: Mapping[str, str], log: Path) -> None:
    """Create the schema. Raises ChildFailed when the command fails or takes longer than its limit."""
    await finish([sys.executable, str(manage), "migrate", "--no-input"], environment, log, manage.parent)


async def finish(command: Sequence[str], environment: Mapping[str, str], log: Path, directory: Path) -> None:
    """Run a command to its end. Raises ChildFailed, with the name of the log, when it fails or takes too long."""
    async with running(command, environment, log, directory) as child:
        try:
            code = await asyncio.wait_for(child.wait(), _FINISH_SECONDS)
        except TimeoutError:
            raise ChildFailed(f"{log.stem} took longer than {_FINISH_SECONDS} s") from None
    if code != 0:
        raise ChildFailed(f"{log.stem} ended with {code}")


@asynccontextmanager
async def serving(
    manage: Path, port: int, environment: Mapping[str, str], log: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the server until the end of the block; yields when it is ready."""
    command = [sys.executable, str(manage), "serve", "--host", "127.0.0.1", "--port", str(port)]
    async with running(command, environment, log, manage.parent) as child:
        await _wait_until_ready(child, port)
        yield child


async def _wait_until_ready(child: asyncio.subprocess.Process, port: int) -> None:
    client = Client(f"http://127.0.0.1:{port}", {})
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _READY_SECONDS
    last = "no answer"
    try:
        while loop.time() < deadline:
            if child.returncode is not None:
                raise ChildFailed(f"the server ended with {child.returncode} before it was ready")
            with contextlib.suppress(OSError, ConnectionLost):
                answer = await client.request("GET", "/api/ready", timeout_seconds=5)
                if answer.status == 200:
                    return
                last = f"status {answer.status}"
            await asyncio.sleep(0.05)
    finally:
        client.close()
    raise ChildFailed(f"the server was not ready within {_READY_SECONDS} s: {last}")


class Workers:
    """The worker processes of one run and what they have reported."""

    def __init__(self) -> None:
        self.closed_workflow_ids: set[str] = set()
        # How often each report came that is neither `ready` nor `closed`.
        self.other_reports: Counter[str] = Counter()
        self.children: list[asyncio.subprocess.Process] = []
        self._ready_count = 0
        self._failure: str | None = None
        self._changed = asyncio.Event()

    async def wait_until_ready(self) -> None:
        """Wait until every worker is registered. Raises ChildFailed when one ends before, or takes too long."""
        try:
            async with asyncio.timeout(_WORKERS_READY_SECONDS):
                while self._ready_count < len(self.children):
                    await self._next_report()
        except TimeoutError:
            raise ChildFailed(f"not every worker was registered within {_WORKERS_READY_SECONDS} s") from None

    async def wait_until_closed(self, count: int) -> None:
        """Wait until so many different workflows have been completed. Raises ChildFailed when a process ends."""
        while len(self.closed_workflow_ids) < count:
            await self._next_report()

    async def _next_report(self) -> None:
        if self._failure is not None:
            raise ChildFailed(self._failure)
        self._changed.clear()
        await self._changed.wait()

    async def follow(self, worker_id: str, child: asyncio.subprocess.Process) -> None:
        """Read one worker's reports until it ends."""
        assert child.stdout is not None
        while line := await child.stdout.readline():
            fields = json.loads(line)
            if fields["event"] == "ready":
                self._ready_count += 1
            elif fields["event"] == "closed":
                self.closed_workflow_ids.add(fields["workflow_id"])
            else:
                self.other_reports[fields["event"]] += 1
            self._changed.set()
        await self.watch(worker_id, child)

    async def watch(self, name: str, child: asyncio.subprocess.Process) -> None:
        """Wait until this process ends; whoever waits for reports then gets ChildFailed."""
        code = await child.wait()
        self._failure = f"{name} ended with {code}"
        self._changed.set()

    def exit_codes(self) -> list[int | None]:
        """One for each worker; None for one that had to be killed or still runs."""
        return [child.returncode for child in self.children]


@asynccontextmanager
async def working(
    module: str,
    worker_ids: Sequence[str],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    logs: Path,
    *,
    python: Path = Path(sys.executable),
) -> AsyncIterator[Workers]:
    """Run one worker process for each id until the end of the block; yields before they are ready."""
    workers = Workers()
    async with contextlib.AsyncExitStack() as stack:
        followers: list[asyncio.Task[None]] = []
        for worker_id in worker_ids:
            command = [str(python), "-m", module, *arguments, "--worker-id", worker_id]
            child = await stack.enter_async_context(
                running(command, environment, logs / f"{worker_id}.log", PROJECT, is_piped=True)
            )
            workers.children.append(child)
            followers.append(asyncio.create_task(workers.follow(worker_id, child)))
        try:
            yield workers
        finally:
            for child in workers.children:
                with contextlib.suppress(ProcessLookupError):
                    child.terminate()
            _, late = await asyncio.wait(followers, timeout=_STOP_SECONDS)
            for follower in late:
                follower.cancel()


@asynccontextmanager
async def running(
    command: Sequence[str], environment: Mapping[str, str], log: Path, directory: Path, *, is_piped: bool = False
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command in its own session, and end the whole session at the end of the block.

    Its errors go to the log. A piped child has its standard input and output connected to this process, so that it
    sees the end of its input when this process dies; the output of the others goes to the log too.
    """
    with log.open("ab") as log_file:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE if is_piped else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if is_piped else log_file,
            stderr=log_file,
            env=dict(environment),
            cwd=directory,
            start_new_session=True,
        )
    try:
        yield child
    finally:
        await _end(child)


async def _end(child: asyncio.subprocess.Process) -> None:
    """SIGTERM, some seconds, then SIGKILL for the child's whole session. Also when this task is cancelled."""
    try:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(child.wait(), _STOP_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), _STOP_SECONDS)
