"""Rounds over all systems, and what becomes of their figures: means, and ratios of ours to each peer's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rich.console import Console

from benchmarks.http1 import ConnectionLost, UnexpectedAnswer
from benchmarks.processes import ChildFailed
from benchmarks.report import RunResult
from benchmarks.steps import WrongOutcome

Figure = Callable[[RunResult], float | None]

# What one run may end with; the next system gets its chance. Anything else is a mistake in the benchmark itself.
_RUN_FAILURES = (ChildFailed, WrongOutcome, UnexpectedAnswer, ConnectionLost, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    name: str
    is_ours: bool
    measure: Callable[[], Awaitable[RunResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    system: str
    round_number: int
    result: RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A run that gave no result, and why."""

    system: str
    round_number: int
    error: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the rounds gave so far, in the order of the runs."""

    runs: list[Run] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def result(self, system: str, round_number: int) -> RunResult | None:
        """None when that run failed or has not been."""
        found = (run for run in self.runs if (run.system, run.round_number) == (system, round_number))
        return next((run.result for run in found), None)

    def mean(self, system: str, figure: Figure) -> float | None:
        """The mean over the rounds that gave a result; None when none did, or one lacks the figure."""
        figures = [figure(run.result) for run in self.runs if run.system == system]
        known = [value for value in figures if value is not None]
        return fmean(known) if known and len(known) == len(figures) else None

    def ratios(
        self, ours: Sequence[str], peers: Sequence[str], figure: Figure
    ) -> Mapping[str, Mapping[str, float | None]]:
        """Our mean divided by the peer's, by our system and the peer: below 1 we take less.

        None where either has no result, or the peer's mean is 0.
        """
        return {our: {peer: _ratio(self.mean(our, figure), self.mean(peer, figure)) for peer in peers} for our in ours}


def _ratio(ours: float | None, peers: float | None) -> float | None:
    return None if ours is None or not peers else ours / peers


def in_order_of_round(systems: Sequence[System], round_number: int) -> list[System]:
    """Each system once; every round, counted from 1, begins with the one that was second in the round before.

    So that over as many rounds as there are systems, each has been at every place once.
    """
    first = (round_number - 1) % len(systems)
    return [*systems[first:], *systems[:first]]


async def run_rounds(systems: Sequence[System], round_count: int, outcome: Outcome, console: Console) -> None:
    """Add every run to the outcome, which so holds all there is when this is interrupted."""
    for round_number in range(1, round_count + 1):
        for system in in_order_of_round(systems, round_number):
            try:
                result = await system.measure()
            except _RUN_FAILURES as error:
                text = f"{type(error).__name__}: {error}"
                notes = "\n".join(getattr(error, "__notes__", ()))
                console.print(f"{system.name}: FAILED, {text}\n{notes}", style="red", markup=False, soft_wrap=True)
                outcome.failures.append(Failure(system=system.name, round_number=round_number, error=text))
                continue
            console.print(f"round {round_number}, {system.name}: {result.wall_seconds:.2f} s", highlight=False)
            for note in result.notes:
                console.print(f"  {note}", style="yellow")
            outcome.runs.append(Run(system=system.name, round_number=round_number, result=result))
