"""What a completion answers for a poll it carried (docs/protocol/carried-polls.md)."""

from __future__ import annotations

from wire.answer_fields import Body, Const, Moment, OneOf
from worker_api.answers.tasks import ClaimedActivityTask, ClaimedWorkflowTask, CompressedWorkflowTask

_MISSING = (
    " No member means that nothing was leased for that poll: the capacity reserved for it may be freed. It does not say"
    " that the queue is empty, and the worker goes on carrying polls."
)


class CarriedPollLeased(Body):
    """A task is leased under the carried `poll_request_id`. The ordinary poll under the same id fetches it."""

    leased = Const(True, "A lease is running already.")


class CarriedPollEmpty(Body):
    """Nothing was ready for this worker."""

    leased = Const(False, "Nothing was ready when the completion committed.")


class _Inline(Body):
    leased = Const(True, "A lease is running already.")
    poll_status = Const("leased")
    server_time = Moment("After the claim committed; leases and deadlines are measured from it.")


class CarriedActivityTask(_Inline):
    """A task is leased, and here it is: what the poll under the same id would return."""

    task = ClaimedActivityTask()


class CarriedWorkflowTask(_Inline):
    """A task is leased, and here it is: what the poll under the same id would return."""

    task = OneOf(ClaimedWorkflowTask, CompressedWorkflowTask)


def activity_poll() -> OneOf:
    return OneOf(
        CarriedPollLeased,
        CarriedPollEmpty,
        CarriedActivityTask,
        says="What became of the `activity_poll` that was carried." + _MISSING,
        optional=True,
    )


def workflow_poll() -> OneOf:
    return OneOf(
        CarriedPollLeased,
        CarriedPollEmpty,
        CarriedWorkflowTask,
        says="What became of the `workflow_poll` that was carried." + _MISSING,
        optional=True,
    )
