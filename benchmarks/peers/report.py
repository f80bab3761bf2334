"""How a comparison is shown: every round, the means and the ratios as tables for people, all of it as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from benchmarks.peers.rounds import Figure, Outcome, System

FORMAT_VERSION = 1
TABLE_WIDTH = 110


COMPARED: Mapping[str, Figure] = {
    "wall s": lambda result: result.wall_seconds,
    "CPU ms per workflow": lambda result: result.cpu_ms_per_workflow,
}

_MEANS: Mapping[str, tuple[Figure, int]] = {
    "starts/s": (lambda result: result.starts_per_second, 0),
    "server CPU s": (lambda result: result.server_cpu_seconds, 2),
    "database CPU s": (lambda result: result.database_cpu_seconds, 2),
    "worker CPU s": (lambda result: result.worker_cpu_seconds, 2),
    "starter CPU s": (lambda result: result.starter_cpu_seconds, 2),
    "CPU ms per workflow": (COMPARED["CPU ms per workflow"], 1),
    "other CPU s": (lambda result: result.other_cpu_seconds, 2),
}


def show(console: Console, systems: Sequence[System], round_count: int, outcome: Outcome) -> None:
    console.width = max(console.width, TABLE_WIDTH)  # it takes 80 where there is no terminal, too few for the means
    console.print(_rounds_table(systems, round_count, outcome))
    console.print(_means_table(systems, outcome))
    for title, figure in COMPARED.items():
        console.print(_ratios_table(title, systems, outcome, figure))


def to_json(systems: Sequence[System], outcome: Outcome, **context: object) -> str:
    ours, peers = _names(systems)
    runs = [
        {
            "system": run.system,
            "round": run.round_number,
            **asdict(run.result),
            "starts_per_second": run.result.starts_per_second,
            "cpu_ms_per_workflow": run.result.cpu_ms_per_workflow,
        }
        for run in outcome.runs
    ]
    document = {
        "format": FORMAT_VERSION,
        **context,
        "runs": runs,
        "failures": [asdict(failure) for failure in outcome.failures],
        "means": {
            system.name: {title: outcome.mean(system.name, figure) for title, figure in COMPARED.items()}
            for system in systems
        },
        "ratios": {title: outcome.ratios(ours, peers, figure) for title, figure in COMPARED.items()},
    }
    return json.dumps(document, indent=2) + "\n"


def _rounds_table(systems: Sequence[System], round_count: int, outcome: Outcome) -> Table:
    table = Table(title="wall s of every round", title_justify="left")
    table.add_column("", no_wrap=True)
    rounds = range(1, round_count + 1)
    for heading in (*map(str, rounds), "mean"):
        table.add_column(heading, justify="right", no_wrap=True)
    for system in systems:
        results = [outcome.result(system.name, round_number) for round_number in rounds]
        walls = [_number(None if result is None else result.wall_seconds, 2) for result in results]
        table.add_row(system.name, *walls, _number(outcome.mean(system.name, COMPARED["wall s"]), 2))
    return table


def _means_table(systems: Sequence[System], outcome: Outcome) -> Table:
    table = Table(title="means over the rounds", title_justify="left")
    table.add_column("", no_wrap=True)
    for heading in _MEANS:
        table.add_column(heading, justify="right")
    for system in systems:
        cells = [_number(outcome.mean(system.name, figure), decimals) for figure, decimals in _MEANS.values()]
        table.add_row(system.name, *cells)
    return table


def _ratios_table(title: str, systems: Sequence[System], outcome: Outcome, figure: Figure) -> Table:
    ours, peers = _names(systems)
    table = Table(title=f"{title}: ours divided by the peer's", title_justify="left")
    table.add_column("", no_wrap=True)
    for peer in peers:
        table.add_column(peer, justify="right", no_wrap=True)
    for our, by_peer in outcome.ratios(ours, peers, figure).items():
        table.add_row(our, *(_number(ratio, 2) for ratio in by_peer.values()))
    return table


def _names(systems: Sequence[System]) -> tuple[list[str], list[str]]:
    """Ours and the peers."""
    ours = [system.name for system in systems if system.is_ours]
    return ours, [system.name for system in systems if not system.is_ours]


def _number(value: float | None, decimals: int) -> str:
    return "n/a" if value is None else f"{value:.{decimals}f}"
