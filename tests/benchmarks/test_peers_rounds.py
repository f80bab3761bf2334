"""The comparison with other systems: the order of the runs, means, ratios, and what a failed run does."""

from __future__ import annotations

import asyncio
import io
import json

import pytest
from rich.console import Console

from benchmarks.peers.report import COMPARED, show, to_json
from benchmarks.peers.rounds import Failure, Outcome, Run, System, in_order_of_round, run_rounds
from benchmarks.processes import ChildFailed
from benchmarks.report import RunResult
from tests.benchmarks.results import make_result

WALL = COMPARED["wall s"]
CPU = COMPARED["CPU ms per workflow"]


def make_system(name, *, is_ours=False, answers=(), log=None):
    """A system whose runs end with these, one after another: a result, or an error to raise."""
    remaining = list(answers)

    async def measure() -> RunResult:
        if log is not None:
            log.append(name)
        answer = remaining.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return System(name=name, is_ours=is_ours, measure=measure)


def outcome_of(**walls):
    """Runs with these wall times, by system, in rounds counted from 1; None for a failed one."""
    outcome = Outcome()
    for system, seconds in walls.items():
        for round_number, wall_seconds in enumerate(seconds, 1):
            if wall_seconds is None:
                outcome.failures.append(Failure(system=system, round_number=round_number, error="broke"))
            else:
                result = make_result(wall_seconds=wall_seconds)
                outcome.runs.append(Run(system=system, round_number=round_number, result=result))
    return outcome


def run(systems, round_count, outcome):
    console = Console(file=io.StringIO())
    asyncio.run(run_rounds(systems, round_count, outcome, console))
    return console.file.getvalue()


def shown(systems, round_count, outcome):
    console = Console(file=io.StringIO(), width=80)
    show(console, systems, round_count, outcome)
    return console.file.getvalue()


# Order


def test_begins_every_round_with_the_system_that_was_second_before():
    systems = [make_system(name) for name in ("a", "b", "c")]

    orders = ["".join(system.name for system in in_order_of_round(systems, number)) for number in (1, 2, 3, 4)]

    assert orders == ["abc", "bca", "cab", "abc"]


def test_runs_each_system_once_in_every_round():
    log = []
    systems = [make_system(name, answers=[make_result()] * 2, log=log) for name in ("a", "b", "c")]
    outcome = Outcome()

    run(systems, 2, outcome)

    assert log == ["a", "b", "c", "b", "c", "a"]
    assert [(run.round_number, run.system) for run in outcome.runs] == [
        (1, "a"),
        (1, "b"),
        (1, "c"),
        (2, "b"),
        (2, "c"),
        (2, "a"),
    ]


# Failures


def test_goes_on_after_a_failed_run_and_reports_it():
    failing = make_system("a", answers=[ChildFailed("the server ended with 1"), make_result(wall_seconds=4.0)])
    outcome = Outcome()

    text = run([failing, make_system("b", answers=[make_result()] * 2)], 2, outcome)

    assert outcome.failures == [Failure(system="a", round_number=1, error="ChildFailed: the server ended with 1")]
    assert [run.system for run in outcome.runs] == ["b", "b", "a"]
    assert "the server ended with 1" in text


def test_stops_at_a_mistake_of_the_benchmark_itself():
    systems = [make_system("a", answers=[KeyError("event")]), make_system("b", answers=[make_result()])]

    with pytest.raises(KeyError):
        run(systems, 1, Outcome())


def test_keeps_the_runs_it_had_when_it_is_interrupted():
    systems = [make_system("a", answers=[make_result()]), make_system("b", answers=[asyncio.CancelledError()])]
    outcome = Outcome()

    with pytest.raises(asyncio.CancelledError):
        run(systems, 1, outcome)

    assert [run.system for run in outcome.runs] == ["a"]


# Means and ratios


def test_divides_the_mean_of_ours_by_the_mean_of_the_peer():
    outcome = outcome_of(ours=[4.0, 6.0], quick=[2.0, 2.0], slow=[10.0, 30.0])

    assert outcome.ratios(["ours"], ["quick", "slow"], WALL) == {"ours": {"quick": 2.5, "slow": 0.25}}


def test_leaves_failed_rounds_out_of_the_mean():
    outcome = outcome_of(ours=[4.0, None, 6.0], peer=[2.0, 2.0, 8.0])

    assert outcome.mean("ours", WALL) == 5.0
    assert outcome.ratios(["ours"], ["peer"], WALL) == {"ours": {"peer": 1.25}}


@pytest.mark.parametrize(
    ("ours", "peer"), [([None], [2.0]), ([2.0], [None]), ([2.0], [0.0])], ids=["no ours", "no peer", "a peer of 0"]
)
def test_gives_no_ratio_where_there_is_none(ours, peer):
    outcome = outcome_of(ours=ours, peer=peer)

    assert outcome.ratios(["ours"], ["peer"], WALL) == {"ours": {"peer": None}}


def test_gives_no_mean_of_a_figure_that_one_run_lacks():
    outcome = Outcome()
    for round_number, seconds in ((1, 3.0), (2, None)):
        result = make_result(database_cpu_seconds=seconds)
        outcome.runs.append(Run(system="a", round_number=round_number, result=result))

    assert outcome.mean("a", lambda result: result.database_cpu_seconds) is None
    assert outcome.mean("a", WALL) == 5.0


def test_counts_all_processes_of_a_system_as_its_cpu_time():
    outcome = Outcome()
    parts = {"server_cpu_seconds": 1.0, "worker_cpu_seconds": 2.0, "starter_cpu_seconds": 0.5}
    result = make_result(workflow_count=100, database_cpu_seconds=1.5, other_cpu_seconds=9.0, **parts)
    outcome.runs.append(Run(system="a", round_number=1, result=result))

    assert outcome.mean("a", CPU) == 50.0


# What is shown


def test_shows_every_round_the_mean_and_the_ratios():
    systems = [make_system("ours", is_ours=True), make_system("peer")]

    text = shown(systems, 2, outcome_of(ours=[4.25, 6.25], peer=[8.0, None]))

    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line]
    assert ["ours", "4.25", "6.25", "5.25"] in rows
    assert ["peer", "8.00", "n/a", "8.00"] in rows
    assert ["ours", "0.66"] in rows
    assert "…" not in text  # nothing is cut off


def test_writes_runs_failures_means_and_ratios_as_json():
    systems = [make_system("ours", is_ours=True), make_system("peer")]

    document = json.loads(to_json(systems, outcome_of(ours=[3.0, 5.0], peer=[8.0, None]), options={"rounds": 2}))

    assert document["options"] == {"rounds": 2}
    assert [(run["system"], run["round"], run["wall_seconds"]) for run in document["runs"]] == [
        ("ours", 1, 3.0),
        ("ours", 2, 5.0),
        ("peer", 1, 8.0),
    ]
    assert document["failures"] == [{"system": "peer", "round_number": 2, "error": "broke"}]
    assert document["means"]["ours"]["wall s"] == 4.0
    assert document["ratios"]["wall s"] == {"ours": {"peer": 0.5}}
