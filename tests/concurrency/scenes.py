"""Runs in the situations that races need, and what to ask of them afterwards."""

from __future__ import annotations

from durable.models import Task
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
