"""A seeded mix of everything at once, with six counters that stay at zero (docs/concurrency.md, "Barrier tests")."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from durable.models import ActivityAttempt, HistoryEvent, Run, Task
from durable.states import OPEN_RUN, OPEN_TASK, AttemptStatus, ClosedReason, TaskKind
from tests import factories as make
from tests.concurrency.stress import WORKERS, Stress
from tests.invariants import check_invariants

# Longer and other runs: DURABLE_STRESS_SECONDS=20 DURABLE_STRESS_SEED=7
SECONDS = float(os.environ.get("DURABLE_STRESS_SECONDS", "6"))
SEED = int(os.environ.get("DURABLE_STRESS_SEED", "1"))
THREADS = 6


@pytest.mark.usefixtures("database")
def test_random_mix_keeps_six_counters_at_zero_and_every_run_ends(override_durable: Callable[..., None]) -> None:
    # A failing workflow task is tried again at once, and an activity may lose as many leases as the mix takes.
    override_durable(WORKFLOW_TASK_BACKOFF_MAX_SECONDS=0, MAX_LOST_LEASES=10_000)
    for worker_id in WORKERS:
        make.register(worker_id)
    stress = Stress(seed=SEED, seconds=SECONDS)

    stress.run(THREADS)
    under_load = {**count_what_must_not_be(), "deadlocks surfaced": len(stress.surfaced)}
    stress.drain()
    drained = {**count_what_must_not_be(), "lost wakes": Run.objects.filter(status__in=OPEN_RUN).count()}

    assert stress.faults + stress.surfaced == [], f"{stress.done}"
    assert under_load == dict.fromkeys(under_load, 0)
    assert drained == dict.fromkeys(drained, 0)
    assert len(under_load | drained) == 6
    assert stress.done["claimed activity"] > 20
    check_invariants()


def count_what_must_not_be() -> dict[str, int]:
    """What the rows tell at any moment; lost wakes show when nobody is left to be woken."""
    gaps = doubles = 0
    for run in Run.objects.all():
        sequences = list(
            HistoryEvent.objects.filter(run_id=run.id).order_by("sequence").values_list("sequence", flat=True)
        )
        gaps += sequences != list(range(1, run.last_history_sequence + 1))
        doubles += Task.objects.filter(run_id=run.id, kind=TaskKind.WORKFLOW, status__in=OPEN_TASK).count() > 1
    open_runs = Run.objects.filter(status__in=OPEN_RUN)
    return {
        "gaps": gaps,
        "double open tasks": doubles,
        "stranded deferrals": stranded_deferrals(),
        "open tasks on closed runs": Task.objects.filter(status__in=OPEN_TASK)
        .exclude(run_id__in=open_runs.values("id"))
        .count(),
    }


def stranded_deferrals() -> int:
    """Attempts that ended without what was held back of them; a run that ends by itself records none of its losers."""
    ended_by_themselves = Run.objects.filter(closed_reason__in=(ClosedReason.COMPLETED, ClosedReason.FAILED))
    ended = ActivityAttempt.objects.exclude(status=AttemptStatus.RUNNING).exclude(
        status=AttemptStatus.CANCELLED, run_id__in=ended_by_themselves.values("id")
    )
    started = {
        event.payload["activity_attempt_id"] for event in HistoryEvent.objects.filter(event_type="ActivityStarted")
    }
    return sum(attempt_id not in started for attempt_id in ended.values_list("id", flat=True))
