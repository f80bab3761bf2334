"""`schedule_activity`: one step that an activity worker carries out (docs/protocol/history.md 5.1 and 9.1)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from durable import conf
from durable.changes import make_later
from durable.commands.batch import Batch, check_limit
from durable.commands.fields import Fields, envelope_bytes, time_out_faults
from durable.commands.groups import GroupPlace, read_place
from durable.commands.registry import CommandType, register
from durable.commands.retry import Policy, read_policy
from durable.history import events
from durable.history.times import stamp
from durable.ids import new_id
from durable.models import ActivityExecution, Run, Task
from durable.refusals import Reason, Refusal
from durable.sql.clock import after, earliest
from durable.states import TaskKind, TaskStatus

EMPTY_LIST = {"codec": "avro", "blob": "wwHioz3/VYAiNwwA"}

CANCELLATION_POLICIES = ("try_cancel", "wait_cancellation_completed", "abandon")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleActivity:
    """A validated `schedule_activity`."""

    activity_type: str
    task_queue: str | None
    arguments: dict[str, Any]
    policy: Policy | None
    cancellation_policy: str | None
    place: GroupPlace | None


def read_time_outs(fields: Fields) -> dict[str, int | None]:
    """The four time-outs of an activity, in whole seconds, checked against each other."""
    names = ("start_to_close", "schedule_to_start", "schedule_to_close", "heartbeat")
    values = {name: fields.whole(f"{name}_timeout", least=1) for name in names}
    time_out_faults(fields, **values)
    return {f"{name}_timeout": value for name, value in values.items()}


def _validate(fields: Fields) -> ScheduleActivity | None:
    activity_type = fields.name("activity_type", required=True)
    if fields.raw.get("worker_session") is not None:
        raise Refusal(Reason.WORKER_SESSIONS_UNAVAILABLE, "Worker sessions are not available on this server.")
    cancellation_policy = fields.choice("cancellation_policy", CANCELLATION_POLICIES)
    if cancellation_policy not in (None, "try_cancel"):
        raise Refusal(
            Reason.WORKER_CAPABILITY_NOT_SUPPORTED,
            "This cancellation policy needs cooperative cancellation, which this server does not offer.",
            capability="cooperative_cancellation",
            command_type="schedule_activity",
        )
    task_queue, place = fields.name("queue"), read_place(fields)
    arguments = fields.envelope("arguments") or EMPTY_LIST
    policy = read_policy(fields, read_time_outs(fields))
    if activity_type is None:
        return None
    return ScheduleActivity(
        activity_type=activity_type,
        task_queue=task_queue,
        arguments=arguments,
        policy=policy,
        cancellation_policy=cancellation_policy,
        place=place,
    )


def _apply(batch: Batch, command: ScheduleActivity) -> None:
    if batch.repeats(command.place):
        return
    changes, run, now = batch.changes, batch.changes.run, batch.changes.now
    check_limit("pending_activity_count", run.pending_activity_count + 1, conf.current().pending_activity_count)
    batch.check_payload(envelope_bytes(command.arguments))
    step_number = changes.take_step_number()
    place = batch.enter_group(command.place, step_number)
    execution = ActivityExecution(
        id=new_id(),
        namespace=run.namespace,
        run_id=run.id,
        step_number=step_number,
        activity_type=command.activity_type,
        task_queue=command.task_queue or run.task_queue,
        retry_policy=command.policy,
        event_fields=_event_fields(command, place),
        group_id=place.outermost.id if place else None,
        scheduled_at=now,
        schedule_to_close_at=after(now, (command.policy or {}).get("schedule_to_close_timeout")),
        scheduled_sequence=run.last_history_sequence + 1,
    )
    task = new_activity_task(run, execution, now, available_at=now)
    execution.task_id = task.id
    deadlines = {
        name: stamp(moment)
        for name, moment in (
            ("schedule_to_start", task.schedule_to_start_at),
            ("schedule_to_close", task.schedule_to_close_at),
        )
        if moment is not None
    }
    changes.append(events.activity_scheduled(execution, arguments=command.arguments, deadlines=deadlines or None))
    changes.set(pending_activity_count=run.pending_activity_count + 1)
    changes.executions.append(execution)
    changes.tasks.append(task)


def _event_fields(command: ScheduleActivity, place: GroupPlace | None) -> dict[str, Any] | None:
    fields = place.event_fields() if place else {}
    if command.cancellation_policy is not None:
        fields["cancellation_policy"] = command.cancellation_policy
    return fields or None


def new_activity_task(
    run: Run, execution: ActivityExecution, now: datetime, *, available_at: datetime, attempt_count: int = 0
) -> Task:
    """The task that offers the next attempt of an execution, with every deadline a claim will need."""
    policy = execution.retry_policy or {}
    schedule_to_start_at = after(available_at, policy.get("schedule_to_start_timeout"))
    task = Task(
        id=new_id(),
        namespace=run.namespace,
        task_queue=execution.task_queue,
        kind=TaskKind.ACTIVITY,
        type=execution.activity_type,
        status=TaskStatus.READY,
        priority=run.priority,
        available_at=available_at,
        run_id=run.id,
        workflow_id=run.workflow_id,
        activity_execution_id=execution.id,
        attempt_count=attempt_count,
        start_to_close_seconds=policy.get("start_to_close_timeout"),
        heartbeat_seconds=policy.get("heartbeat_timeout"),
        schedule_to_start_at=schedule_to_start_at,
        schedule_to_close_at=execution.schedule_to_close_at,
        deadline_at=earliest(schedule_to_start_at, execution.schedule_to_close_at),
        run_deadline_at=run.deadline_at,
        created_at=now,
    )
    return make_later(task, now)


register(
    CommandType(
        name="schedule_activity",
        validate=_validate,
        apply=_apply,
        owns=frozenset(
            {
                "retry_policy", "start_to_close_timeout", "schedule_to_start_timeout", "schedule_to_close_timeout",
                "heartbeat_timeout", "worker_session", "cancellation_policy",
            }
        ),
    )
)  # fmt: skip
