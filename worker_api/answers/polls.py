"""Answers to polls (docs/protocol/worker-protocol.md 5 and 6.1)."""

from __future__ import annotations

from durable.refusals import Reason
from wire.answer_fields import Answers, AsSent, Body, Const, Moment, Name, Nothing, OneOf, OneWord, Text, Whole, listed
from wire.answers import BackendUnavailable, Unavailable, WorkerRefusal
from worker_api.answers.tasks import ClaimedActivityTask, ClaimedWorkflowTask, CompressedWorkflowTask
from worker_api.answers.workers import WorkerNotRegistered


class _PollLeased(Body):
    poll_status = Const("leased")
    server_time = Moment("After the claim committed; leases and deadlines are measured from it.")


class WorkflowPollLeased(_PollLeased):
    """A workflow task, leased to this worker; the same lease again for a repeated `poll_request_id`."""

    task = OneOf(ClaimedWorkflowTask, CompressedWorkflowTask)


class ActivityPollLeased(_PollLeased):
    """An activity task, leased to this worker; the same lease again for a repeated `poll_request_id`."""

    task = ClaimedActivityTask()


class PollEmpty(Body):
    """Nothing became ready for this worker within the window. Nothing is remembered of the poll."""

    task = Nothing()
    poll_status = Const("empty")


class PollDraining(Body):
    """The worker is being drained: it gets no new lease, and is told so at once."""

    task = Nothing()
    poll_status = Const("draining")
    drain_reason = Text("Why, in an operator's words.", null=True, maxLength=1000)


class TaskQueueMismatch(WorkerRefusal):
    """The worker is registered for another task queue."""

    reason = Const(Reason.TASK_QUEUE_MISMATCH)
    worker_id = Name()
    registered_task_queue = Name()
    requested_task_queue = Name()


class BuildIdMismatch(WorkerRefusal):
    """The worker is registered with another build id."""

    reason = Const(Reason.BUILD_ID_MISMATCH)
    worker_id = Name()
    registered_build_id = Name()
    requested_build_id = Name()


class StaleWorkerRegistration(WorkerRefusal):
    """The worker was not heard of for too long, or registered anew while this poll was waiting."""

    reason = Const(Reason.STALE_WORKER_REGISTRATION)
    worker_id = Name()


class _PollConflict(WorkerRefusal):
    task = Nothing()
    poll_status = Const("conflict")
    poll_request_id = Text("As sent.")


class PollTaskKindsConflict(_PollConflict):
    """The `poll_request_id` was used for another set of task kinds before."""

    reason = Const(Reason.POLL_REQUEST_TASK_KINDS_CONFLICT)
    requested_task_kinds = listed(Text(), "Of this request.")
    bound_task_kinds = listed(Text(), "Of the request that used the id first.")


class PollCachedTaskExpired(_PollConflict):
    """The lease that this `poll_request_id` was granted is over: poll under a new id."""

    reason = Const(Reason.POLL_CACHED_TASK_EXPIRED)


class UpdateValidationNotAdvertised(WorkerRefusal):
    """`task_kinds` asks for update validation, and the worker is registered without that capability."""

    reason = Const(Reason.UPDATE_VALIDATION_CAPABILITY_NOT_ADVERTISED)
    task = Nothing()
    poll_status = Const("unsupported")


_TASK_KINDS = ("workflow_task", "activity_task")


class LongPollCapacityExhausted(WorkerRefusal):
    """There is nothing to lease, and no room for another waiting poll. Polls that can be answered at once still are."""

    reason = Const(Reason.LONG_POLL_CAPACITY_EXHAUSTED)
    task = Nothing()
    poll_status = Const("long_poll_capacity_exhausted")
    task_kind = OneWord(_TASK_KINDS)
    task_queue = Name()
    namespace = Name()
    wait_pool = Const("worker")
    retryable = Const(True)
    retry_after_seconds = Whole("Seconds to wait; also in the `Retry-After` header.", minimum=1, maximum=60)


class PollLockPressure(Unavailable):
    """The database is busy; nothing was leased."""

    reason = Const("backend_lock_pressure")
    task = Nothing()
    poll_status = Const("backend_lock_pressure")
    task_kind = OneWord(_TASK_KINDS)
    task_queue = AsSent()
    namespace = Text()
    request_admitted = Const(False)


class PollUnavailable(BackendUnavailable):
    """The database was lost: a lease may have been granted. The same poll under the same id finds it."""

    operation = OneWord(("poll_workflow_task", "poll_activity_task"))
    outcome = Const("unknown")
    task = Nothing()
    poll_status = Const("backend_unavailable")
    task_queue = AsSent()
    namespace = Text()
    worker_id = AsSent()
    poll_request_id = AsSent()
    retry_same_poll_request_id = Const(True)


_POLL: Answers = (
    PollEmpty,
    PollDraining,
    WorkerNotRegistered,
    TaskQueueMismatch,
    BuildIdMismatch,
    StaleWorkerRegistration,
    PollCachedTaskExpired,
    LongPollCapacityExhausted,
    PollLockPressure,
    PollUnavailable,
)
WORKFLOW: Answers = (WorkflowPollLeased, *_POLL, PollTaskKindsConflict, UpdateValidationNotAdvertised)
ACTIVITY: Answers = (ActivityPollLeased, *_POLL)
