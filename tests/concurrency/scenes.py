"""Runs in the situations that races need, and what to ask of them afterwards."""

from __future__ import annotations

from django.utils import timezone

from durable.models import Run, Task
from durable.operations.recover_lease import recover_lease
from durable.operations.start_workflow import Started
from durable.states import TaskKind, TaskStatus
from tests import factories as make
from tests.factories import Lease


def run_with_leased_steps(count: int = 1, *, group: bool = False) -> tuple[Started, list[Lease]]:
    """A run that waits for `count` activities, which `w-1` holds; a list group or single steps."""
    started = make.start()
    commands = make.schedule_list(count) if group else [make.schedule() for _ in range(count)]
    make.complete(make.lease_workflow(), *commands)
    return started, [make.lease_activity() for _ in range(count)]


def run_with_ready_task_and_leased_step() -> tuple[Started, Lease]:
    """A run whose workflow task is ready while another activity of it is still leased: its outcome will append."""
    started, (first, second) = run_with_leased_steps(2)
    make.complete_step(first)
    return started, second


def workflow_tasks(started: Started) -> list[Task]:
    """The run's workflow tasks, oldest first."""
    return list(Task.objects.filter(run_id=started.run.id, kind=TaskKind.WORKFLOW).order_by("id"))


def open_workflow_tasks(started: Started) -> list[Task]:
    """Those of them that are ready or leased: there is at most one."""
    return [task for task in workflow_tasks(started) if task.status in (TaskStatus.READY, TaskStatus.LEASED)]


def expire_and_recover(lease: Lease) -> None:
    """The lease runs out and upkeep takes it back."""
    make.expire_lease(lease.task_id)
    assert recover_lease(lease.task_id)


def wait_until_past(moment_of: str, task_id: str) -> None:
    """Wait until a column of a task lies in the past; tests set it a few milliseconds ahead."""
    from tests.concurrency.tools import eventually

    moment = getattr(Task.objects.get(id=task_id), moment_of)
    eventually(lambda: timezone.now() > moment, f"{moment_of} has passed")


def finish(started: Started) -> Run:
    """Lease whatever is ready and bring the run to its end."""
    for _ in range(50):
        run = make.run_of(started)
        if run.closed_at is not None:
            return run
        lease = make.lease_workflow()
        if run.pending_activity_count:
            make.report_waiting(lease)
            while Task.objects.filter(run_id=run.id, kind=TaskKind.ACTIVITY, status=TaskStatus.READY).exists():
                make.complete_step(make.lease_activity())
        else:
            make.complete(lease, make.finish())
    raise AssertionError("the run does not end")
