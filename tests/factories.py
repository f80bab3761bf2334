"""Plain functions that bring the engine into a state, through the same operations that serve the API."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from durable import avro
from durable.claims import Nothing, PollRequest, Ready
from durable.ids import new_id
from durable.leases import Leased
from durable.models import HistoryEvent, Run, Task, WorkerRegistration
from durable.operations import poll
from durable.operations.checkpoint_workflow_task import (
    Checkpoint,
    WorkflowTaskCheckpointed,
    checkpoint_workflow_task,
)
from durable.operations.complete_activity import ActivityReported, complete_activity
from durable.operations.complete_workflow_task import WorkflowTaskCompleted, complete_workflow_task
from durable.operations.fail_activity import ActivityFailure, fail_activity
from durable.operations.fail_workflow_task import TaskFailure, WorkflowTaskFailed, fail_workflow_task
from durable.operations.register_worker import WorkerDescription, register_worker
from durable.operations.start_workflow import Started, StartRequest, start_workflow
from durable.principals import Principal
from durable.protocol import SERVED
from durable.receipts import Report
from durable.states import TaskKind
from durable.workflow_commands import WorkflowTarget

QUEUE = "orders"
WAITING = TaskFailure(message="Workflow task waiting for scheduled history.", type="WorkflowTaskWaitingForHistory")
PRINCIPAL = Principal(type="token", id="tests")


def envelope(value: Any) -> dict[str, Any]:
    """A payload envelope."""
    return avro.envelope(value)


def start_request(workflow_id: str | None = None, **options: Any) -> StartRequest:
    """What starts a workflow of type `five` on the queue `orders`."""
    values: dict[str, Any] = {
        "namespace": "default",
        "workflow_type": "five",
        "workflow_id": workflow_id or f"wf-{new_id()}",
        "task_queue": QUEUE,
        "arguments": envelope([]),
        "principal": PRINCIPAL,
        **options,
    }
    return StartRequest(**values)


def start(workflow_id: str | None = None, **options: Any) -> Started:
    """Start a workflow of type `five` on the queue `orders`."""
    return start_workflow(start_request(workflow_id, **options))


def register(worker_id: str = "w-1", **options: Any) -> WorkerRegistration:
    """Register a worker for the workflow type `five` and the activity type `step` on the queue `orders`."""
    values: dict[str, Any] = {
        "namespace": "default",
        "worker_id": worker_id,
        "task_queue": QUEUE,
        "runtime": "python",
        "protocol_version": SERVED,
        "supported_workflow_types": ["five"],
        "supported_activity_types": ["step"],
        **options,
    }
    return register_worker(WorkerDescription(**values))


def poll_request(kind: TaskKind, worker_id: str = "w-1", **options: Any) -> PollRequest:
    values: dict[str, Any] = {
        "namespace": "default",
        "kind": kind,
        "worker_id": worker_id,
        "task_queue": QUEUE,
        "build_id": None,
        "poll_request_id": f"poll-{new_id()}",
        "task_kinds": ("workflow",) if kind == TaskKind.WORKFLOW else (),
        "protocol_version": SERVED,
        **options,
    }
    return PollRequest(**values)


def try_poll(request: PollRequest) -> Leased | Nothing:
    """One look and, if something is ready, one claim."""
    seen = poll.look(request)
    return poll.lease(request, seen) if isinstance(seen, Ready) else seen


@dataclass(frozen=True, slots=True)
class Lease:
    """A leased task, by what its reports need."""

    body: dict[str, Any]
    history: list[Any]

    @property
    def task_id(self) -> str:
        return str(self.body["task_id"])

    @property
    def report(self) -> Report:
        return Report(
            namespace=self.body["namespace"],
            task_id=self.task_id,
            lease_owner=self.body["lease_owner"],
            attempt=self.body.get("workflow_task_attempt") or 0,
            activity_attempt_id=self.body.get("activity_attempt_id") or "",
        )


def lease_workflow(worker_id: str = "w-1", **options: Any) -> Lease:
    """Lease a workflow task; there must be one."""
    return leased(try_poll(poll_request(TaskKind.WORKFLOW, worker_id, **options)))


def lease_activity(worker_id: str = "w-1", **options: Any) -> Lease:
    """Lease an activity task; there must be one."""
    return leased(try_poll(poll_request(TaskKind.ACTIVITY, worker_id, **options)))


def leased(outcome: Leased | Nothing) -> Lease:
    """What a poll leased; it must have leased something."""
    if not isinstance(outcome, Leased):
        raise AssertionError("nothing was leased")
    return Lease(outcome.claimed.body, outcome.page.events if outcome.page else [])


def schedule(activity_type: str = "step", **fields: Any) -> dict[str, Any]:
    """A `schedule_activity` command."""
    return {"type": "schedule_activity", "activity_type": activity_type, "arguments": envelope([]), **fields}


def sleep(seconds: Any = 5, **fields: Any) -> dict[str, Any]:
    """A `start_timer` command."""
    return {"type": "start_timer", "delay_seconds": seconds, **fields}


def schedule_list(count: int, *, base: int = 1, **fields: Any) -> list[dict[str, Any]]:
    """`schedule_activity` commands of one list group whose first leaf is step `base`."""
    commands = []
    for index in range(count):
        entry = {
            "parallel_group_id": f"parallel-activities:{base}:{count}",
            "parallel_group_kind": "activity",
            "parallel_group_base_sequence": base,
            "parallel_group_size": count,
            "parallel_group_index": index,
        }
        commands.append(schedule(**fields, **entry, parallel_group_path=[entry]))
    return commands


def finish(result: Any = None) -> dict[str, Any]:
    """A `complete_workflow` command."""
    return {"type": "complete_workflow", "result": envelope(result)}


def complete(lease: Lease, *commands: dict[str, Any]) -> WorkflowTaskCompleted:
    """Complete a workflow task with commands."""
    return complete_workflow_task(lease.report, {"commands": list(commands)})


def checkpoint(
    lease: Lease, *commands: dict[str, Any], start_sequence: int = 1, checkpoint_id: str = "c-1"
) -> WorkflowTaskCheckpointed:
    """Record commands of a workflow task that goes on."""
    fields: dict[str, Any] = {"checkpoint_id": checkpoint_id, "start_sequence": start_sequence}
    return checkpoint_workflow_task(lease.report, Checkpoint.of({**fields, "commands": list(commands)}, **fields))


def report_waiting(lease: Lease) -> WorkflowTaskFailed:
    return fail_workflow_task(lease.report, WAITING)


def report_failure(lease: Lease, message: str = "boom", **fields: Any) -> WorkflowTaskFailed:
    return fail_workflow_task(lease.report, TaskFailure(message=message, **fields))


def complete_step(lease: Lease, result: Any = None) -> ActivityReported:
    """Complete an activity."""
    return complete_activity(lease.report, {"result": envelope(result)})


def fail_step(lease: Lease, message: str = "boom", **fields: Any) -> ActivityReported:
    """Fail an activity attempt."""
    body = {"failure": {"message": message, **fields}}
    return fail_activity(lease.report, ActivityFailure(message=message, **fields), body)


def target(workflow_id: str, run_id: str | None = None) -> WorkflowTarget:
    return WorkflowTarget(namespace="default", workflow_id=workflow_id, run_id=run_id, principal=PRINCIPAL)


def run_of(started: Started) -> Run:
    """The run as it is stored now."""
    return Run.objects.get(id=started.run.id)


def task_of(lease: Lease) -> Task:
    """The task as it is stored now."""
    return Task.objects.get(id=lease.task_id)


def event_types(run_id: str) -> list[str]:
    """The run's history by type, in order."""
    return list(HistoryEvent.objects.filter(run_id=run_id).order_by("sequence").values_list("event_type", flat=True))


def expire_lease(task_id: str, *, by: timedelta = timedelta(seconds=1)) -> None:
    """Let a lease have run out some time ago, by its row: no test waits for a clock."""
    past: datetime = Task.objects.get(id=task_id).leased_at - by  # type: ignore[operator]
    Task.objects.filter(id=task_id).update(lease_expires_at=past)
