"""Answers to reports about activity tasks (docs/protocol/worker-protocol.md 8.2 to 8.6)."""

from __future__ import annotations

from durable.protocol import COOPERATIVE_FLOOR
from durable.refusals import Reason
from durable.states import ActivityStatus, AttemptStatus, TaskStatus
from wire.answer_fields import Answers, AsSent, Body, Const, Flag, Id, Moment, Name, Nothing, OneWord, Text, Whole
from wire.answers import BackendRefused, WorkerRefusal, closed_reason, run_status
from worker_api.answers.carried_polls import workflow_poll
from worker_api.answers.tasks import ActivityDeadlines


class _OfActivityTask(Body):
    task_id = Text()
    activity_attempt_id = Text()


class ActivityTaskRefused(WorkerRefusal, _OfActivityTask):
    """Base of the guard's refusals."""


class ActivityTaskNotFound(ActivityTaskRefused):
    """There is no such activity task in this namespace."""

    reason = Const(Reason.TASK_NOT_FOUND)


class AttemptNotFound(ActivityTaskRefused):
    """There is no such attempt in this namespace."""

    reason = Const(Reason.ATTEMPT_NOT_FOUND)


class TaskMismatch(ActivityTaskRefused):
    """The attempt belongs to another task."""

    reason = Const(Reason.TASK_MISMATCH)


class ActivityOwnerMismatch(ActivityTaskRefused):
    """Another worker holds the attempt."""

    reason = Const(Reason.LEASE_OWNER_MISMATCH)
    lease_owner = Name("Who holds it.")


_ATTEMPT: Answers = (ActivityTaskNotFound, AttemptNotFound, TaskMismatch, ActivityOwnerMismatch)


class _ActivityRunClosed(ActivityTaskRefused):
    outcome = Const("ignored")
    recorded = Const(False)
    cancel_requested = Flag("Whether the run was cancelled or terminated.")
    can_continue = Const(False)
    run_status = run_status()
    run_closed_reason = closed_reason(null=False)
    run_closed_at = Moment()
    activity_status = OneWord(ActivityStatus.values)
    attempt_status = OneWord(AttemptStatus.values)
    task_status = OneWord(TaskStatus.values)
    lease_owner = Name(null=True)
    lease_expires_at = Moment(null=True)


class ActivityRunCancelled(_ActivityRunClosed):
    """The run was cancelled."""

    reason = Const(Reason.RUN_CANCELLED)


class ActivityRunTerminated(_ActivityRunClosed):
    """The run was terminated."""

    reason = Const(Reason.RUN_TERMINATED)


class ActivityRunClosed(_ActivityRunClosed):
    """The run has ended otherwise."""

    reason = Const(Reason.RUN_CLOSED)


class StaleAttempt(ActivityTaskRefused):
    """The attempt has ended, or another one has followed it."""

    reason = Const(Reason.STALE_ATTEMPT)
    outcome = Const("ignored")
    recorded = Const(False)


class ActivityTaskNotLeased(ActivityTaskRefused):
    """The task is not leased."""

    reason = Const(Reason.TASK_NOT_LEASED)
    task_status = OneWord(TaskStatus.values)


class ActivityLeaseExpired(ActivityTaskRefused):
    """The lease has run out, though nobody else has the task yet."""

    reason = Const(Reason.LEASE_EXPIRED)
    task_status = Const("leased")
    lease_owner = Name()
    lease_expires_at = Moment()


_GUARD: Answers = (
    *_ATTEMPT,
    ActivityRunCancelled,
    ActivityRunTerminated,
    ActivityRunClosed,
    StaleAttempt,
    ActivityTaskNotLeased,
    ActivityLeaseExpired,
)


class ConflictingActivityReport(ActivityTaskRefused):
    """The same attempt has been reported with another body."""

    reason = Const(Reason.CONFLICTING_COMPLETION)


class _ActivityReported(_OfActivityTask):
    recorded = Const(True)
    reason = Nothing()


class _ActivityReportedBefore(_OfActivityTask):
    recorded = Const(False)
    reason = Const("already_completed")
    next_task_id = Nothing()


class ActivityTaskCompleted(_ActivityReported):
    """The result is history now, and the run goes on."""

    example = {
        "task_id": "01KAWD5Z8Q0000000000000003",
        "activity_attempt_id": "01KAWD5Z8Q0000000000000004",
        "outcome": "completed",
        "recorded": True,
        "reason": None,
        "next_task_id": "01KAWD5Z8Q0000000000000001",
        "workflow_poll": {"leased": True},
    }

    outcome = Const("completed")
    next_task_id = Id("The workflow task this created; null if the run has an open one.", null=True)
    workflow_poll = workflow_poll()


class ActivityTaskCompletedBefore(_ActivityReportedBefore):
    """The duplicate receipt: this very report was recorded before, and nothing was written now."""

    example = {
        "task_id": "01KAWD5Z8Q0000000000000003",
        "activity_attempt_id": "01KAWD5Z8Q0000000000000004",
        "outcome": "completed",
        "recorded": False,
        "reason": "already_completed",
        "next_task_id": None,
    }

    outcome = Const("completed")


class ActivityTaskFailed(_ActivityReported):
    """The attempt has failed: another one follows, or the step has failed and the run goes on."""

    outcome = Const("failed")
    next_task_id = Id("The next attempt's task, else the workflow task this created, if any.", null=True)


class ActivityTaskFailedBefore(_ActivityReportedBefore):
    """The duplicate receipt: this very report was recorded before, and nothing was written now."""

    outcome = Const("failed")


class _ActivityReportUnavailable(BackendRefused):
    task_id = Text()
    activity_attempt_id = AsSent()
    lease_owner = AsSent()
    worker_id = Text("The lease owner.", null=True)


class ActivityCompleteUnavailable(_ActivityReportUnavailable):
    """The result may or may not have been recorded; sent again, it gets its receipt."""

    operation = Const("complete_activity_task")


class ActivityFailUnavailable(_ActivityReportUnavailable):
    """The failure may or may not have been recorded; sent again, it gets its receipt."""

    operation = Const("fail_activity_task")


COMPLETE: Answers = (
    ActivityTaskCompleted,
    ActivityTaskCompletedBefore,
    *_GUARD,
    ConflictingActivityReport,
    ActivityCompleteUnavailable,
)
FAIL: Answers = (
    ActivityTaskFailed,
    ActivityTaskFailedBefore,
    *_GUARD,
    ConflictingActivityReport,
    ActivityFailUnavailable,
)

# In the order in which they are looked for.
STOP_REASONS = (
    "run_cancelled",
    "run_terminated",
    "attempt_closed",
    "activity_cancelled",
    "task_cancelled",
    "run_closed",
    "activity_not_running",
    "stale_attempt",
    "stale_task",
    "task_not_leased",
    "lease_expired",
    "schedule_to_close_timeout",
    "heartbeat_timeout",
    "start_to_close_timeout",
)


class _Standing(_OfActivityTask):
    lease_owner = Name()
    can_continue = Flag("Whether the attempt may go on.")
    cancel_requested = Flag("Whether it should stop because it was cancelled.")
    reason = OneWord(STOP_REASONS, "Why the attempt must stop; null while it may go on.", null=True)
    lease_expires_at = Moment(null=True)
    last_heartbeat_at = Moment(null=True)
    run_closed_reason = closed_reason()
    run_closed_at = Moment(null=True)


class ActivityHeartbeatAnswered(_Standing):
    """The attempt goes on, with a full lease and a later heartbeat deadline; or it must stop."""

    heartbeat_recorded = Flag()


HEARTBEAT: Answers = (ActivityHeartbeatAnswered, *_ATTEMPT)


class ActivityStanding(_Standing):
    """How the attempt stands; nothing was written."""

    heartbeat_recorded = Const(False)
    run_status = run_status()
    activity_status = OneWord(ActivityStatus.values)
    attempt_status = OneWord(AttemptStatus.values)
    task_status = OneWord(TaskStatus.values)
    deadlines = ActivityDeadlines(allow_null=True)
    worker_session = Nothing()


class ActivityStatusUnavailable(WorkerRefusal):
    """The request speaks a protocol version that does not have this route."""

    reason = Const(Reason.ACTIVITY_ATTEMPT_STATUS_UNAVAILABLE)
    minimum_protocol_version = Const(str(COOPERATIVE_FLOOR))


STATUS: Answers = (ActivityStanding, *_ATTEMPT, ActivityStatusUnavailable)


class ActivityLeaseRenewed(Body):
    """The lease has its full length again, from now. No heartbeat was recorded, and no deadline has moved."""

    task_id = Id()
    workflow_task_id = Id("The same.")
    workflow_instance_id = Text()
    workflow_run_id = Id()
    activity_execution_id = Id()
    activity_attempt_id = Id()
    attempt_number = Whole(minimum=1)
    lease_owner = Name()
    lease_renewed = Const(True)
    can_continue = Const(True)
    cancel_requested = Const(False)
    heartbeat_recorded = Const(False)
    reason = Nothing()
    server_time = Moment("Later at every renewal.")
    lease_expires_at = Moment("Never earlier than before; at most 24 hours after `server_time`.")
    last_heartbeat_at = Moment(null=True)
    heartbeat_deadline_at = Moment(null=True)


class HeartbeatTimeout(ActivityTaskRefused):
    """The attempt's heartbeat deadline has passed."""

    reason = Const(Reason.HEARTBEAT_TIMEOUT)


class StartToCloseTimeout(ActivityTaskRefused):
    """The attempt has taken too long."""

    reason = Const(Reason.START_TO_CLOSE_TIMEOUT)


class ScheduleToCloseTimeout(ActivityTaskRefused):
    """All attempts together have taken too long."""

    reason = Const(Reason.SCHEDULE_TO_CLOSE_TIMEOUT)


RENEW_LEASE: Answers = (
    ActivityLeaseRenewed,
    *_GUARD,
    HeartbeatTimeout,
    StartToCloseTimeout,
    ScheduleToCloseTimeout,
)
