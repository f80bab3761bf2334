"""It leaves all of an operation or nothing when its process is killed between two statements, and the run goes on."""

from __future__ import annotations

import signal

import pytest

from tests import factories as make
from tests.crash.dying import COMMIT, ForkServer
from tests.crash.scenarios import SCENARIOS, Scenario, describe, repeat, run_to_its_end, wait_for_the_dead_session
from tests.invariants import check_invariants
from tests.snapshot import changed_tables, take_snapshot


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_survives_a_kill_between_any_two_statements_of(scenario: Scenario, forks: ForkServer) -> None:
    make.register()
    points = forks.run(scenario("counted")).points
    done = describe("counted")
    run_to_its_end("counted")

    # One operation is one transaction.
    assert points.count(COMMIT) == 1
    for die_at, point in enumerate(points):
        check_death(scenario, forks, die_at=die_at, point=point, done=done)
    check_invariants()


def check_death(
    scenario: Scenario, forks: ForkServer, *, die_at: int, point: str, done: dict[str, list[object]]
) -> None:
    """Kill the operation at one point; look at what is there from another connection; go on to the run's end."""
    workflow_id = f"killed-before-{die_at}"
    call = scenario(workflow_id)
    before = take_snapshot()

    death = forks.run(call, die_at=die_at)

    wait_for_the_dead_session()
    assert death.signal == signal.SIGKILL
    if death.was_committed:
        assert describe(workflow_id) == done, f"half of it after {point}"
    else:
        assert changed_tables(before, take_snapshot()) == [], f"something of it before {point}"
    assert repeat(call) is death.was_committed, point
    assert run_to_its_end(workflow_id).closed_at is not None
