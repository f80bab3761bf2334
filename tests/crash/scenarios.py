"""What the crash tests interrupt, how the states before and after are told apart, and how a run goes on from there."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from durable.claims import Nothing
from durable.leases import Leased
from durable.models import (
    ActivityAttempt,
    ActivityExecution,
    CheckpointReceipt,
    CompletionReceipt,
    Failure,
    HistoryEvent,
    PollReceipt,
    Run,
    Task,
    Workflow,
    WorkflowCommand,
)
from durable.operations.complete_activity import complete_activity
from durable.operations.complete_workflow_task import complete_workflow_task
from durable.operations.fail_activity import ActivityFailure, fail_activity
from durable.operations.fail_workflow_task import TaskFailure, fail_workflow_task
from durable.operations.recover_lease import recover_lease
from durable.operations.start_workflow import start_workflow
from durable.operations.stop_workflow import cancel_workflow
from durable.operations.time_out_run import time_out_run
from durable.refusals import Reason, Refusal
from durable.states import OPEN_RUN, TaskKind, TaskStatus
from tests import factories as make
from tests.concurrency.tools import eventually
from tests.crash.dying import Call
from tests.invariants import STEP_TERMINALS

STEPS = 2
TWICE = {"max_attempts": 2, "backoff_seconds": [0]}

# Each brings a workflow with this id into a state and says what to call next.
Scenario = Callable[[str], Call]


# -- the operations to interrupt ---------------------------------------------------------------------------------------


def start(workflow_id: str) -> Call:
    return Call(function=start_workflow, args=(make.start_request(workflow_id),))


def claim_workflow_task(workflow_id: str) -> Call:
    make.start(workflow_id)
    return Call(function=make.try_poll, args=(make.poll_request(TaskKind.WORKFLOW),))


def claim_activity_task(workflow_id: str) -> Call:
    make.start(workflow_id)
    make.complete(make.lease_workflow(), make.schedule())
    return Call(function=make.try_poll, args=(make.poll_request(TaskKind.ACTIVITY),))


def complete_with_an_activity(workflow_id: str) -> Call:
    make.start(workflow_id)
    return Call(function=complete_workflow_task, args=(make.lease_workflow().report, {"commands": [make.schedule()]}))


def checkpoint_with_an_activity(workflow_id: str) -> Call:
    make.start(workflow_id)
    return Call(function=make.checkpoint, args=(make.lease_workflow(), make.schedule()))


def complete_with_the_end(workflow_id: str) -> Call:
    make.start(workflow_id)
    return Call(function=complete_workflow_task, args=(make.lease_workflow().report, {"commands": [make.finish()]}))


def fail_the_workflow_task(workflow_id: str) -> Call:
    make.start(workflow_id)
    return Call(function=fail_workflow_task, args=(make.lease_workflow().report, TaskFailure(message="boom")))


def complete_the_activity(workflow_id: str) -> Call:
    body = {"result": make.envelope("done")}
    return Call(function=complete_activity, args=(_leased_step(workflow_id).report, body))


def fail_the_activity_for_now(workflow_id: str) -> Call:
    body = {"failure": {"message": "boom"}}
    return Call(function=fail_activity, args=(_leased_step(workflow_id).report, ActivityFailure(message="boom"), body))


def recover_a_workflow_lease(workflow_id: str) -> Call:
    make.start(workflow_id)
    lease = make.lease_workflow()
    make.expire_lease(lease.task_id)
    return Call(function=recover_lease, args=(lease.task_id,))


def recover_an_activity_lease(workflow_id: str) -> Call:
    lease = _leased_step(workflow_id)
    make.expire_lease(lease.task_id)
    return Call(function=recover_lease, args=(lease.task_id,))


def time_out_the_run(workflow_id: str) -> Call:
    lease = _leased_step(workflow_id)
    past = timezone.now() - timedelta(seconds=1)
    Run.objects.filter(workflow_id=workflow_id).update(run_deadline_at=past, deadline_at=past)
    return Call(function=time_out_run, args=(lease.body["run_id"],))


def cancel_the_run(workflow_id: str) -> Call:
    _leased_step(workflow_id)
    return Call(function=cancel_workflow, args=(make.target(workflow_id),), kwargs={"reason": "enough"})


def _leased_step(workflow_id: str) -> make.Lease:
    make.start(workflow_id)
    make.complete(make.lease_workflow(), make.schedule(retry_policy=TWICE))
    return make.lease_activity()


SCENARIOS: list[Scenario] = [
    start,
    claim_workflow_task,
    claim_activity_task,
    complete_with_an_activity,
    checkpoint_with_an_activity,
    complete_with_the_end,
    fail_the_workflow_task,
    complete_the_activity,
    fail_the_activity_for_now,
    recover_a_workflow_lease,
    recover_an_activity_lease,
    time_out_the_run,
    cancel_the_run,
]


# -- the state afterwards ----------------------------------------------------------------------------------------------


def describe(workflow_id: str) -> dict[str, list[Any]]:
    """Everything there is of a workflow, but for ids and times."""
    runs = Run.objects.filter(workflow_id=workflow_id)
    run_ids = list(runs.values_list("id", flat=True))
    tasks = Task.objects.filter(run_id__in=run_ids)
    mine = {"run_id__in": run_ids}
    receipts = PollReceipt.objects.filter(task_id__in=list(tasks.values_list("id", flat=True)))
    return {
        "workflows": list(Workflow.objects.filter(id=workflow_id).values_list("workflow_type")),
        "runs": list(
            runs.values_list(
                "status", "closed_reason", "last_history_sequence", "wake_sequence", "next_step_number",
                "pending_activity_count",
            )
        ),
        "events": list(HistoryEvent.objects.filter(**mine).order_by("sequence").values_list("event_type", flat=True)),
        "tasks": sorted(
            tasks.values_list("kind", "status", "attempt_count", "lease_owner", "visible_sequence"), key=repr
        ),
        "attempts": sorted(ActivityAttempt.objects.filter(**mine).values_list("attempt_number", "status")),
        "executions": sorted(ActivityExecution.objects.filter(**mine).values_list("step_number", "status")),
        "completion receipts": sorted(CompletionReceipt.objects.filter(**mine).values_list("kind", "outcome")),
        "checkpoint receipts": sorted(
            CheckpointReceipt.objects.filter(**mine).values_list("checkpoint_id", "start_sequence", "next_sequence")
        ),
        "poll receipts": sorted(receipts.values_list("kind", "attempt_number")),
        "failures": sorted(Failure.objects.filter(**mine).values_list("failure_category")),
        "commands": sorted(WorkflowCommand.objects.filter(**mine).values_list("command_type", "outcome")),
    }  # fmt: skip


_OTHERS = {
    "postgresql": (
        "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    ),
    "mysql": "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
}


def wait_for_the_dead_session() -> None:
    """Let the database server notice that its client is gone; SQLite has no server, the locks went with the process."""
    if connection.vendor == "sqlite":
        return

    def is_alone() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(_OTHERS[connection.vendor])
            return bool(cursor.fetchone()[0] == 0)

    eventually(is_alone, "the dead process's session ends")


# -- going on ----------------------------------------------------------------------------------------------------------


# What a repeat is told by the operations that keep no receipt.
_DONE_BEFORE = {
    start_workflow: Reason.INSTANCE_ALREADY_STARTED,
    cancel_workflow: Reason.RUN_NOT_ACTIVE,
    fail_workflow_task: Reason.TASK_NOT_LEASED,
}


def repeat(call: Call) -> bool:
    """Make the same call again, as a client that got no answer does; whether it turns out to have been done before."""
    try:
        outcome = call.run()
    except Refusal as refusal:
        if refusal.reason != _DONE_BEFORE.get(call.function):
            raise
        return True
    if isinstance(outcome, Leased):
        _work(make.leased(outcome))
        return outcome.is_replay
    if isinstance(outcome, bool):
        return not outcome
    assert not isinstance(outcome, Nothing)
    return bool(getattr(outcome, "is_duplicate", False))


def run_to_its_end(workflow_id: str) -> Run:
    """Do what workers would, after taking back the leases of those that died."""
    for _ in range(50):
        run = Run.objects.get(workflow_id=workflow_id)
        if run.status not in OPEN_RUN:
            return run
        for task in Task.objects.filter(run_id=run.id, status=TaskStatus.LEASED):
            make.expire_lease(task.id)
            recover_lease(task.id)
        _work_once()
    raise AssertionError(f"{workflow_id} does not come to its end")


def _work_once() -> None:
    for kind in (TaskKind.WORKFLOW, TaskKind.ACTIVITY):
        outcome = make.try_poll(make.poll_request(kind))
        if isinstance(outcome, Leased):
            _work(make.leased(outcome))


def _work(lease: make.Lease) -> None:
    if lease.body["task_kind"] == "activity":
        make.complete_step(lease)
        return
    types = [event.event_type for event in lease.history]
    ended = sum(event_type in STEP_TERMINALS for event_type in types)
    if types.count("ActivityScheduled") > ended:
        make.report_waiting(lease)
    else:
        make.complete(lease, make.finish() if ended >= STEPS else make.schedule())
