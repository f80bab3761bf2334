"""Statuses and the moves between them (docs/protocol/history.md 1.2 and 1.3). Pure: no database, no clock."""

from __future__ import annotations

from django.db.models import TextChoices


class RunStatus(TextChoices):
    """A run is open until one of the four terminal statuses; a terminal status never changes."""

    PENDING = "pending"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"


class ClosedReason(TextChoices):
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"
    TIMED_OUT = "timed_out"


class TaskKind(TextChoices):
    WORKFLOW = "workflow"
    ACTIVITY = "activity"


class TaskStatus(TextChoices):
    READY = "ready"
    LEASED = "leased"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ActivityStatus(TextChoices):
    """`running` is not stored: a claim writes no execution row; it is derived from a leased task."""

    PENDING = "pending"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TimerStatus(TextChoices):
    PENDING = "pending"
    FIRED = "fired"
    CANCELLED = "cancelled"


class AttemptStatus(TextChoices):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class IncarnationStatus(TextChoices):
    """One registration of a worker id, named by its registration token (docs/protocol/worker-protocol.md 3.4)."""

    ACTIVE = "active"
    SUPERSEDED = "superseded"
    DEREGISTERED = "deregistered"


class CommandStatus(TextChoices):
    ACCEPTED = "accepted"
    REJECTED = "rejected"


OPEN_RUN = (RunStatus.PENDING, RunStatus.WAITING)
TERMINAL_RUN = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.TERMINATED)
OPEN_TASK = (TaskStatus.READY, TaskStatus.LEASED)

STATUS_BUCKETS: dict[str, tuple[RunStatus, ...]] = {
    "running": OPEN_RUN,
    "completed": (RunStatus.COMPLETED,),
    "failed": (RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.TERMINATED),
}

RUN_MOVES: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.PENDING: frozenset({RunStatus.WAITING, *TERMINAL_RUN}),
    RunStatus.WAITING: frozenset({RunStatus.WAITING, *TERMINAL_RUN}),
    **{status: frozenset() for status in TERMINAL_RUN},
}

TASK_MOVES: dict[TaskStatus, frozenset[TaskStatus]] = {
    TaskStatus.READY: frozenset({TaskStatus.LEASED, TaskStatus.CANCELLED, TaskStatus.FAILED}),
    TaskStatus.LEASED: frozenset(
        {TaskStatus.READY, TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.LEASED}
    ),
    TaskStatus.COMPLETED: frozenset(),
    TaskStatus.FAILED: frozenset(),
    TaskStatus.CANCELLED: frozenset(),
}


def is_terminal(status: str) -> bool:
    """Whether a run with this status is closed."""
    return status in TERMINAL_RUN


def status_bucket(status: str) -> str:
    """The coarse status that clients filter by: running, completed or failed."""
    return next(bucket for bucket, members in STATUS_BUCKETS.items() if status in members)
