"""What a step costs depends neither on how long the run's history is nor on how much else is waiting.

How the cost stands to the size of the tables is measured on a million rows (test_scale_*.py).
"""

from __future__ import annotations

from collections.abc import Callable

from durable.ids import new_id
from durable.models import Run
from tests import factories as make
from tests.budgets.routes import complete, finish_step, lease_over_api, local_activity
from tests.budgets.statements import Statements
from tests.client import ApiClient
from tests.protocol.reports import send

# A local activity leaves three events.
MANY_LOCAL_ACTIVITIES = 666
EVENTS_OF_A_SHORT_HISTORY = 3


def costs_of_a_step(api: ApiClient, statements: Statements) -> dict[str, int]:
    """Statements of one whole step of the run whose workflow task is ready, by what was asked."""
    costs = {}
    poll_ids = [f"p-{new_id()}" for _ in range(3)]

    def measure(name: str, ask: Callable[[], make.Lease | None]) -> make.Lease | None:
        with statements.during() as cost:
            outcome = ask()
        costs[name] = len(cost)
        return outcome

    lease = measure("claim", lambda: lease_over_api(api, "workflow", poll_ids[0]))
    assert lease is not None
    measure("replay", lambda: lease_over_api(api, "workflow", poll_ids[0]))
    measure("history", lambda: send(api, lease, "history", next_history_page_token="Mg==") and None)
    measure("heartbeat", lambda: send(api, lease, "heartbeat") and None)
    measure("completion", lambda: complete(api, lease, make.schedule()))
    step = measure("activity claim", lambda: lease_over_api(api, "activity", poll_ids[1]))
    assert step is not None
    measure("activity replay", lambda: lease_over_api(api, "activity", poll_ids[1]))
    measure("activity heartbeat", lambda: send(api, step, "heartbeat", details={"done": 1}) and None)
    measure("activity completion", lambda: finish_step(api, step))
    last = measure("last claim", lambda: lease_over_api(api, "workflow", poll_ids[2]))
    assert last is not None
    measure("end", lambda: complete(api, last, make.finish()))
    return costs


def run_with_history(local_activities: int) -> int:
    """A run whose workflow task is ready, after some steps; returns how many events it has."""
    started = make.start()
    lease = make.lease_workflow()
    # What follows wakes the run again, so that it has a ready task.
    make.complete(lease, *(local_activity() for _ in range(local_activities)), make.schedule())
    make.complete_step(make.lease_activity())
    return Run.objects.get(id=started.run.id).last_history_sequence


def test_costs_the_same_after_two_thousand_events(api: ApiClient, statements: Statements) -> None:
    short = run_with_history(0)
    after_few = costs_of_a_step(api, statements)

    long = run_with_history(MANY_LOCAL_ACTIVITIES)
    after_many = costs_of_a_step(api, statements)

    assert (short <= 5, long >= 2000) == (True, True), (short, long)
    assert after_many == after_few


def test_costs_the_same_beside_a_backlog(api: ApiClient, statements: Statements) -> None:
    run_with_history(0)
    alone = costs_of_a_step(api, statements)
    for _ in range(300):
        make.start(priority=9)

    run_with_history(0)
    with_backlog = costs_of_a_step(api, statements)

    assert with_backlog == alone
