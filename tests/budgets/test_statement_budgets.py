"""Budgets of the hot path in statements, through the real routes, with registration, poll ids and receipts present.

Statements, not seconds (docs/design.md 4). Not counted: BEGIN, COMMIT, SAVEPOINT, RELEASE, the reservation of a poll
id, and the look-up of token and namespace, which is cached before each test begins.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from durable.commands.registry import checkpoint_types
from tests import factories as make
from tests.budgets.routes import Command, checkpoint, complete, finish_step, lease_over_api, local_activity
from tests.budgets.statements import Cost, Statements
from tests.client import ApiClient
from tests.parking import hint, park_polls, parked_count, wait_until
from tests.protocol.reports import poll, send

CLAIM = 6
NEW_EMPTY_POLL = 2
PROBE = 1
REPLAY = 3
COMPLETION = 12
ACTIVITY_COMPLETION = 11

COMMANDS: dict[str, Callable[[], Command]] = {
    "schedule_activity": make.schedule,
    "record_local_activity": local_activity,
    "complete_workflow": make.finish,
    "fail_workflow": lambda: {"type": "fail_workflow", "message": "boom"},
}


def show(name: str, cost: Cost) -> None:
    """The number, for whoever runs this with -s."""
    print(f"{name}: {len(cost)} statements")


# -- polls -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_claims_within_six_statements(api: ApiClient, statements: Statements, kind: str) -> None:
    make.start()
    if kind == "activity":
        make.complete(make.lease_workflow(), make.schedule())

    with statements.during() as cost:
        lease_over_api(api, kind)

    show(f"claim of {kind} task", cost.within(CLAIM))


@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_claims_any_type_within_six_statements(api: ApiClient, statements: Statements, kind: str) -> None:
    make.register("w-1", supported_workflow_types=[], supported_activity_types=[])
    make.start()
    if kind == "activity":
        make.complete(make.lease_workflow(), make.schedule())

    with statements.during() as cost:
        lease_over_api(api, kind)

    show(f"claim of {kind} task of any type", cost.within(CLAIM))


@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_replays_a_poll_with_three_reads(api: ApiClient, statements: Statements, kind: str) -> None:
    make.start()
    if kind == "activity":
        make.complete(make.lease_workflow(), make.schedule())
    first = lease_over_api(api, kind)

    with statements.during() as cost:
        again = lease_over_api(api, kind)

    assert again.task_id == first.task_id
    assert cost.writes == []
    show(f"replay of {kind} poll", cost.within(REPLAY))


@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_answers_a_new_empty_poll_after_two_reads(api: ApiClient, statements: Statements, kind: str) -> None:
    with statements.during() as cost:
        answer = poll(api, kind, poll_request_id="p-1")

    assert answer.body["poll_status"] == "empty"
    assert len(cost.statements) == NEW_EMPTY_POLL, str(cost)


@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_parks_a_new_poll_after_two_reads(api: ApiClient, statements: Statements, kind: str) -> None:
    with statements.during() as cost:
        (waiting,) = park_polls(api, 1, kind, poll_request_id="p-1")

    waiting.cancel()
    assert len(cost.statements) == NEW_EMPTY_POLL, str(cost)


@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_looks_again_with_one_read(api: ApiClient, statements: Statements, kind: str) -> None:
    (waiting,) = park_polls(api, 1, kind, poll_request_id="p-1")
    before = len(statements)

    with statements.during() as cost:
        hint(api, kind)
        wait_until(lambda: len(statements) > before and parked_count(api) == 1)

    waiting.cancel()
    assert len(cost.statements) == PROBE, str(cost)


# -- reports -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_completes_with_one_command_within_twelve_statements(
    api: ApiClient, statements: Statements, command: str
) -> None:
    make.start()
    lease = lease_over_api(api, "workflow")

    with statements.during() as cost:
        complete(api, lease, COMMANDS[command]())

    show(f"completion with {command}", cost.within(COMPLETION))


def test_completes_within_twelve_statements_when_the_next_task_follows_at_once(
    api: ApiClient, statements: Statements
) -> None:
    make.start()
    make.complete(make.lease_workflow(), *make.schedule_list(2))
    make.complete_step(make.lease_activity())
    make.complete_step(make.lease_activity())
    lease = lease_over_api(api, "workflow")

    with statements.during() as cost:
        complete(api, lease, make.schedule())

    show("completion after a list", cost.within(COMPLETION))


@pytest.mark.parametrize("command", [name for name in COMMANDS if name in checkpoint_types()])
def test_checkpoints_one_command_with_no_more_statements_than_a_completion(
    api: ApiClient, statements: Statements, command: str
) -> None:
    costs = []
    for step in (checkpoint, complete):
        make.start()
        lease = lease_over_api(api, "workflow", f"p-{step.__name__}")
        with statements.during() as cost:
            step(api, lease, COMMANDS[command]())
        costs.append(cost)

    of_checkpoint, of_completion = costs
    show(f"checkpoint with {command}", of_checkpoint.within(len(of_completion)))


def test_answers_a_repeated_checkpoint_without_a_write(api: ApiClient, statements: Statements) -> None:
    make.start()
    lease = lease_over_api(api, "workflow")
    command = make.schedule()
    checkpoint(api, lease, command)

    with statements.during() as cost:
        checkpoint(api, lease, command)

    assert cost.writes == []
    show("duplicate checkpoint", cost.within(4))


def test_answers_a_repeated_completion_without_a_write(api: ApiClient, statements: Statements) -> None:
    make.start()
    lease = lease_over_api(api, "workflow")
    command = make.schedule()
    complete(api, lease, command)

    with statements.during() as cost:
        complete(api, lease, command)

    assert cost.writes == []
    show("duplicate completion", cost.within(4))


def test_completes_an_activity_within_eleven_statements(api: ApiClient, statements: Statements) -> None:
    make.start()
    make.complete(make.lease_workflow(), make.schedule())
    lease = lease_over_api(api, "activity")

    with statements.during() as cost:
        finish_step(api, lease)

    show("activity completion", cost.within(ACTIVITY_COMPLETION))


def test_completes_an_activity_that_reported_progress_within_eleven_statements(
    api: ApiClient, statements: Statements
) -> None:
    make.start()
    make.complete(make.lease_workflow(), make.schedule())
    lease = lease_over_api(api, "activity")
    send(api, lease, "heartbeat", details={"done": 1})

    with statements.during() as cost:
        finish_step(api, lease)

    show("activity completion after progress", cost.within(ACTIVITY_COMPLETION))


@pytest.mark.parametrize("members_before", [0, 1, 2])
def test_completes_a_list_member_within_eleven_statements(
    api: ApiClient, statements: Statements, members_before: int
) -> None:
    make.start()
    make.complete(make.lease_workflow(), *make.schedule_list(3))
    for _ in range(members_before):
        make.complete_step(make.lease_activity())
    lease = lease_over_api(api, "activity")

    with statements.during() as cost:
        finish_step(api, lease)

    show(f"completion of list member {members_before + 1} of 3", cost.within(ACTIVITY_COMPLETION))


# -- lists of a thousand -----------------------------------------------------------------------------------------------

LEAVES = 1000
# One statement per 30,000 values: a thousand tasks need two inserts.
LIST_COMPLETION = COMPLETION + 2


def test_schedules_a_thousand_leaves_in_few_statements(api: ApiClient, statements: Statements) -> None:
    make.start()
    lease = lease_over_api(api, "workflow")

    with statements.during() as cost:
        complete(api, lease, *make.schedule_list(LEAVES))

    show(f"completion with {LEAVES} leaves", cost.within(LIST_COMPLETION))


def test_completes_one_of_a_thousand_leaves_within_eleven_statements(api: ApiClient, statements: Statements) -> None:
    make.start()
    make.complete(make.lease_workflow(), *make.schedule_list(LEAVES))
    lease = lease_over_api(api, "activity")

    with statements.during() as cost:
        finish_step(api, lease)

    show(f"completion of one of {LEAVES} leaves", cost.within(ACTIVITY_COMPLETION))


def test_closes_a_run_with_a_thousand_open_activities_in_few_statements(api: ApiClient, statements: Statements) -> None:
    started = make.start()
    make.complete(make.lease_workflow(), *make.schedule_list(LEAVES))

    with statements.during() as cost:
        answer = api.post(f"/api/workflows/{started.run.workflow_id}/terminate")

    assert answer.status == 200, answer.body
    show(f"termination with {LEAVES} open activities", cost.within(20))
