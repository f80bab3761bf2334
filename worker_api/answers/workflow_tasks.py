"""Answers to reports about workflow tasks (docs/protocol/worker-protocol.md 6.4, 7.2 to 7.7 and 12)."""

from __future__ import annotations

from durable.refusals import Reason
from durable.states import TaskStatus
from wire.answer_fields import (
    Answers,
    AsSent,
    Body,
    Const,
    Flag,
    Id,
    Moment,
    Name,
    Nothing,
    OneWord,
    Text,
    Whole,
    listed,
)
from wire.answers import BackendRefused, WorkerRefusal, closed_reason, run_status
from worker_api.answers.carried_polls import activity_poll, workflow_poll
from worker_api.answers.tasks import CompressedPage, PlainPage


class _OfWorkflowTask(Body):
    task_id = Text()
    workflow_task_attempt = Whole("As sent, as a number.", minimum=1)


class WorkflowTaskRefused(WorkerRefusal, _OfWorkflowTask):
    """Base of the guard's refusals."""


class WorkflowTaskNotFound(WorkflowTaskRefused):
    """There is no such workflow task in this namespace."""

    reason = Const(Reason.TASK_NOT_FOUND)


class WorkflowTaskNotLeased(WorkflowTaskRefused):
    """The task is not leased, and its run is open."""

    reason = Const(Reason.TASK_NOT_LEASED)
    task_status = OneWord(TaskStatus.values)


class WorkflowTaskLeaseExpired(WorkflowTaskRefused):
    """The lease has run out, though nobody else has the task yet."""

    reason = Const(Reason.LEASE_EXPIRED)
    task_status = Const("leased")
    lease_owner = Name()
    lease_expires_at = Moment()


class WorkflowTaskOwnerMismatch(WorkflowTaskRefused):
    """Another worker holds the lease."""

    reason = Const(Reason.LEASE_OWNER_MISMATCH)
    lease_owner = Name("Who holds it.")


class WorkflowTaskAttemptMismatch(WorkflowTaskRefused):
    """The same worker holds the lease under another attempt."""

    reason = Const(Reason.WORKFLOW_TASK_ATTEMPT_MISMATCH)
    current_attempt = Whole(minimum=1)


class WorkflowTaskRunClosed(WorkflowTaskRefused):
    """The run is closed: nothing can be reported about it any more."""

    reason = Const(Reason.RUN_CLOSED)
    stop_reason = OneWord(("run_completed", "run_failed", "run_cancelled", "run_terminated"))
    cancel_requested = Flag("Whether the run was cancelled or terminated.")
    can_continue = Const(False)
    run_status = run_status()
    run_closed_reason = closed_reason(null=False)
    run_closed_at = Moment()
    task_status = OneWord(TaskStatus.values)
    lease_owner = Name(null=True)
    lease_expires_at = Moment(null=True)


class _NotRecorded(Body):
    """The proof that this report was not recorded (docs/protocol/worker-protocol.md 12.3)."""

    recorded = Const(False, "Nothing was written by this request.")
    run_id = Id()


class WorkflowReportNotLeased(WorkflowTaskNotLeased, _NotRecorded):
    """The task is not leased, and its run is open. The report was not recorded, and the task may be dropped."""

    example = {
        "error": "Workflow task is not currently leased.",
        "reason": "task_not_leased",
        "task_id": "01KAWD5Z8Q0000000000000001",
        "workflow_task_attempt": 1,
        "task_status": "completed",
        "recorded": False,
        "run_id": "01KAWD5Z8Q0000000000000002",
    }


class WorkflowReportRunClosed(WorkflowTaskRunClosed, _NotRecorded):
    """The run is closed. The report was not recorded, and the task may be dropped."""

    example = {
        "error": "Workflow run is already closed.",
        "reason": "run_closed",
        "stop_reason": "run_cancelled",
        "cancel_requested": True,
        "can_continue": False,
        "run_status": "cancelled",
        "run_closed_reason": "cancelled",
        "run_closed_at": "2026-11-03T10:00:00.000000Z",
        "task_status": "cancelled",
        "lease_owner": None,
        "lease_expires_at": None,
        "task_id": "01KAWD5Z8Q0000000000000001",
        "workflow_task_attempt": 2,
        "recorded": False,
        "run_id": "01KAWD5Z8Q0000000000000002",
    }


class ConflictingWorkflowCompletion(WorkflowTaskRefused):
    """The same claim has completed the task with another body."""

    reason = Const(Reason.CONFLICTING_COMPLETION)


_CLAIM: Answers = (
    WorkflowTaskNotFound,
    WorkflowTaskLeaseExpired,
    WorkflowTaskOwnerMismatch,
    WorkflowTaskAttemptMismatch,
)
# For what only looks at a claim or renews it, and for reports.
_GUARD: Answers = (*_CLAIM, WorkflowTaskNotLeased, WorkflowTaskRunClosed)
_REPORT_GUARD: Answers = (*_CLAIM, WorkflowReportNotLeased, WorkflowReportRunClosed)


class WorkflowTaskCompleted(_OfWorkflowTask):
    """The commands are history now, and the claim has ended."""

    example = {
        "task_id": "01KAWD5Z8Q0000000000000001",
        "run_id": "01KAWD5Z8Q0000000000000002",
        "run_status": "waiting",
        "workflow_task_attempt": 1,
        "outcome": "completed",
        "recorded": True,
        "reason": None,
        "created_task_ids": ["01KAWD5Z8Q0000000000000003"],
        "activity_poll": {"leased": True},
    }

    run_id = Id()
    run_status = run_status("The run's status after the commit.")
    outcome = Const("completed")
    recorded = Const(True)
    reason = Nothing()
    created_task_ids = listed(Id(), "Tasks that this completion created.")
    activity_poll = activity_poll()
    workflow_poll = workflow_poll()


class WorkflowTaskCompletedBefore(_OfWorkflowTask):
    """The duplicate receipt: this very report was recorded before, and nothing was written now."""

    example = {
        "task_id": "01KAWD5Z8Q0000000000000001",
        "run_id": "01KAWD5Z8Q0000000000000002",
        "run_status": "completed",
        "workflow_task_attempt": 1,
        "outcome": "completed",
        "recorded": False,
        "reason": "already_completed",
        "created_task_ids": [],
    }

    run_id = Id()
    run_status = run_status("The run's status now.")
    outcome = Const("completed")
    recorded = Const(False)
    reason = Const("already_completed")
    created_task_ids = listed(Id(), "Empty.", max_length=0)


class _OverLimit(Body):
    message = Text("What is wrong, for people.")
    reason = Const(Reason.STRUCTURAL_LIMIT_EXCEEDED)
    outcome = Const("rejected")
    current_value = Whole(minimum=1)
    configured_limit = Whole(minimum=1)


class StructuralLimitExceeded(_OverLimit):
    """The batch holds more commands than the server takes at once."""

    limit_kind = Const("command_batch_size")


class CheckpointOverLimit(_OverLimit):
    """The checkpoint would pass a limit. Nothing was recorded, and the claim goes on.

    A completion that passes one of them ends the run as failed, except for `command_batch_size`.
    """

    limit_kind = OneWord(
        (
            "command_batch_size",
            "payload_size_bytes",
            "pending_activity_count",
            "pending_timer_count",
            "history_transaction_size",
        )
    )


class WorkerSessionsUnavailable(WorkerRefusal):
    """A `schedule_activity` names a worker session, which this server does not have."""

    reason = Const(Reason.WORKER_SESSIONS_UNAVAILABLE)


class WorkerCapabilityNotSupported(WorkerRefusal):
    """A command needs something that this server does not offer."""

    reason = Const(Reason.WORKER_CAPABILITY_NOT_SUPPORTED)
    capability = Text()
    command_type = Text()


class _WorkflowReportUnavailable(BackendRefused):
    task_id = Text()
    lease_owner = AsSent()
    worker_id = Text("The lease owner.", null=True)
    workflow_task_attempt = AsSent(type=["integer", "string"])


class WorkflowCompleteUnavailable(_WorkflowReportUnavailable):
    """The completion may or may not have been recorded; sent again, it gets its receipt."""

    operation = Const("complete_workflow_task")


class CheckpointUnavailable(_WorkflowReportUnavailable):
    """The checkpoint may or may not have been recorded; sent again, it gets its receipt."""

    operation = Const("checkpoint_workflow_task")


class WorkflowFailUnavailable(_WorkflowReportUnavailable):
    """The report may or may not have been recorded; sent again, it gets the not-recorded receipt if it was."""

    operation = Const("fail_workflow_task")


class WorkflowHeartbeatUnavailable(_WorkflowReportUnavailable):
    """The lease may or may not have been renewed; it can be sent again."""

    operation = Const("heartbeat_workflow_task")
    task_queue = Nothing()


COMPLETE: Answers = (
    WorkflowTaskCompleted,
    WorkflowTaskCompletedBefore,
    *_REPORT_GUARD,
    ConflictingWorkflowCompletion,
    WorkerSessionsUnavailable,
    WorkerCapabilityNotSupported,
    StructuralLimitExceeded,
    WorkflowCompleteUnavailable,
)


class WorkflowTaskCheckpointed(_OfWorkflowTask):
    """The commands are history now, and the claim goes on: its receipt, the same however often it is asked for."""

    checkpointed = Const(True, "The commands are history.")
    duplicate = Flag("This very checkpoint was recorded before, and nothing was written now.")
    checkpoint_id = Name("As sent.")
    workflow_run_id = Id()
    lease_owner = Name()
    start_sequence = Whole("The number of the step that the first command took.", minimum=1)
    next_sequence = Whole("The number that the next step after these takes.", minimum=1)
    created_task_ids = listed(Id(), "Tasks that this checkpoint created.")
    recorded_at = Moment("When it was recorded.")
    reason = Nothing()
    history_refresh_page_token = Const("MA==", "Reads the claim's history from its first event on.")


class CheckpointSequenceMismatch(WorkflowTaskRefused):
    """The run has more steps than the worker knows of, or fewer; nothing was recorded."""

    reason = Const(Reason.CHECKPOINT_SEQUENCE_MISMATCH)
    start_sequence = Whole("As sent, as a number.", minimum=1)
    next_sequence = Whole("The number that the run's next step takes.", minimum=1)


class ConflictingCheckpoint(WorkflowTaskRefused):
    """The same claim has used this checkpoint id for another body."""

    reason = Const(Reason.CONFLICTING_COMPLETION)


CHECKPOINT: Answers = (
    WorkflowTaskCheckpointed,
    *_REPORT_GUARD,
    ConflictingCheckpoint,
    CheckpointSequenceMismatch,
    WorkerSessionsUnavailable,
    WorkerCapabilityNotSupported,
    CheckpointOverLimit,
    CheckpointUnavailable,
)


class WorkflowTaskFailed(_OfWorkflowTask):
    """The failure is noted and the claim has ended; no history event was written.

    A worker's own failure is tried again under a new task. A replay failure blocks the run until it is repaired or
    something happens to it: no task follows.
    """

    outcome = Const("failed")
    recorded = Const(True)
    reason = Nothing()
    next_task_id = Id("The task that follows; null if the run is blocked.", null=True)


class WorkflowTaskWaiting(_OfWorkflowTask):
    """The claim has ended without commands: the code waits for history."""

    outcome = Const("waiting_for_history")
    recorded = Const(True)
    reason = Nothing()
    next_task_id = Id("The task that follows, if something happened that this claim was not shown.", null=True)


FAIL: Answers = (WorkflowTaskFailed, WorkflowTaskWaiting, *_REPORT_GUARD, WorkflowFailUnavailable)


class WorkflowTaskRenewed(_OfWorkflowTask):
    """The lease has its full length again, from now."""

    lease_owner = Name()
    renewed = Const(True)
    lease_expires_at = Moment("Never earlier than before.")
    run_status = run_status()
    task_status = Const("leased")
    reason = Nothing()


HEARTBEAT: Answers = (WorkflowTaskRenewed, *_GUARD, WorkflowHeartbeatUnavailable)


class _TaskHistory(_OfWorkflowTask):
    total_history_events = Whole("Events this claim may see.", minimum=1)


class WorkflowTaskHistory(_TaskHistory, PlainPage):
    """The page after the token."""


class CompressedWorkflowTaskHistory(_TaskHistory, CompressedPage):
    """The same, compressed: asked for, and at least `history_compression.compression_threshold` events."""


class InvalidPageToken(WorkerRefusal):
    """The page token is not one of this server's."""

    reason = Const(Reason.INVALID_PAGE_TOKEN)


HISTORY: Answers = (WorkflowTaskHistory, CompressedWorkflowTaskHistory, InvalidPageToken, *_GUARD)
