"""Our server and other systems on the same work, alternating, and the ratios.

    python -m benchmarks.peers --rounds 3 --json peers.json

The workload is "five" of benchmarks.steps: workflows of five steps of 20 ms, started one after another, six worker
processes. See ../README.md for what is compared, and what to mind.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.databases import DEFAULT_SERVERS, DatabaseKind
from benchmarks.measure import machine_facts
from benchmarks.peers.environment import NotInstalled, install, versions
from benchmarks.peers.report import show, to_json
from benchmarks.peers.rounds import Outcome, System, run_rounds
from benchmarks.peers.run_peer import measure_peer
from benchmarks.peers.systems import PEERS
from benchmarks.processes import PROJECT
from benchmarks.report import write_json
from benchmarks.steps import WORKER_MODULES, Configuration, Options, measure
from benchmarks.worker_process import CARRY_CHOICES

OUR_DATABASES: Mapping[str, DatabaseKind] = {"sqlite": "sqlite", "postgres": "postgres", "mariadb": "mysql"}


def _names_from(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A type of argument: some of these names, separated by commas, each at most once."""

    def names(text: str) -> list[str]:
        chosen = text.split(",")
        unknown = [name for name in chosen if name not in known]
        if unknown or len(set(chosen)) < len(chosen):
            raise argparse.ArgumentTypeError(f"choose from {','.join(known)}, each once, not {text!r}")
        return chosen

    return names


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return number


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.split("\n", 1)[0])
    for option, known, default, help_text in (
        ("--peers", PEERS, PEERS, "the systems to compare with"),
        ("--ours", OUR_DATABASES, OUR_DATABASES, "the databases our server runs on"),
        ("--ours-worker", WORKER_MODULES, ["raw"], "the workers our server runs with"),
        ("--carry", CARRY_CHOICES, ["off"], "whether our raw workers carry polls"),
    ):
        listed, chosen = ",".join(known), ",".join(default)
        parser.add_argument(
            option,
            type=_names_from(list(known)),
            default=list(default),
            metavar="NAMES",
            help=f"{help_text}, separated by commas: {listed}; default: {chosen}",
        )
    parser.add_argument("--rounds", type=_positive, default=3, metavar="N", help="runs of each system; default: 3")
    parser.add_argument("--workflows", type=_positive, default=200, metavar="N")
    parser.add_argument("--workers", type=_positive, default=6, metavar="N", help="worker processes")
    parser.add_argument("--activity-ms", type=float, default=20.0, metavar="MS", help="how long each step sleeps")
    parser.add_argument("--deadline", type=float, default=120.0, metavar="SECONDS", help="limit of one workload")
    parser.add_argument(
        "--dbos-polling-ms",
        type=float,
        default=50.0,
        metavar="MS",
        help="how often a DBOS worker looks for a workflow; default: 50 (DBOS's own: 1000)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all runs to this file")
    parser.add_argument("--directory", type=Path, help="where SQLite files and logs live while a run lasts")
    for kind, server in DEFAULT_SERVERS.items():
        parser.add_argument(f"--{kind}-server", default=server, metavar="URL", help=f"default: {server}")
    return parser.parse_args(arguments)


def _name_of(configuration: Configuration) -> str:
    carrying = "" if configuration.carry == "off" else f" carry={configuration.carry}"
    name = next(name for name, kind in OUR_DATABASES.items() if kind == configuration.database)
    return f"durable {name} {configuration.worker}{carrying}"


def chosen_systems(arguments: argparse.Namespace, options: Options) -> list[System]:
    """Ours first, then the peers."""
    configurations = [
        Configuration(database=OUR_DATABASES[name], workload="five", worker=worker, carry=carry)
        for worker in arguments.ours_worker
        for carry in arguments.carry
        # The published SDK carries nothing.
        if worker == "raw" or carry == "off"
        for name in arguments.ours
    ]
    if not configurations:
        raise SystemExit("--ours-worker sdk carries nothing: add --carry off, or raw workers.")
    ours = [
        System(name=_name_of(configuration), is_ours=True, measure=partial(measure, configuration, options))
        for configuration in configurations
    ]
    polling_seconds = arguments.dbos_polling_ms / 1000
    peers = [
        System(name=name, is_ours=False, measure=partial(measure_peer, name, PEERS[name], options, polling_seconds))
        for name in arguments.peers
    ]
    return [*ours, *peers]


async def compare(arguments: argparse.Namespace) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    options = Options(
        workflow_count=arguments.workflows,
        worker_count=arguments.workers,
        activity_ms=arguments.activity_ms,
        deadline_seconds=arguments.deadline,
        manage=PROJECT / "manage.py",
        directory=arguments.directory,
        servers={kind: getattr(arguments, f"{kind}_server") for kind in DEFAULT_SERVERS},
    )
    systems = chosen_systems(arguments, options)
    console = Console()
    machine = {**machine_facts(), **versions()}
    outcome = Outcome()
    try:
        await run_rounds(systems, arguments.rounds, outcome, console)
    finally:
        settings = {
            "rounds": arguments.rounds,
            "workflows": options.workflow_count,
            "workers": options.worker_count,
            "activity_ms": options.activity_ms,
            "dbos_polling_ms": arguments.dbos_polling_ms,
        }
        if arguments.json is not None:
            write_json(arguments.json, to_json(systems, outcome, machine=machine, options=settings))
        show(console, systems, arguments.rounds, outcome)
    return 1 if outcome.failures else 0


def main() -> int:
    arguments = parse_arguments()
    try:
        install()
        return asyncio.run(compare(arguments))
    except NotInstalled as error:
        print(error, file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted; everything that was started has been ended", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
