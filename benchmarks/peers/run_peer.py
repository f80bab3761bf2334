"""One run of the workload on a peer: what `benchmarks.steps.measure` does for our own server."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import machine_busy_seconds, tree_cpu_seconds
from benchmarks.peers.environment import program, variables
from benchmarks.peers.systems import Opened, Peer
from benchmarks.processes import PROJECT, ChildFailed, Workers, log_tails, running, working
from benchmarks.report import RunResult
from benchmarks.steps import Options, WrongOutcome
from benchmarks.workload import TASK_QUEUE, JsonObject

_READY_SECONDS = 40
_CHECK_SECONDS = 60
# Long enough for the workers' first polls to be under way before the clock starts.
_SETTLE_SECONDS = 1.0
# What a run may take beside its workload: start of the system and the workers, the check, the end.
_SET_UP_SECONDS = 240


class _Starter:
    """The process that starts the workflows; starter_process.py has the conversation."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child
        self.pid = child.pid

    async def ask(self, word: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{word}\n".encode())
        await self._child.stdin.drain()

    async def answer(self, event: str, *, within_seconds: float) -> JsonObject:
        """The next report, which must be this one. Raises ChildFailed when it is not, or does not come."""
        assert self._child.stdout is not None
        try:
            line = await asyncio.wait_for(self._child.stdout.readline(), within_seconds)
        except TimeoutError:
            raise ChildFailed(f"the starter did not report {event!r} within {within_seconds:g} s") from None
        if not line:
            raise ChildFailed(f"the starter ended with {await self._child.wait()} before it reported {event!r}")
        fields: JsonObject = json.loads(line)
        if fields["event"] != event:
            raise ChildFailed(f"the starter reported {fields['event']!r}, not {event!r}")
        return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class _CpuSeconds:
    """CPU time used so far. `database` is None where it is part of another process, or not visible."""

    server: float
    workers: float
    database: float | None
    starter: float
    machine: float

    @property
    def other(self) -> float:
        """What the rest of the machine used."""
        return max(0.0, self.machine - self.server - self.workers - (self.database or 0.0) - self.starter)

    def since(self, before: _CpuSeconds) -> _CpuSeconds:
        return _CpuSeconds(
            server=self.server - before.server,
            workers=self.workers - before.workers,
            database=None if self.database is None or before.database is None else self.database - before.database,
            starter=self.starter - before.starter,
            machine=self.machine - before.machine,
        )


async def measure_peer(name: str, peer: Peer, options: Options, polling_seconds: float) -> RunResult:
    """Run the workload once on an empty system; everything it started is gone afterwards.

    Raises ChildFailed, WrongOutcome, OSError or TimeoutError, each with the ends of the logs in its notes.
    """
    with tempfile.TemporaryDirectory(prefix="durable-bench-", dir=options.directory) as directory_name:
        directory = Path(directory_name)
        try:
            async with asyncio.timeout(options.deadline_seconds + _SET_UP_SECONDS), AsyncExitStack() as stack:
                opened = await stack.enter_async_context(peer.open(directory, options.servers))
                return await _measure_on(name, peer, opened, options, polling_seconds, directory, stack)
        except (ChildFailed, WrongOutcome, OSError) as error:
            error.add_note(log_tails(directory))
            raise


async def _measure_on(
    name: str,
    peer: Peer,
    opened: Opened,
    options: Options,
    polling_seconds: float,
    directory: Path,
    stack: AsyncExitStack,
) -> RunResult:
    workflow_ids = [f"bench-{number:06d}" for number in range(1, options.workflow_count + 1)]
    worker_ids = [f"bench-worker-{number}" for number in range(1, options.worker_count + 1)]
    command = [str(program("python")), "-m", peer.starter_module, "--url", opened.url]
    command += ["--polling-seconds", str(polling_seconds), *workflow_ids]
    starter = _Starter(
        await stack.enter_async_context(
            running(command, variables(), directory / "starter.log", PROJECT, is_piped=True)
        )
    )
    await starter.answer("ready", within_seconds=_READY_SECONDS)
    async with working(
        peer.worker_module,
        worker_ids,
        ["--url", opened.url, "--task-queue", TASK_QUEUE, "--activity-ms", str(options.activity_ms)],
        variables(),
        directory,
        python=program("python"),
    ) as workers:
        await workers.wait_until_ready()
        await asyncio.sleep(_SETTLE_SECONDS)
        before = _read_cpu(opened, workers, starter)
        started = await _run_workload(starter, workers, workflow_ids, options.deadline_seconds)
        after = _read_cpu(opened, workers, starter)
        await starter.ask("check")
        checked = await starter.answer("checked", within_seconds=_CHECK_SECONDS)
    notes = [*opened.notes]
    if any(code != 0 for code in workers.exit_codes()):
        notes.append(f"not every worker stopped cleanly: exit codes {workers.exit_codes()}")
    used = after.since(before)
    wall_seconds = checked["last_closed_at"] - started["started_at"]
    return RunResult(
        database=peer.database,
        workload="five",
        worker=name,
        workflow_count=len(workflow_ids),
        wall_seconds=wall_seconds,
        observed_wall_seconds=wall_seconds,
        starting_seconds=started["starting_seconds"],
        server_cpu_seconds=used.server,
        worker_cpu_seconds=used.workers,
        database_cpu_seconds=used.database,
        starter_cpu_seconds=used.starter,
        other_cpu_seconds=used.other,
        request_count=None,
        commit_count=None,
        statement_count=None,
        locked_poll_count=None,
        facts=opened.facts,
        notes=notes,
    )


async def _run_workload(
    starter: _Starter, workers: Workers, workflow_ids: Sequence[str], deadline_seconds: float
) -> JsonObject:
    """From the first start to the last worker's report; what the starter said of the starts."""
    try:
        async with asyncio.timeout(deadline_seconds):
            await starter.ask("start")
            started = await starter.answer("started", within_seconds=deadline_seconds)
            await workers.wait_until_closed(len(workflow_ids))
    except TimeoutError:
        missing = len(workflow_ids) - len(workers.closed_workflow_ids)
        raise WrongOutcome(f"{missing} not closed after {deadline_seconds:g} s") from None
    return started


def _read_cpu(opened: Opened, workers: Workers, starter: _Starter) -> _CpuSeconds:
    return _CpuSeconds(
        server=0.0 if opened.server_pid is None else tree_cpu_seconds([opened.server_pid]),
        workers=tree_cpu_seconds(child.pid for child in workers.children),
        database=None if opened.database_pid is None else tree_cpu_seconds([opened.database_pid]),
        starter=tree_cpu_seconds([starter.pid]),
        machine=machine_busy_seconds(),
    )
