"""What a carried poll costs: a claim's statements and no commit, and nothing where no claim is allowed (row C24 of
docs/protocol/carried-polls.md).
"""

from __future__ import annotations

from typing import Any

import pytest

from durable import metrics
from tests import factories as make
from tests.budgets.statements import Cost, Statements
from tests.client import ApiClient
from tests.protocol.carrying import EACH_CARRIAGE, carried, complete_carrying, holding, members, offer

CLAIM = 6
LOOK = 2
INLINE_READS = 2
SWITCHES = {
    ("workflow", "activity"): "CARRY_ACTIVITY_ON_WORKFLOW",
    ("workflow", "workflow"): "CARRY_WORKFLOW_ON_WORKFLOW",
    ("activity", "workflow"): "CARRY_WORKFLOW_ON_ACTIVITY",
}


def cost_of(
    api: ApiClient, statements: Statements, completed: str, *ready: str, **polls: Any
) -> tuple[Cost, dict[str, Any], float]:
    """The statements of one completion while tasks of some kinds are ready; its members, and how often it committed."""
    make.register()
    lease = holding(completed, f"held-{len(statements)}")
    for kind in ready:
        offer(kind, f"next-{kind}-{len(statements)}")
    commits = metrics.COMMITS._value.get()
    with statements.during() as cost:
        answer = complete_carrying(api, lease, **polls)
    return cost, members(answer), metrics.COMMITS._value.get() - commits


def verbs(cost: Cost) -> list[str]:
    return [statement.verb for statement in cost.statements]


@EACH_CARRIAGE
def test_c24_adds_six_statements_and_no_commit_for_a_claim(
    api: ApiClient, statements: Statements, completed: str, kind: str
) -> None:
    plain, _, plain_commits = cost_of(api, statements, completed)
    cost, found, commits = cost_of(api, statements, completed, kind, **{f"{kind}_poll": carried()})

    assert found == {f"{kind}_poll": {"leased": True}}
    print(f"carried {kind} claim on {completed} completion: {len(cost) - len(plain)} statements more")
    cost.within(len(plain) + CLAIM)
    assert (plain_commits, commits) == (1, 1)
    assert verbs(cost).count("SAVEPOINT") == verbs(plain).count("SAVEPOINT") + 1


def test_c24_adds_two_reads_for_an_empty_queue(api: ApiClient, statements: Statements) -> None:
    plain, _, _ = cost_of(api, statements, "workflow")
    cost, found, commits = cost_of(api, statements, "workflow", activity_poll=carried())

    assert (found, commits) == ({"activity_poll": {"leased": False}}, 1)
    assert len(cost) == len(plain) + LOOK, str(cost)
    assert len(cost.writes) == len(plain.writes)


def test_c24_adds_a_look_and_a_claim_when_the_activity_queue_is_empty(api: ApiClient, statements: Statements) -> None:
    plain, _, _ = cost_of(api, statements, "workflow")
    cost, found, commits = cost_of(
        api, statements, "workflow", "workflow", activity_poll=carried("a"), workflow_poll=carried("w")
    )

    assert (found, commits) == ({"activity_poll": {"leased": False}, "workflow_poll": {"leased": True}}, 1)
    cost.within(len(plain) + LOOK + CLAIM)


def test_c24_adds_nothing_for_the_workflow_poll_once_an_activity_was_leased(
    api: ApiClient, statements: Statements
) -> None:
    alone, _, _ = cost_of(api, statements, "workflow", "activity", activity_poll=carried("a-1"))
    cost, found, commits = cost_of(
        api, statements, "workflow", "activity", "workflow", activity_poll=carried("a-2"), workflow_poll=carried("w")
    )

    assert (found, commits) == ({"activity_poll": {"leased": True}}, 1)
    assert verbs(cost) == verbs(alone)


# What forbids every claim.
FORBIDDEN: dict[str, dict[str, Any]] = {
    "activity poll foreign": {"activity_poll": carried("a", worker_id="w-2"), "workflow_poll": carried("w")},
    "workflow poll foreign": {"activity_poll": carried("a"), "workflow_poll": carried("w", worker_id="w-2")},
    "both invalid": {"activity_poll": carried("a", timeout_seconds=61), "workflow_poll": "nothing"},
    "activity poll without an id": {"activity_poll": carried(""), "workflow_poll": carried("w")},
}


@pytest.mark.parametrize("why", FORBIDDEN)
def test_c24_adds_nothing_where_no_claim_is_allowed(api: ApiClient, statements: Statements, why: str) -> None:
    plain, _, _ = cost_of(api, statements, "workflow", "workflow")
    cost, found, _ = cost_of(api, statements, "workflow", "workflow", **FORBIDDEN[why])

    assert found == {}
    assert verbs(cost) == verbs(plain)


@EACH_CARRIAGE
def test_c24_adds_nothing_when_switched_off(
    api: ApiClient, statements: Statements, override_durable: Any, completed: str, kind: str
) -> None:
    override_durable(**{SWITCHES[completed, kind]: False})
    plain, _, _ = cost_of(api, statements, completed, kind)
    cost, found, _ = cost_of(api, statements, completed, kind, **{f"{kind}_poll": carried()})

    assert found == {}
    assert verbs(cost) == verbs(plain)


@EACH_CARRIAGE
def test_c24_adds_nothing_to_a_repeat(api: ApiClient, statements: Statements, completed: str, kind: str) -> None:
    lease = holding(completed)
    complete_carrying(api, lease)
    offer(kind)
    with statements.during() as plain:
        complete_carrying(api, lease)

    with statements.during() as cost:
        answer = complete_carrying(api, lease, **{f"{kind}_poll": carried(deliver="inline")})

    assert answer.body["reason"] == "already_completed"
    assert verbs(cost) == verbs(plain)
    assert cost.writes == []


@EACH_CARRIAGE
def test_adds_two_reads_at_most_for_an_inline_task(
    api: ApiClient, statements: Statements, completed: str, kind: str
) -> None:
    plain, _, _ = cost_of(api, statements, completed, kind, **{f"{kind}_poll": carried("p-1")})
    cost, found, commits = cost_of(
        api, statements, completed, kind, **{f"{kind}_poll": carried("p-2", deliver="inline")}
    )

    assert "task" in found[f"{kind}_poll"]
    print(f"inline {kind} task on {completed} completion: {len(cost) - len(plain)} reads more")
    cost.within(len(plain) + INLINE_READS)
    assert len(cost.writes) == len(plain.writes)
    assert commits == 1
