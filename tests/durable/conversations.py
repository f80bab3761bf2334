"""A conversation with the engine: its model, its clock, and what the moves of it share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import hypothesis.strategies as st

from durable.leases import Leased
from durable.models import ActivityExecution
from durable.refusals import Refusal
from durable.states import TaskKind
from tests import factories as make
from tests.clock import EngineClock
from tests.durable.model import DUPLICATE, RECORDED, Lease, Model, Policy

Draw = Callable[..., Any]
WORKERS = ("w-1", "w-2")


def answer_of(call: Any) -> str:
    """How a report was answered, in one word."""
    try:
        outcome = call()
    except Refusal as refusal:
        return str(refusal.reason)
    return DUPLICATE if getattr(outcome, "is_duplicate", False) else RECORDED


class Conversation:
    """Two workers, an impatient operator and upkeep."""

    clock: EngineClock
    model: Model
    poll_count = 0

    @property
    def now(self) -> datetime:
        return self.clock.now

    def register(self, worker: str) -> None:
        make.register(worker)
        self.model.workers.add(worker)

    def claims(self, kind: TaskKind) -> list[Lease]:
        return [lease for lease in self.model.leases if lease.task.kind == kind]

    def claim(self, kind: TaskKind, draw: Draw) -> Lease:
        """One of the claims of this kind: mostly of a task that is still open, at times one that is long over."""
        claims = self.claims(kind)
        held = [lease for lease in claims if lease.task.is_open] if draw(st.integers(0, 3), label="held") else []
        return draw(st.sampled_from((held or claims)[-6:]), label="claim")

    def workflow_id(self, draw: Draw, *, more: int = 0) -> str:
        """Mostly the id of an open run, else any that was used, or one of `more` new ones."""
        used = list(self.model.runs)
        new = [f"order-{len(used) + number}" for number in range(1, more + 1)]
        is_open = [workflow_id for workflow_id in used if not self.model.runs[workflow_id].closed]
        return str(draw(st.sampled_from(3 * (new or is_open) + used + ["nobody"]), label="workflow_id"))

    def poll_as(self, worker: str, kind: TaskKind, poll_request_id: str | None) -> None:
        request = make.poll_request(kind, worker, poll_request_id=poll_request_id)
        if worker not in self.model.workers:
            assert answer_of(lambda: make.try_poll(request)) == "worker_not_registered"
            return
        offered = self.model.offered(kind, self.now)
        outcome = make.try_poll(request)
        if not isinstance(outcome, Leased):
            assert offered == []
            return
        real = make.Lease(outcome.claimed.body, outcome.page.events if outcome.page else [])
        assert is_task_of(offered[0], real)
        self.model.claimed(offered[0], worker, real, poll_request_id, self.now)

    def complete(
        self, lease: Lease, commands: list[Any], *, steps: list[list[Policy]] | None = None, ends: str | None = None
    ) -> None:
        body = repr(commands)
        expected = self.model.judge_workflow(lease, body, self.now)
        assert answer_of(lambda: make.complete(lease.real, *commands)) == expected
        if expected == RECORDED:
            self.model.completed(lease, body, steps or [], ends, self.now)

    def sweep(self, duty: Callable[[], Any], predicted: Callable[[datetime], int]) -> None:
        done = duty()
        assert (done.handled, done.failed) == (predicted(self.now), 0)


def is_task_of(task: Any, real: Any) -> bool:
    """Whether what a worker was given is this task of the model."""
    if task.run.id != real.body["run_id"] or task.step is None:
        return bool(task.run.id == real.body["run_id"])
    execution = ActivityExecution.objects.get(id=real.body["activity_execution_id"])
    return bool(task.step.number == execution.step_number)
