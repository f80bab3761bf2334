"""A fault in a carried claim takes the completion with it (docs/protocol/carried-polls.md; row C11).

Nothing is recorded in any table, the answer is the route's own 5xx, and the same completion sent again succeeds.
Counterfactual, run once by hand: with `except Exception` beside `except PollRefusal` in `carried_polls._claim` every
`test_c11_…` fails, here and in test_carried_poll_refusals.py (364 of 364).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
    connection,
)

from durable import claims, metrics
from durable.models import ActivityAttempt, ActivityExecution, CompletionReceipt, HistoryEvent, PollReceipt, Run
from durable.states import TaskKind
from durable.task_bodies import UnreadableTaskError
from tests import factories as make
from tests.client import ApiClient, Response
from tests.protocol.carrying import (
    CARRIAGES,
    EACH_CARRIAGE,
    around_each_claim,
    carried,
    claim_failing_at,
    complete_carrying,
    holding,
    leases_of,
    members,
    offer,
)
from tests.protocol.reports import leased, poll
from tests.snapshot import changed_tables, nothing_recorded, take_snapshot

# Errors that are not tried again, and the status of the route's answer to each.
FAULTS: dict[str, tuple[Exception, int]] = {
    "lost connection": (OperationalError("injected"), 503),
    "integrity": (IntegrityError("injected"), 500),
    "data": (DataError("injected"), 500),
    "invariant": (AssertionError("injected"), 500),
}
OTHER_FAULTS: dict[str, tuple[Exception, int]] = {
    "interface": (InterfaceError("injected"), 503),
    "programming": (ProgrammingError("injected"), 500),
    "internal": (InternalError("injected"), 500),
    "any database error": (DatabaseError("injected"), 500),
    "key": (KeyError("injected"), 500),
    "type": (TypeError("injected"), 500),
    "recursion": (RecursionError("injected"), 500),
    "memory": (MemoryError("injected"), 500),
    "overflow": (OverflowError("injected"), 500),
    "budget": (ValueError("injected: the history budget is overrun"), 500),
    "unreadable": (UnreadableTaskError("injected"), 500),
    "attempts exhausted": (OverflowError("injected: attempt counter"), 500),
}


@pytest.fixture(autouse=True)
def _quiet(override_durable: Any, database: None) -> None:
    """No background write of the process disturbs a comparison."""
    override_durable(WORKER_SEEN_INTERVAL_SECONDS=3600)


def failed(api: ApiClient, lease: make.Lease, status: int, **polls: Any) -> Response:
    """A completion that must fail and leave every column of every row as it was."""
    with nothing_recorded():
        answer = complete_carrying(api, lease, **polls)
    assert answer.status == status, answer.plain
    assert not {"activity_poll", "workflow_poll"} & answer.body.keys()
    return answer


def succeeds(api: ApiClient, lease: make.Lease, kind: str, **polls: Any) -> None:
    """The same completion again is recorded, and leases."""
    assert members(complete_carrying(api, lease, **polls)) == {f"{kind}_poll": {"leased": True}}
    assert len(leases_of("w-1", TaskKind(kind))) == 1


# -- at every statement ------------------------------------------------------------------------------------------------


def offer_anew(api: ApiClient, kind: str) -> None:
    offer(kind)


def offer_leased(api: ApiClient, kind: str) -> None:
    """What the claim finds is the lease of its own id."""
    offer(kind)
    leased(poll(api, kind, poll_request_id="carried-1"))


def offer_to_any_type(api: ApiClient, kind: str) -> None:
    offer(kind)
    make.register(supported_workflow_types=[], supported_activity_types=[])


SCENES: dict[str, tuple[Callable[[ApiClient, str], None], int]] = {
    # How many statements the claim has at least, savepoint and release included.
    "claim": (offer_anew, 8),
    "claim of any type": (offer_to_any_type, 8),
    "replay": (offer_leased, 4),
}


def fail_each_statement(api: ApiClient, lease: make.Lease, fault: str, **polls: Any) -> tuple[Response, int]:
    """Fail the first statement of what is claimed, then the second, and so on, each with the same completion; the
    answer once none is left to fail, and how many there were."""
    error, status = FAULTS[fault]
    for number in itertools.count(1):
        before = take_snapshot()
        with claim_failing_at(number, error) as executed:
            answer = complete_carrying(api, lease, **polls)
        if len(executed) < number:
            return answer, number - 1
        assert answer.status == status, executed
        assert changed_tables(before, take_snapshot()) == [], executed
    raise AssertionError("unreachable")


@EACH_CARRIAGE
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scene", SCENES)
def test_c11_records_nothing_whichever_statement_of_the_claim_fails(
    api: ApiClient, completed: str, kind: str, fault: str, scene: str
) -> None:
    lease = holding(completed)
    arrange, least = SCENES[scene]
    arrange(api, kind)

    answer, failed_statements = fail_each_statement(api, lease, fault, **{f"{kind}_poll": carried()})

    assert failed_statements >= least
    assert members(answer) == {f"{kind}_poll": {"leased": True}}
    [task] = leases_of("w-1", TaskKind(kind))
    assert task.attempt_count == 1
    assert PollReceipt.objects.filter(poll_request_id="carried-1").count() == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_c11_records_nothing_whichever_statement_of_either_claim_fails(api: ApiClient, fault: str) -> None:
    lease = holding("workflow")
    offer("workflow")

    answer, failed_statements = fail_each_statement(
        api, lease, fault, activity_poll=carried("a-1"), workflow_poll=carried("w-1")
    )

    assert failed_statements >= 4 + 8
    assert members(answer) == {"activity_poll": {"leased": False}, "workflow_poll": {"leased": True}}


# -- any error, wherever -----------------------------------------------------------------------------------------------


@EACH_CARRIAGE
@pytest.mark.parametrize("place", ["look", "_lock_best", "_check_registration", "task_body"])
@pytest.mark.parametrize("fault", OTHER_FAULTS)
def test_c11_records_nothing_whatever_goes_wrong(
    api: ApiClient, completed: str, kind: str, fault: str, place: str
) -> None:
    lease = holding(completed)
    offer(kind)
    error, status = OTHER_FAULTS[fault]
    polls = {f"{kind}_poll": carried()}

    with mock.patch.object(claims, place, side_effect=error) as raised:
        failed(api, lease, status, **polls)

    assert raised.call_count == 1
    succeeds(api, lease, kind, **polls)


@EACH_CARRIAGE
def test_c11_takes_a_task_that_changed_under_its_lock_for_a_fault(api: ApiClient, completed: str, kind: str) -> None:
    lease = holding(completed)
    offer(kind)
    polls = {f"{kind}_poll": carried()}

    with mock.patch.object(claims.rows, "update", wraps=claims.rows.update) as update:
        update.side_effect = lambda model, columns, guard: 0 if columns.get("status") == "leased" else mock.DEFAULT
        failed(api, lease, 500, **polls)

    succeeds(api, lease, kind, **polls)


# -- rows that cannot be read ------------------------------------------------------------------------------------------


def garble(table: str, column: str, text: str, where: str) -> Callable[[], None]:
    """Store a text where no operation would; returns what puts the old ones back."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {column}, id FROM {table} WHERE {where}")
        before = cursor.fetchall()
        assert before, f"no {table} {where}"
        cursor.execute(f"UPDATE {table} SET {column} = %s WHERE {where}", [text])

    def restore() -> None:
        with connection.cursor() as cursor:
            for row in before:
                cursor.execute(f"UPDATE {table} SET {column} = %s WHERE id = %s", row)

    return restore


def remove(rows: Any) -> Callable[[], None]:
    """Remove rows that must be there; returns what puts them back."""
    removed = list(rows)
    assert removed
    rows._raw_delete(rows.db)

    def restore() -> None:
        for row in removed:
            row.save(force_insert=True)

    return restore


def of_next_run(model: Any, **which: Any) -> Any:
    return model.objects.filter(run_id=Run.objects.get(workflow_id="next").id, **which)


INPUT_EVENTS = {"workflow": "WorkflowStarted", "activity": "ActivityScheduled"}


def garble_input(kind: str, text: str) -> Callable[[], None]:
    event = of_next_run(HistoryEvent, event_type=INPUT_EVENTS[kind]).get()
    return garble("durable_historyevent", "payload", text, f"id = {event.id!r}")


DAMAGES: dict[str, Callable[[str], Callable[[], None]]] = {
    "input is no JSON": lambda kind: garble_input(kind, "{"),
    "input is null": lambda kind: garble_input(kind, "null"),
    "input without arguments": lambda kind: garble_input(kind, "{}"),
    "input is gone": lambda kind: remove(of_next_run(HistoryEvent, event_type=INPUT_EVENTS[kind])),
    "run is gone": lambda kind: remove(Run.objects.filter(workflow_id="next")),
    "registration is no JSON": lambda kind: garble(
        "durable_workerregistration", "capabilities", "[", "worker_id = 'w-1'"
    ),
}
ACTIVITY_DAMAGES: dict[str, Callable[[str], Callable[[], None]]] = {
    "execution is gone": lambda kind: remove(of_next_run(ActivityExecution)),
    "retry policy is no JSON": lambda kind: garble(
        "durable_activityexecution", "retry_policy", "{", f"id = {of_next_run(ActivityExecution).get().id!r}"
    ),
}
RECEIPT_DAMAGES: dict[str, Callable[[str], Callable[[], None]]] = {
    "receipt is no JSON": lambda kind: garble(
        "durable_pollreceipt", "task_kinds", "[", "poll_request_id = 'carried-1'"
    ),
}
ACTIVITY_RECEIPT_DAMAGES: dict[str, Callable[[str], Callable[[], None]]] = {
    "attempt is gone": lambda kind: remove(of_next_run(ActivityAttempt)),
    "receipt names no attempt": lambda kind: garble(
        "durable_pollreceipt", "activity_attempt_id", "01UNKNOWN", "poll_request_id = 'carried-1'"
    ),
}


def damages(kind: str, *, replayed: bool) -> dict[str, Callable[[str], Callable[[], None]]]:
    # A replay says what it knew without the registration's capabilities, but it reads them all the same.
    of_replay = {**RECEIPT_DAMAGES, **(ACTIVITY_RECEIPT_DAMAGES if kind == "activity" else {})} if replayed else {}
    unread = {"run is gone"} if replayed else set()
    found = {**DAMAGES, **(ACTIVITY_DAMAGES if kind == "activity" else {}), **of_replay}
    return {name: damage for name, damage in found.items() if name not in unread}


@pytest.mark.parametrize(
    ("completed", "kind", "replayed", "what"),
    [
        (completed, kind, replayed, what)
        for completed, kind in CARRIAGES
        for replayed in (False, True)
        for what in damages(kind, replayed=replayed)
    ],
)
def test_c11_records_nothing_over_a_row_that_cannot_be_read(
    api: ApiClient, completed: str, kind: str, replayed: bool, what: str
) -> None:
    lease = holding(completed)
    offer(kind)
    if replayed:
        leased(poll(api, kind, poll_request_id="carried-1"))
    polls = {f"{kind}_poll": carried()}
    restore = damages(kind, replayed=replayed)[what](kind)

    failed(api, lease, 500, **polls)

    restore()
    succeeds(api, lease, kind, **polls)


# -- lock pressure -----------------------------------------------------------------------------------------------------

DEADLOCK = OperationalError(1213, "Deadlock found when trying to get lock; try restarting transaction")


@EACH_CARRIAGE
@pytest.mark.parametrize("number", range(1, 9))
def test_c11_tries_all_of_it_again_after_a_deadlock(api: ApiClient, completed: str, kind: str, number: int) -> None:
    lease = holding(completed)
    offer(kind)
    retries = metrics.TRANSACTION_RETRIES._value.get()

    with claim_failing_at(number, DEADLOCK) as executed:
        answer = complete_carrying(api, lease, **{f"{kind}_poll": carried()})

    assert len(executed) > number
    assert metrics.TRANSACTION_RETRIES._value.get() == retries + 1
    assert members(answer) == {f"{kind}_poll": {"leased": True}}
    [task] = leases_of("w-1", TaskKind(kind))
    assert task.attempt_count == 1
    assert PollReceipt.objects.filter(poll_request_id="carried-1").count() == 1
    assert CompletionReceipt.objects.filter(task_id=lease.task_id).count() == 1
    assert ActivityAttempt.objects.filter(task_id=task.id).count() == (1 if kind == "activity" else 0)


@EACH_CARRIAGE
def test_c11_gives_up_on_a_deadlock_that_stays(api: ApiClient, completed: str, kind: str) -> None:
    lease = holding(completed)
    offer(kind)
    polls = {f"{kind}_poll": carried()}

    def deadlock(*_: Any) -> None:
        raise DEADLOCK

    with around_each_claim(deadlock):
        answer = failed(api, lease, 503, **polls)

    assert answer.body["reason"] == "backend_lock_pressure"
    succeeds(api, lease, kind, **polls)
