"""Random conversations with the engine, compared with a model after every request (docs/protocol/history.md 18).

The clock stands still except where a move turns it forward, so every answer can be told beforehand. The same sequences
run each time; DURABLE_STATE_MACHINE_EXAMPLES=500 looks further, with other sequences each time.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import hypothesis.strategies as st
import pytest
from django.conf import settings
from django.test import override_settings
from hypothesis import HealthCheck, Phase
from hypothesis import settings as profile
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from durable import ids
from durable.models import ActivityExecution, Run, Task
from durable.states import OPEN_TASK
from tests.clock import engine_clock_in_hand
from tests.conftest import clean_database
from tests.durable.conversations import WORKERS, Conversation
from tests.durable.model import Model
from tests.durable.moves import MOVES
from tests.invariants import check_invariants

MAX_LOST_LEASES = 3
EXAMPLES = os.environ.get("DURABLE_STATE_MACHINE_EXAMPLES")


@contextmanager
def ids_in_order() -> Iterator[None]:
    """Ids that sort by creation even within a millisecond, and are the same each time: claims follow them."""
    count = itertools.count(1)

    def next_bytes(length: int) -> bytes:
        return next(count).to_bytes(length, "big")

    source = mock.Mock(urandom=next_bytes, time_ns=mock.Mock(return_value=0))
    with mock.patch.object(ids, "os", source), mock.patch.object(ids, "time", source):
        yield


class Conversations(Conversation, RuleBasedStateMachine):
    """A conversation whose moves are drawn by their weights, each among those that are possible."""

    def __init__(self) -> None:
        super().__init__()
        clean_database()
        engine = {**settings.DURABLE, "MAX_LOST_LEASES": MAX_LOST_LEASES, "WORKER_STALE_AFTER_SECONDS": 10**8}
        self._settings = override_settings(DURABLE=engine)
        self._settings.enable()
        self._hands = ExitStack()
        self.clock = self._hands.enter_context(engine_clock_in_hand())
        self._hands.enter_context(ids_in_order())
        self.model = Model(max_lost_leases=MAX_LOST_LEASES)
        for worker in WORKERS:
            self.register(worker)

    def teardown(self) -> None:
        self._hands.close()
        self._settings.disable()

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        possible = [move for move in MOVES if move.applies(self)]
        weighted = [move for move in possible for _ in range(move.weight)]
        move = data.draw(st.sampled_from(weighted), label="move")
        move.make(self, data.draw)

    @invariant()
    def database_is_as_the_model_says(self) -> None:
        steps = dict(ActivityExecution.objects.values_list("id", "step_number"))
        rows = [
            (
                task.run_id,
                steps.get(task.activity_execution_id, 0),
                task.status,
                task.attempt_count,
                task.lease_owner,
                task.lease_expires_at,
                task.due,
            )
            for task in Task.objects.filter(status__in=OPEN_TASK)
        ]
        assert sorted(rows, key=repr) == self.model.open_rows()
        stored = dict(Run.objects.values_list("id", "closed_reason"))
        assert stored == {run.id: run.closed for run in self.model.runs.values()}

    @invariant()
    def invariants_hold(self) -> None:
        check_invariants()


@pytest.mark.timeout(1200 if EXAMPLES else 300)
@pytest.mark.usefixtures("database")
def test_answers_every_request_as_the_model_says_and_keeps_the_invariants() -> None:
    run_state_machine_as_test(
        Conversations,
        settings=profile(
            max_examples=int(EXAMPLES or 12),
            stateful_step_count=60,
            derandomize=EXAMPLES is None,
            database=None,
            deadline=None,
            # Making a failing sequence shorter takes minutes: only when somebody looks for one.
            phases=list(Phase) if EXAMPLES else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
