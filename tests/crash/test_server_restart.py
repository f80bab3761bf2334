"""It keeps every deadline when it is killed: they are columns, not timers of a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durable.models import HistoryEvent, Task
from durable.states import TaskStatus
from tests import factories as make
from tests.concurrency.tools import eventually
from tests.invariants import check_invariants
from tests.server import ServerProcess


def pending_step(queue: str, **options: Any) -> str:
    """A run whose activity waits in a queue of its own, where nobody polls; returns the run's id."""
    started = make.start()
    make.complete(make.lease_workflow(), make.schedule(queue=queue, **options))
    return started.run.id


def leased_step(queue: str, **options: Any) -> str:
    """A run whose activity a worker holds that will never report."""
    run_id = pending_step(queue, **options)
    lease_step(queue)
    return run_id


def retried_step(queue: str) -> str:
    """A run whose activity failed once and is to be tried again in a second."""
    run_id = pending_step(queue, retry_policy={"max_attempts": 2, "backoff_seconds": [1]})
    make.fail_step(lease_step(queue))
    return run_id


def lease_step(queue: str) -> make.Lease:
    worker_id = f"worker-of-{queue}"
    make.register(worker_id, task_queue=queue)
    return make.lease_activity(worker_id, task_queue=queue)


def ended_by(event_type: str) -> Callable[[str], bool]:
    return lambda run_id: HistoryEvent.objects.filter(run_id=run_id, event_type=event_type).exists()


def offered_again(run_id: str) -> bool:
    return Task.objects.filter(run_id=run_id, status=TaskStatus.READY, attempt_count=1, due=True).exists()


def test_fires_the_deadlines_that_were_set_before_it_was_killed(server: ServerProcess, override_durable: Any) -> None:
    override_durable(ACTIVITY_LEASE_SECONDS=1)
    make.register()
    timed_out = ended_by("ActivityTimedOut")
    waiting: dict[str, tuple[str, Callable[[str], bool]]] = {
        "schedule-to-start": (pending_step("a", schedule_to_start_timeout=1), timed_out),
        "schedule-to-close": (pending_step("b", schedule_to_close_timeout=1), timed_out),
        "back-off": (retried_step("c"), offered_again),
        "lease": (leased_step("d"), offered_again),
    }
    override_durable(ACTIVITY_LEASE_SECONDS=60)
    waiting |= {
        "start-to-close": (leased_step("e", start_to_close_timeout=1), timed_out),
        "heartbeat": (leased_step("f", heartbeat_timeout=1), timed_out),
        "run": (make.start(run_timeout_seconds=1).run.id, ended_by("WorkflowTimedOut")),
    }

    server.kill()
    server.start()

    for what, (run_id, has_fired) in waiting.items():
        eventually(lambda run_id=run_id, has_fired=has_fired: has_fired(run_id), f"{what} fires", every=0.02)
    check_invariants()
