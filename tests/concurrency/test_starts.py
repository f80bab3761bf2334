"""Starts of one workflow id at the same time: one run, and everybody is answered (docs/concurrency.md 19)."""

from __future__ import annotations

import pytest
from django.db import transaction

from durable.models import HistoryEvent, Run, Task, Workflow, WorkflowCommand
from durable.operations.start_workflow import Started
from durable.refusals import Reason, Refusal
from tests import factories as make
from tests.client import ApiClient
from tests.concurrency.tools import Gate, all_at_once, in_thread, wait_until_blocked
from tests.invariants import check_invariants

CALLERS = 50


def start_and_stay(gate: Gate, *, commit: bool = True) -> Started:
    """A start inside a caller's transaction that is still open at the gate."""
    with transaction.atomic():
        started = make.start("order-1")
        gate.stop_here()
        transaction.set_rollback(not commit)
    return started


def start_and_go_on(duplicate_policy: str) -> tuple[Started | Refusal, Started]:
    """A caller's transaction that starts the same id, takes its answer, and starts something else."""
    with transaction.atomic():
        answer: Started | Refusal
        try:
            answer = make.start("order-1", duplicate_policy=duplicate_policy)
        except Refusal as refusal:
            answer = refusal
        return answer, make.start("order-2")


def race(duplicate_policy: str, *, commit: bool) -> tuple[Started, Started | Refusal]:
    gate = Gate()
    first = in_thread(start_and_stay, gate, commit=commit)
    gate.wait_until_reached()
    second = in_thread(start_and_go_on, duplicate_policy)
    wait_until_blocked()
    gate.open()
    winner = first.result(20)
    answer, _ = second.result(20)
    return winner, answer


@pytest.mark.usefixtures("database")
def test_start_same_id_twice_refuses_the_loser_typed_and_lets_its_transaction_go_on() -> None:
    winner, answer = race("fail", commit=True)

    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.INSTANCE_ALREADY_STARTED
    assert answer.fields["run_id"] == winner.run.id
    assert set(Workflow.objects.values_list("id", flat=True)) == {"order-1", "order-2"}
    check_invariants()


@pytest.mark.usefixtures("database")
def test_start_same_id_twice_finds_the_winners_run_when_asked_to_use_it() -> None:
    winner, answer = race("use-existing", commit=True)

    assert isinstance(answer, Started)
    assert (answer.run.id, answer.is_new) == (winner.run.id, False)
    assert Run.objects.count() == 2
    check_invariants()


@pytest.mark.usefixtures("database")
def test_start_same_id_twice_creates_the_run_if_the_first_rolled_back() -> None:
    loser, answer = race("fail", commit=False)

    assert isinstance(answer, Started)
    assert answer.is_new
    assert not Run.objects.filter(id=loser.run.id).exists()
    check_invariants()


def start_fifty_times(**options: str) -> list[Started | Exception]:
    """Fifty starts by half as many threads, so that a database server with its usual limits has room for them."""

    def start_twice() -> list[Started | Exception]:
        outcomes: list[Started | Exception] = []
        for _ in range(2):
            try:
                outcomes.append(make.start("order-1", **options))
            except Refusal as refusal:
                outcomes.append(refusal)
        return outcomes

    return [outcome for pair in all_at_once([start_twice] * (CALLERS // 2)) for outcome in pair]


@pytest.mark.usefixtures("database")
def test_fifty_starts_of_one_id_create_one_run() -> None:
    outcomes = start_fifty_times(duplicate_policy="use-existing")

    assert {outcome.run.id for outcome in outcomes} == {Run.objects.get().id}
    assert [outcome.is_new for outcome in outcomes].count(True) == 1
    assert HistoryEvent.objects.count() == 2
    assert Task.objects.count() == WorkflowCommand.objects.count() == 1
    check_invariants()


@pytest.mark.usefixtures("database")
def test_fifty_starts_of_one_id_refuse_all_but_one_when_duplicates_fail() -> None:
    outcomes = start_fifty_times()

    run = Run.objects.get()
    assert [outcome.run.id for outcome in outcomes if isinstance(outcome, Started)] == [run.id]
    refusals = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
    assert {(refusal.reason, refusal.fields["run_id"]) for refusal in refusals} == {
        (Reason.INSTANCE_ALREADY_STARTED, run.id)
    }
    assert len(refusals) == CALLERS - 1


def test_fifty_starts_of_one_id_through_the_api_answer_one_created_run(api: ApiClient) -> None:
    body = {
        "workflow_id": "order-1",
        "workflow_type": "five",
        "task_queue": make.QUEUE,
        "duplicate_policy": "use-existing",
    }

    requests = [api.begin("POST", "/api/workflows", body) for _ in range(CALLERS)]
    answers = [request.result(60) for request in requests]

    assert {answer.body["run_id"] for answer in answers} == {Run.objects.get().id}
    assert sorted(answer.status for answer in answers) == [200] * (CALLERS - 1) + [201]
    assert [answer.body["outcome"] for answer in answers].count("started_new") == 1
