"""The result of one run, and how results are shown: a table for people, JSON for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, median

from rich.console import Console
from rich.table import Table

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One run of the workload. A count is None when the server does not publish the counter behind it."""

    database: str
    workload: str
    worker: str
    workflow_count: int
    wall_seconds: float  # first start request sent to last `closed_at`
    observed_wall_seconds: float  # the same, to the moment the last worker reported
    starting_seconds: float  # first start request sent to last start answered
    server_cpu_seconds: float
    worker_cpu_seconds: float
    database_cpu_seconds: float | None  # None: inside the server process (SQLite), or not visible
    starter_cpu_seconds: float
    other_cpu_seconds: float  # everything else on the machine meanwhile
    request_count: float | None
    commit_count: float | None
    statement_count: float | None
    locked_poll_count: float | None
    requests_by_route: Mapping[str, float] | None = None
    polls: Mapping[str, float] | None = None
    claims: Mapping[str, float] | None = None
    completions: Mapping[str, float] | None = None
    carried_polls: Mapping[str, float] | None = None
    carry: str = "off"
    server_settings: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def starts_per_second(self) -> float:
        return self.workflow_count / self.starting_seconds

    @property
    def cpu_ms_per_workflow(self) -> float:
        """Server, database, workers and starter together."""
        parts = (self.server_cpu_seconds, self.worker_cpu_seconds, self.starter_cpu_seconds)
        return 1000 * (sum(parts) + (self.database_cpu_seconds or 0.0)) / self.workflow_count

    @property
    def report_count(self) -> float | None:
        """Starts and completions: the requests that every run of the workload must make."""
        return self._requests_that(_is_report)

    @property
    def other_request_count(self) -> float | None:
        """Polls, registrations, heartbeats and reads of results."""
        return self._requests_that(lambda route: not _is_report(route))

    def _requests_that(self, keep: Callable[[str], bool]) -> float | None:
        if self.requests_by_route is None:
            return None
        return sum(count for route, count in self.requests_by_route.items() if keep(route))

    def per_workflow(self, count: float | None) -> float | None:
        return None if count is None else count / self.workflow_count


def _is_report(route: str) -> bool:
    """Whether a row of `requests_by_route` is a start or a completion."""
    return "task-complete" in route or route.startswith("POST workflows")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailure:
    """A run that gave no result, and why."""

    database: str
    workload: str
    worker: str
    error: str
    carry: str = "off"


def to_json(results: Iterable[RunResult], failures: Iterable[RunFailure], **context: object) -> str:
    runs = [
        {
            **asdict(result),
            "starts_per_second": result.starts_per_second,
            "cpu_ms_per_workflow": result.cpu_ms_per_workflow,
        }
        for result in results
    ]
    document = {"format": FORMAT_VERSION, **context, "runs": runs, "failures": [asdict(item) for item in failures]}
    return json.dumps(document, indent=2) + "\n"


def write_json(path: Path, document: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document)


def show(console: Console, results: Sequence[RunResult]) -> None:
    """Print one table for each workload, kind of worker and way of carrying, with a column for each database."""
    tables: dict[tuple[str, str, str], dict[str, list[RunResult]]] = {}
    for result in results:
        key = (result.workload, result.worker, result.carry)
        tables.setdefault(key, {}).setdefault(result.database, []).append(result)
    for (workload, worker, carry), by_database in tables.items():
        title = f"{workload}, {worker} workers" + ("" if carry == "off" else f", carrying: {carry}")
        console.print(_table(title, by_database))


def _table(title: str, by_database: Mapping[str, Sequence[RunResult]]) -> Table:
    """Medians of the runs. Counts and CPU milliseconds are per workflow, other times for the whole run."""
    columns = list(by_database.values())
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for database in by_database:
        table.add_column(database, justify="right", no_wrap=True)

    def add(name: str, value: Callable[[RunResult], float | None], decimals: int) -> None:
        table.add_row(name, *(_median(runs, value, decimals) for runs in columns))

    add("wall s", lambda run: run.wall_seconds, 2)
    if any(len(runs) > 1 for runs in columns):
        walls = [[run.wall_seconds for run in runs] for runs in columns]
        table.add_row("  fastest / slowest", *(f"{min(each):.2f} / {max(each):.2f}" for each in walls))
    add("starts/s", lambda run: run.starts_per_second, 0)
    table.add_section()
    add("server CPU s", lambda run: run.server_cpu_seconds, 2)
    add("database CPU s", lambda run: run.database_cpu_seconds, 2)
    add("worker CPU s", lambda run: run.worker_cpu_seconds, 2)
    add("starter CPU s", lambda run: run.starter_cpu_seconds, 2)
    add("CPU ms per workflow", lambda run: run.cpu_ms_per_workflow, 1)
    add("other CPU s", lambda run: run.other_cpu_seconds, 2)
    table.add_section()
    add("requests per workflow", lambda run: run.per_workflow(run.request_count), 2)
    for route in sorted({route for runs in columns for run in runs for route in run.requests_by_route or ()}):
        add(f"  {_short(route)}", partial(_requests_of_route, route), 2)
    add("commits per workflow", lambda run: run.per_workflow(run.commit_count), 2)
    add("statements per workflow", lambda run: run.per_workflow(run.statement_count), 1)
    add("locked polls per workflow", lambda run: run.per_workflow(run.locked_poll_count), 2)
    return table


def _requests_of_route(route: str, run: RunResult) -> float | None:
    return None if run.requests_by_route is None else run.per_workflow(run.requests_by_route.get(route, 0.0))


def _short(route: str) -> str:
    """`POST worker/register` for `POST /api/worker/register 201`; the status stays when it is no success."""
    return re.sub(r" 2\d\d$", "", re.sub(r" /?api/", " ", route))


def _median(runs: Iterable[RunResult], value: Callable[[RunResult], float | None], decimals: int) -> str:
    """The median, or n/a when a run lacks the value."""
    known = []
    for run in runs:
        item = value(run)
        if item is None:
            return "n/a"
        known.append(item)
    return f"{median(known):.{decimals}f}"


# -- for RESULTS.md ----------------------------------------------------------------------------------------------------

_MEASURES: Sequence[tuple[str, Callable[[RunResult], float | None], int]] = (
    ("wall s", lambda run: run.wall_seconds, 2),
    ("server CPU s", lambda run: run.server_cpu_seconds, 2),
    ("database CPU s", lambda run: run.database_cpu_seconds, 2),
    ("CPU ms per workflow", lambda run: run.cpu_ms_per_workflow, 1),
    ("locked polls", lambda run: run.locked_poll_count, 0),
    ("write transactions", lambda run: run.commit_count, 0),
    ("statements", lambda run: run.statement_count, 0),
    ("starts and completions per workflow", lambda run: run.per_workflow(run.report_count), 2),
    ("other requests per workflow", lambda run: run.per_workflow(run.other_request_count), 2),
)


def to_markdown(results: Sequence[RunResult]) -> str:
    """One table for each workload, worker and database: every repetition, the mean, and the ratio to not carrying."""
    tables: dict[tuple[str, str, str], dict[str, list[RunResult]]] = {}
    for result in results:
        key = (result.workload, result.worker, result.database)
        tables.setdefault(key, {}).setdefault(result.carry, []).append(result)
    return "\n".join(_markdown_table(*key, by_carry) for key, by_carry in tables.items())


def _markdown_table(workload: str, worker: str, database: str, by_carry: Mapping[str, Sequence[RunResult]]) -> str:
    ways = list(by_carry)
    lines = [
        f"#### {workload}, {database}, {worker} workers",
        "",
        "| | " + " | ".join(f"carry {way}" for way in ways) + " |",
        "| --- " * (len(ways) + 1) + "|",
    ]
    for name, value, decimals in _MEASURES:
        plain = mean_of(by_carry["off"], value) if "off" in by_carry else None
        cells = [_repetitions(by_carry[way], value, decimals, None if way == "off" else plain) for way in ways]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def mean_of(runs: Sequence[RunResult], value: Callable[[RunResult], float | None]) -> float | None:
    """The mean, or None when a run lacks the value."""
    known = [item for run in runs if (item := value(run)) is not None]
    return fmean(known) if known and len(known) == len(runs) else None


def _repetitions(
    runs: Sequence[RunResult], value: Callable[[RunResult], float | None], decimals: int, plain: float | None
) -> str:
    mean = mean_of(runs, value)
    if mean is None:
        return "n/a"
    each = " ".join(f"{value(run) or 0.0:.{decimals}f}" for run in runs)
    ratio = f", x {mean / plain:.2f}" if plain else ""
    return f"**{mean:.{decimals}f}**{ratio} ({each})"
