"""The reported workload: many short workflows of five steps, from a fresh server to the last one closed.

    python -m benchmarks.steps --database all --worker both --json results.json

Workflows are started one after another, each start awaited before the next, while six worker processes work, each on
one activity and one workflow task at a time. With five steps of 20 ms, 200 workflows and six workers, nothing can be
faster than 200 * 5 * 0.02 / 6 = 3.33 s. See README.md for what is measured, and how.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console

from benchmarks.databases import DATABASE_KINDS, DEFAULT_SERVERS, Database, DatabaseKind, fresh_database
from benchmarks.http1 import Client, ConnectionLost, UnexpectedAnswer
from benchmarks.measure import Counters, machine_busy_seconds, machine_facts, tree_cpu_seconds
from benchmarks.processes import PROJECT, ChildFailed, Workers, free_port, log_tails, migrate, serving, working
from benchmarks.report import RunFailure, RunResult, show, to_json, to_markdown, write_json
from benchmarks.worker_process import CARRY_CHOICES, TOKEN_VARIABLE, Carry
from benchmarks.workload import (
    EXPECTED_EVENT_COUNTS,
    NO_ARGUMENTS,
    RUN_OUTPUT,
    RUN_RESULT,
    TASK_QUEUE,
    WORKFLOW_TYPES,
    JsonObject,
)

WORKER_MODULES: Mapping[str, str] = {"sdk": "benchmarks.sdk_worker", "raw": "benchmarks.raw_worker"}

# Long enough for the workers' first polls to be parked before the clock starts.
_SETTLE_SECONDS = 0.3
# What a run may take beside its workload: migrations, start of the server and the workers, the check, the end.
_SET_UP_SECONDS = 240
# Requests of the benchmark itself that are no part of the workload.
_OWN_ROUTES = ("/metrics", "/api/ready")


class WrongOutcome(Exception):
    """The run ended, but not with what the workload must leave behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    workflow_count: int
    worker_count: int
    activity_ms: float
    deadline_seconds: float
    manage: Path
    directory: Path | None
    servers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    database: DatabaseKind
    workload: str
    worker: str
    carry: Carry = "off"
    # `NAME=VALUE` for the server's environment.
    server_settings: tuple[str, ...] = ()

    def __str__(self) -> str:
        carrying = () if self.carry == "off" else (f"carry={self.carry}",)
        return " ".join((self.database, self.workload, self.worker, *carrying, *self.server_settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """The running server, and the benchmark's own connection to it."""

    process: asyncio.subprocess.Process
    database: Database
    client: Client


@dataclass(frozen=True, slots=True, kw_only=True)
class _CpuSeconds:
    """CPU time used so far. `database` is None inside the server (SQLite) or where its processes are not visible."""

    server: float
    workers: float
    database: float | None
    starter: float
    machine: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """One workload, from its first start request (`started_at`, Unix seconds) to its last closing."""

    started_at: float
    starting_seconds: float
    observed_wall_seconds: float
    before: _CpuSeconds
    after: _CpuSeconds
    counted: Counters


async def measure(configuration: Configuration, options: Options) -> RunResult:
    """Run the workload once on a fresh database and a fresh server; everything it started is gone afterwards.

    Raises ChildFailed, WrongOutcome, UnexpectedAnswer, ConnectionLost, OSError or TimeoutError, each with the ends of
    the logs in its notes.
    """
    with tempfile.TemporaryDirectory(prefix="durable-bench-", dir=options.directory) as name:
        directory = Path(name)
        with fresh_database(configuration.database, directory, options.servers) as database:
            try:
                async with asyncio.timeout(options.deadline_seconds + _SET_UP_SECONDS), AsyncExitStack() as stack:
                    return await _measure_on(database, configuration, options, directory, stack)
            except (ChildFailed, WrongOutcome, UnexpectedAnswer, ConnectionLost, OSError) as error:
                error.add_note(log_tails(directory))
                raise


async def _measure_on(
    database: Database, configuration: Configuration, options: Options, directory: Path, stack: AsyncExitStack
) -> RunResult:
    token = secrets.token_hex(16)
    environment = {
        **os.environ,
        "DATABASE_URL": database.url,
        TOKEN_VARIABLE: token,
        "SECRET_KEY": secrets.token_hex(32),
        "DEBUG": "0",
        "ALLOWED_HOSTS": "*",
        **dict(setting.split("=", 1) for setting in configuration.server_settings),
    }
    await migrate(options.manage, environment, directory / "migrate.log")
    port = free_port()
    process = await stack.enter_async_context(serving(options.manage, port, environment, directory / "server.log"))
    url = f"http://127.0.0.1:{port}"
    headers = {"Authorization": f"Bearer {token}", "X-Durable-Workflow-Control-Plane-Version": "2"}
    server = _Server(process=process, database=database, client=Client(url, headers))
    stack.callback(server.client.close)
    workflow_ids = [f"bench-{number:06d}" for number in range(1, options.workflow_count + 1)]
    worker_ids = [f"bench-worker-{number}" for number in range(1, options.worker_count + 1)]
    worker_arguments = ["--url", url, "--task-queue", TASK_QUEUE, "--activity-ms", str(options.activity_ms)]
    worker_arguments += ["--carry", configuration.carry]
    async with working(
        WORKER_MODULES[configuration.worker],
        worker_ids,
        worker_arguments,
        {**os.environ, TOKEN_VARIABLE: token},
        directory,
    ) as workers:
        stack.callback(asyncio.create_task(workers.watch("the server", process)).cancel)
        await workers.wait_until_ready()
        await asyncio.sleep(_SETTLE_SECONDS)
        measured = await _run_workload(server, workers, configuration.workload, workflow_ids, options.deadline_seconds)
    notes = database.warnings()
    if any(code != 0 for code in workers.exit_codes()):
        notes.append(f"not every worker stopped cleanly: exit codes {workers.exit_codes()}")
    notes += [f"workers reported {event}: {count}" for event, count in sorted(workers.other_reports.items())]
    last_closed_at = await _verify(server.client, workflow_ids)
    return _result(configuration, database, measured, len(workflow_ids), last_closed_at, notes)


async def _run_workload(
    server: _Server, workers: Workers, workload: str, workflow_ids: list[str], deadline_seconds: float
) -> _Measured:
    counters = await _read_counters(server.client)
    before = _read_cpu(server, workers)
    started_at = time.time()
    try:
        async with asyncio.timeout(deadline_seconds):
            for workflow_id in workflow_ids:
                await _start(server.client, workload, workflow_id)
            starting_seconds = time.time() - started_at
            await workers.wait_until_closed(len(workflow_ids))
    except TimeoutError:
        missing = [workflow_id for workflow_id in workflow_ids if workflow_id not in workers.closed_workflow_ids]
        standing = await _state_of(server.client, missing[0]) if missing else "closed meanwhile"
        raise WrongOutcome(f"{len(missing)} not closed after {deadline_seconds:g} s; the first: {standing}") from None
    observed_wall_seconds = time.time() - started_at
    after = _read_cpu(server, workers)
    return _Measured(
        started_at=started_at,
        starting_seconds=starting_seconds,
        observed_wall_seconds=observed_wall_seconds,
        before=before,
        after=after,
        counted=(await _read_counters(server.client)).since(counters),
    )


def _result(
    configuration: Configuration,
    database: Database,
    measured: _Measured,
    workflow_count: int,
    last_closed_at: float,
    notes: list[str],
) -> RunResult:
    before, after, counted = measured.before, measured.after, measured.counted
    database_cpu = None if before.database is None or after.database is None else after.database - before.database
    cpu = {
        "server_cpu_seconds": after.server - before.server,
        "worker_cpu_seconds": after.workers - before.workers,
        "starter_cpu_seconds": after.starter - before.starter,
    }
    accounted = sum(cpu.values()) + (database_cpu or 0.0)
    return RunResult(
        database=configuration.database,
        workload=configuration.workload,
        worker=configuration.worker,
        carry=configuration.carry,
        server_settings=configuration.server_settings,
        workflow_count=workflow_count,
        wall_seconds=last_closed_at - measured.started_at,
        observed_wall_seconds=measured.observed_wall_seconds,
        starting_seconds=measured.starting_seconds,
        **cpu,
        database_cpu_seconds=database_cpu,
        other_cpu_seconds=max(0.0, after.machine - before.machine - accounted),
        request_count=counted.total("durable_http_requests_total", _is_part_of_the_workload),
        commit_count=counted.total("durable_sql_commits_total"),
        statement_count=counted.total("durable_sql_statements_total"),
        locked_poll_count=counted.total("durable_claim_transactions_total"),
        requests_by_route=counted.by(
            "durable_http_requests_total", "method", "route", "status", keep=_is_part_of_the_workload
        ),
        polls=counted.by("durable_polls_total", "kind", "outcome"),
        claims=counted.by("durable_claims_total", "kind"),
        completions=counted.by("durable_completions_total", "kind"),
        carried_polls=counted.by("durable_carried_polls_total", "capability", "outcome", "reason"),
        facts=database.facts,
        notes=notes,
    )


async def _start(client: Client, workload: str, workflow_id: str) -> None:
    body: JsonObject = {
        "workflow_id": workflow_id,
        "workflow_type": WORKFLOW_TYPES[workload],
        "task_queue": TASK_QUEUE,
        "input": NO_ARGUMENTS,
        "execution_timeout_seconds": 3600,
        "run_timeout_seconds": 600,
    }
    (await client.request("POST", "/api/workflows", body)).expect(201)


def _read_cpu(server: _Server, workers: Workers) -> _CpuSeconds:
    database_pid = server.database.server_pid
    return _CpuSeconds(
        server=tree_cpu_seconds([server.process.pid]),
        workers=tree_cpu_seconds(child.pid for child in workers.children),
        database=None if database_pid is None else tree_cpu_seconds([database_pid]),
        starter=time.process_time(),
        machine=machine_busy_seconds(),
    )


async def _read_counters(client: Client) -> Counters:
    """The server's counters, or none at all when it has no page for them."""
    answer = await client.request("GET", "/metrics")
    return Counters.from_text(answer.body.decode() if answer.status == 200 else "")


async def _state_of(client: Client, workflow_id: str) -> str:
    """What the server says of a workflow, cut short, for an error message."""
    try:
        answer = await client.request("GET", f"/api/workflows/{workflow_id}", timeout_seconds=5)
    except (ConnectionLost, OSError) as error:
        return f"{workflow_id}: {error}"
    return f"{workflow_id}: status {answer.status}, {answer.body[:500].decode(errors='replace')}"


async def _verify(client: Client, workflow_ids: list[str]) -> float:
    """Check every run, and the history of the first and last; the time the last one closed, in Unix seconds.

    Raises WrongOutcome for a run that is not completed, has another result than the workload's, or whose history
    holds more or less than its five steps.
    """
    closed_at = 0.0
    for workflow_id in workflow_ids:
        run = (await client.request("GET", f"/api/workflows/{workflow_id}")).expect(200)
        if run["status"] != "completed":
            raise WrongOutcome(f"{workflow_id} is {run['status']}")
        if run.get("output_envelope") != RUN_RESULT and run.get("output") != RUN_OUTPUT:
            raise WrongOutcome(f"{workflow_id} returned {run.get('output_envelope') or run.get('output')}")
        closed_at = max(closed_at, datetime.fromisoformat(run["closed_at"]).timestamp())
    for workflow_id in (workflow_ids[0], workflow_ids[-1]):
        await _verify_history(client, workflow_id)
    return closed_at


async def _verify_history(client: Client, workflow_id: str) -> None:
    run = (await client.request("GET", f"/api/workflows/{workflow_id}")).expect(200)
    path = f"/api/workflows/{workflow_id}/runs/{run['run_id']}/history?page_size=1000"
    events = (await client.request("GET", path)).expect(200)["events"]
    counts = Counter(event["event_type"] for event in events)
    if counts != EXPECTED_EVENT_COUNTS:
        raise WrongOutcome(f"{workflow_id} has the history {dict(counts)}")


def _is_part_of_the_workload(labels: Mapping[str, str]) -> bool:
    route = "/" + labels.get("route", "").strip("/")
    return route not in _OWN_ROUTES


async def run_all(
    configurations: list[Configuration], repeat_count: int, options: Options, console: Console
) -> tuple[list[RunResult], list[RunFailure]]:
    """Every configuration, as often as asked; a failed run is reported and does not stop the others.

    Repeats go round the configurations, so that a slow minute of the machine does not hit one of them alone.
    """
    results: list[RunResult] = []
    failures: list[RunFailure] = []
    for _ in range(repeat_count):
        for configuration in configurations:
            try:
                result = await measure(configuration, options)
            except Exception as error:  # whatever it was: the next configuration gets its chance
                text = f"{type(error).__name__}: {error}"
                notes = "\n".join(getattr(error, "__notes__", ()))
                console.print(f"{configuration}: FAILED, {text}\n{notes}", style="red", markup=False, soft_wrap=True)
                failures.append(
                    RunFailure(
                        database=configuration.database,
                        workload=configuration.workload,
                        worker=configuration.worker,
                        carry=configuration.carry,
                        error=text,
                    )
                )
                continue
            console.print(f"{configuration}: {result.wall_seconds:.2f} s", highlight=False)
            for note in result.notes:
                console.print(f"  {note}", style="yellow")
            results.append(result)
    return results, failures


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workload", choices=(*WORKFLOW_TYPES, "all"), action="append", help="default: five")
    parser.add_argument("--database", choices=(*DATABASE_KINDS, "all"), action="append", help="default: sqlite")
    parser.add_argument("--worker", choices=(*WORKER_MODULES, "both"), action="append", help="default: raw")
    parser.add_argument(
        "--carry",
        choices=(*CARRY_CHOICES, "all"),
        action="append",
        help="whether raw workers carry polls on completions, and ask for the task in the answer; default: off",
    )
    parser.add_argument(
        "--set",
        dest="server_settings",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an environment variable of the server, such as DURABLE_CARRY_WORKFLOW_ON_WORKFLOW=0",
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables of RESULTS.md to this file")
    parser.add_argument("--workflows", type=int, default=200, metavar="N")
    parser.add_argument("--workers", type=int, default=6, metavar="N", help="worker processes")
    parser.add_argument("--activity-ms", type=float, default=20.0, metavar="MS", help="how long each step sleeps")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of each configuration")
    parser.add_argument("--deadline", type=float, default=120.0, metavar="SECONDS", help="limit of one workload")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all runs to this file")
    parser.add_argument("--directory", type=Path, help="where SQLite files and logs live while a run lasts")
    parser.add_argument("--manage", type=Path, default=PROJECT / "manage.py", help="the server to measure")
    for kind, server in DEFAULT_SERVERS.items():
        parser.add_argument(f"--{kind}-server", default=server, metavar="URL", help=f"default: {server}")
    return parser.parse_args()


def _chosen(values: list[str] | None, every: tuple[str, ...], word: str, default: str) -> list[str]:
    wanted = values or [default]
    return [value for value in every if value in wanted or word in wanted]


async def main() -> int:
    arguments = parse_arguments()
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    options = Options(
        workflow_count=arguments.workflows,
        worker_count=arguments.workers,
        activity_ms=arguments.activity_ms,
        deadline_seconds=arguments.deadline,
        manage=arguments.manage.resolve(),
        directory=arguments.directory,
        servers={kind: getattr(arguments, f"{kind}_server") for kind in DEFAULT_SERVERS},
    )
    chosen_databases = _chosen(arguments.database, DATABASE_KINDS, "all", "sqlite")
    chosen_carrying = _chosen(arguments.carry, CARRY_CHOICES, "all", "off")
    configurations = [
        Configuration(
            database=database,
            workload=workload,
            worker=worker,
            carry=carry,
            server_settings=tuple(arguments.server_settings),
        )
        for workload in _chosen(arguments.workload, tuple(WORKFLOW_TYPES), "all", "five")
        for worker in _chosen(arguments.worker, tuple(WORKER_MODULES), "both", "raw")
        for database in DATABASE_KINDS
        if database in chosen_databases
        # The published SDK carries nothing.
        for carry in (CARRY_CHOICES if worker == "raw" else CARRY_CHOICES[:1])
        if worker != "raw" or carry in chosen_carrying
    ]
    console = Console()
    machine = machine_facts()
    results, failures = await run_all(configurations, arguments.repeat, options, console)
    if arguments.json is not None:
        settings = {
            "workflows": options.workflow_count,
            "workers": options.worker_count,
            "activity_ms": options.activity_ms,
            "repeat": arguments.repeat,
        }
        write_json(arguments.json, to_json(results, failures, machine=machine, options=settings))
    if arguments.markdown is not None:
        arguments.markdown.write_text(to_markdown(results))
    show(console, results)
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted; everything that was started has been ended", file=sys.stderr)
        sys.exit(130)
