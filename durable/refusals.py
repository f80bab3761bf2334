"""Refusals: every deliberate "no", typed and closed (docs/protocol/refusals.md). They know nothing of HTTP.

A refusal rolls back whatever its transaction touched and becomes the documented answer. Anything that is not a
`Refusal` is a fault: it propagates, rolls back and surfaces.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self


class Reason(StrEnum):
    """Machine-readable reasons, never reused for another meaning. A test produces each with its exact body."""

    # The request itself
    VALIDATION_FAILED = "validation_failed"
    STRUCTURAL_LIMIT_EXCEEDED = "structural_limit_exceeded"
    INVALID_PAGE_TOKEN = "invalid_page_token"
    # Polls: admission and replay
    WORKER_NOT_REGISTERED = "worker_not_registered"
    TASK_QUEUE_MISMATCH = "task_queue_mismatch"
    BUILD_ID_MISMATCH = "build_id_mismatch"
    STALE_WORKER_REGISTRATION = "stale_worker_registration"
    WORKER_DRAINING = "worker_draining"
    POLL_REQUEST_TASK_KINDS_CONFLICT = "poll_request_task_kinds_conflict"
    POLL_CACHED_TASK_EXPIRED = "poll_cached_task_expired"
    UPDATE_VALIDATION_CAPABILITY_NOT_ADVERTISED = "update_validation_capability_not_advertised"
    POLL_REQUEST_BUSY = "poll_request_busy"
    LONG_POLL_CAPACITY_EXHAUSTED = "long_poll_capacity_exhausted"
    # Registration
    WORKFLOW_DEFINITION_CHANGED = "workflow_definition_changed"
    WORKFLOW_METADATA_CAPABILITY_PROTOCOL_MISMATCH = "workflow_metadata_capability_protocol_mismatch"
    WORKER_CAPABILITY_MANIFEST_MISMATCH = "worker_capability_manifest_mismatch"
    WORKER_CAPABILITY_PROTOCOL_FLOOR_MISMATCH = "worker_capability_protocol_floor_mismatch"
    PREPARED_LOCAL_ACTIVITY_CAPABILITY_MISMATCH = "prepared_local_activity_capability_mismatch"
    WORKER_NOT_FOUND = "worker_not_found"
    WORKER_REGISTRATION_TOKEN_NOT_FOUND = "worker_registration_token_not_found"
    WORKER_REGISTRATION_LOST_AUTHORITY = "worker_registration_lost_authority"
    WORKER_REGISTRATION_RECEIPT_EXPIRED = "worker_registration_receipt_expired"
    # Reports about tasks
    TASK_NOT_FOUND = "task_not_found"
    CONFLICTING_COMPLETION = "conflicting_completion"
    TASK_NOT_LEASED = "task_not_leased"
    LEASE_EXPIRED = "lease_expired"
    LEASE_OWNER_MISMATCH = "lease_owner_mismatch"
    WORKFLOW_TASK_ATTEMPT_MISMATCH = "workflow_task_attempt_mismatch"
    RUN_CLOSED = "run_closed"
    ATTEMPT_NOT_FOUND = "attempt_not_found"
    TASK_MISMATCH = "task_mismatch"
    STALE_ATTEMPT = "stale_attempt"
    RUN_CANCELLED = "run_cancelled"
    RUN_TERMINATED = "run_terminated"
    HEARTBEAT_TIMEOUT = "heartbeat_timeout"
    START_TO_CLOSE_TIMEOUT = "start_to_close_timeout"
    SCHEDULE_TO_CLOSE_TIMEOUT = "schedule_to_close_timeout"
    ACTIVITY_ATTEMPT_STATUS_UNAVAILABLE = "activity_attempt_status_unavailable"
    CHECKPOINT_SEQUENCE_MISMATCH = "checkpoint_sequence_mismatch"
    WORKER_SESSIONS_UNAVAILABLE = "worker_sessions_unavailable"
    WORKER_CAPABILITY_NOT_SUPPORTED = "worker_capability_not_supported"
    # Control plane
    INSTANCE_NOT_FOUND = "instance_not_found"
    RUN_NOT_FOUND = "run_not_found"
    INSTANCE_ALREADY_STARTED = "instance_already_started"
    WORKFLOW_ID_RESERVED_IN_NAMESPACE = "workflow_id_reserved_in_namespace"
    HISTORICAL_RUN_COMMAND_REJECTED = "historical_run_command_rejected"
    RUN_NOT_ACTIVE = "run_not_active"


class Kind(StrEnum):
    """What sort of no it is; `wire.errors` turns each into an HTTP status."""

    INVALID_REQUEST = "invalid_request"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    GONE = "gone"
    NOT_REGISTERED = "not_registered"
    MALFORMED = "malformed"
    UNAVAILABLE = "unavailable"
    # Not an error on the wire: a draining worker is answered 200 without a task.
    DRAINING = "draining"


_KINDS: dict[Reason, Kind] = {
    Reason.VALIDATION_FAILED: Kind.INVALID_REQUEST,
    Reason.STRUCTURAL_LIMIT_EXCEEDED: Kind.INVALID_REQUEST,
    Reason.ACTIVITY_ATTEMPT_STATUS_UNAVAILABLE: Kind.INVALID_REQUEST,
    Reason.INVALID_PAGE_TOKEN: Kind.MALFORMED,
    Reason.WORKER_NOT_REGISTERED: Kind.NOT_REGISTERED,
    Reason.WORKER_DRAINING: Kind.DRAINING,
    Reason.LONG_POLL_CAPACITY_EXHAUSTED: Kind.UNAVAILABLE,
    Reason.WORKER_NOT_FOUND: Kind.NOT_FOUND,
    Reason.WORKER_REGISTRATION_TOKEN_NOT_FOUND: Kind.NOT_FOUND,
    Reason.WORKER_REGISTRATION_RECEIPT_EXPIRED: Kind.GONE,
    Reason.TASK_NOT_FOUND: Kind.NOT_FOUND,
    Reason.ATTEMPT_NOT_FOUND: Kind.NOT_FOUND,
    Reason.INSTANCE_NOT_FOUND: Kind.NOT_FOUND,
    Reason.RUN_NOT_FOUND: Kind.NOT_FOUND,
}


class Refusal(Exception):
    """A documented refusal: a reason, a sentence for people, and the fields its body carries besides."""

    def __init__(self, reason: Reason, message: str, **fields: Any) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.fields = fields
        self.kind = _KINDS.get(reason, Kind.CONFLICT)

    def as_kind(self, kind: Kind) -> Self:
        """The same refusal where its reason is another kind of no than usual."""
        self.kind = kind
        return self


class PollRefusalReason(StrEnum):
    """Why a poll is not admitted. Closed: a completion outlives these, and only these, when its carried poll meets one.

    Whatever else a carried claim raises is a fault and takes the completion with it (docs/protocol/carried-polls.md).
    """

    WORKER_NOT_REGISTERED = Reason.WORKER_NOT_REGISTERED.value
    STALE_WORKER_REGISTRATION = Reason.STALE_WORKER_REGISTRATION.value
    TASK_QUEUE_MISMATCH = Reason.TASK_QUEUE_MISMATCH.value
    BUILD_ID_MISMATCH = Reason.BUILD_ID_MISMATCH.value
    POLL_REQUEST_TASK_KINDS_CONFLICT = Reason.POLL_REQUEST_TASK_KINDS_CONFLICT.value
    POLL_CACHED_TASK_EXPIRED = Reason.POLL_CACHED_TASK_EXPIRED.value
    UPDATE_VALIDATION_CAPABILITY_NOT_ADVERTISED = Reason.UPDATE_VALIDATION_CAPABILITY_NOT_ADVERTISED.value
    LONG_POLL_CAPACITY_EXHAUSTED = Reason.LONG_POLL_CAPACITY_EXHAUSTED.value
    WORKER_DRAINING = Reason.WORKER_DRAINING.value
    POLL_REQUEST_BUSY = Reason.POLL_REQUEST_BUSY.value


class PollRefusal(Refusal):
    """A poll that is not admitted. Raised by the admission, replay and claim of polls alone."""

    def __init__(self, reason: PollRefusalReason, message: str, **fields: Any) -> None:
        super().__init__(Reason(reason.value), message, **fields)


def invalid(errors: dict[str, list[str]], message: str = "The request is not valid.") -> Refusal:
    """A 422: what is wrong, by dotted field path (`commands.0.type`). Changes nothing."""
    return Refusal(Reason.VALIDATION_FAILED, message, errors=errors, validation_errors=errors)
