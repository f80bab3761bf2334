"""Answers that every route shares: the envelopes of both planes, and the base view's own refusals.

A refusal's docstring says when it is given. Views list what else they answer in `answers`
(docs/protocol/worker-protocol.md 1.3 to 1.8 and 5.6, docs/protocol/control-plane.md 1.4 and 2.3).
"""

from __future__ import annotations

from functools import cache

from rest_framework.serializers import SerializerMetaclass

from durable.commands.registry import supported_types
from durable.protocol import SERVED
from durable.refusals import Reason, Refusal
from durable.states import ClosedReason, RunStatus
from wire.answer_fields import (
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
    by_name,
    listed,
)
from wire.control_block import SCHEMA
from wire.errors import STATUS_OF_KIND
from wire.models import ROLES
from wire.versions import CONTROL_VERSION


def status_of(answer: type[Body]) -> int:
    """The status an answer is sent with: its own, or the one that the table of errors gives its reason."""
    reason = answer().fields.get("reason")
    if isinstance(reason, Const) and isinstance(reason.value, Reason):
        return STATUS_OF_KIND[answer.refusal_kind or Refusal(reason.value, "").kind]
    return answer.http_status


@cache
def enveloped(answer: type[Body], envelope: type[Body] | None) -> type[Body]:
    """The body as its plane sends it: with the envelope's keys beside its own."""
    if envelope is None:
        return answer
    described = {"__doc__": answer.__doc__, "__module__": answer.__module__}
    both: type[Body] = SerializerMetaclass(f"{envelope.prefix}{answer.__name__}", (answer, envelope), described)
    return both


# -- the worker plane's envelope ---------------------------------------------------------------------------------------


class HistoryCompression(Body):
    """How history pages can be compressed on request."""

    supported_encodings = listed(Text(), "Values of `accept_history_encoding`.")
    compression_threshold = Whole("Pages with fewer events are never compressed.", minimum=0)


class WorkerStatusCapability(Body):
    """The worker heartbeat, and what it may report."""

    supported = Flag()
    heartbeat_interval_seconds = Whole("How often a worker should send its heartbeat.", minimum=1)
    stale_after_seconds = Whole("A worker that was not heard of for this long is stale.", minimum=1)
    fields = listed(Text(), "What a heartbeat may report.")  # type: ignore[assignment]


class DeregistrationFencing(Body):
    """Deregistration that names one incarnation of the worker."""

    supported = Flag()
    schema = Const("durable-workflow.v2.worker-deregistration.v1")
    endpoint = Const("/worker/registrations/{workerId}/deregister", "Below `/api`.")
    receipt_retention_seconds = Whole("How long a repeat gets the same receipt.", minimum=1)


class Supported(Body):
    """Whether a feature is there."""

    supported = Flag()


class AffinityFeature(Body):
    """A feature that workers declare in their capability manifest."""

    feature = Text("Its name in the manifest.")
    contract_version = Text()
    supported = Flag()
    minimum_protocol_version = Text("Workers that speak less may not declare it.")


_CARRIED = (
    "may be sent with the completion of a workflow task: its own transaction claims for it. There only if it is on. An"
    " invalid carried poll is ignored; every carried poll must name the lease owner, or none is served. The member of"
    " the answer is optional, and a missing one means: no lease was delivered, the capacity reserved for it may be"
    " freed, the queue is not thereby known to be empty, and the capability stays in use."
)


class ServerCapabilities(Body):
    """What this server can do for workers: the same object in discovery and in every worker-plane answer."""

    long_poll_timeout = Whole("Seconds a poll waits unless it names its own window.", minimum=0)
    poll_status = Flag("Poll answers say `poll_status`.")
    workflow_task_poll_request_idempotency = Flag("A repeated `poll_request_id` gets the same lease again.")
    supported_workflow_task_commands = listed(OneWord(supported_types()), "Command types a completion may hold.")
    history_page_size_default = Whole("Events on a page unless the request says how many.", minimum=1)
    history_page_size_max = Whole("More are never sent on one page.", minimum=1)
    history_compression = HistoryCompression()
    response_compression = listed(Text(), "Content encodings of whole answers.")
    worker_status = WorkerStatusCapability()
    activity_retry_policy = Flag()
    activity_timeouts = Flag()
    non_retryable_failures = Flag()
    child_workflow_retry_policy = Flag()
    child_workflow_timeouts = Flag()
    parent_close_policy = Flag()
    activity_lease_renewal = Flag("Workers renew each activity lease before they execute.")
    activity_cancellation_acknowledgement = Flag()
    cooperative_cancellation = Flag()
    query_tasks = Flag()
    query_task_authority = Flag()
    update_validation_tasks = Flag()
    workflow_updates = Flag()
    prepared_local_activities = Flag()
    prepared_local_activity_groups = Flag()
    prepared_local_activity_cancellation_policies = listed(Text(), "Policies that prepared local activities may name.")
    worker_deregistration_fencing = DeregistrationFencing()
    workflow_memo_updates = Supported()
    local_activities = AffinityFeature()
    worker_sessions = AffinityFeature()
    worker_session_verbs = listed(Text(), "Operations on worker sessions.")
    sticky_execution = AffinityFeature()
    workflow_task_completion_activity_poll = Const(True, f"`activity_poll` {_CARRIED}", optional=True)
    workflow_task_completion_workflow_poll = Const(
        True,
        f"`workflow_poll` {_CARRIED} Activity goes first: with a valid `activity_poll` beside it, it is served only if"
        " that was claimed for and leased nothing.",
        optional=True,
    )
    activity_completion_workflow_poll = Const(
        True, f"`workflow_poll` {_CARRIED.replace('a workflow task', 'an activity task')}", optional=True
    )
    carried_poll_inline_task = Const(
        True,
        'A carried poll may say `"deliver": "inline"`. If it leased, the member of the answer holds the task itself, as'
        " the poll under the same id would return it, with `poll_status` and `server_time`. A task over"
        " `limits.inline_task_bytes` of discovery, or one that could not be read, is left to the poll: the member then"
        " says `leased` alone.",
        optional=True,
    )


class WorkerEnvelope(Body):
    """What every answer of the worker plane holds besides its own keys."""

    protocol_version = Const(str(SERVED), "The version this server speaks, whatever was asked for.")
    server_capabilities = ServerCapabilities()


# -- the control plane's envelope --------------------------------------------------------------------------------------


class LegacyFields(Body):
    """Names that are refused, and what they are called."""

    query = Const("query_name")
    signal = Const("signal_name")
    update = Const("update_name")  # type: ignore[assignment]
    wait_policy = Const("wait_for")


class BlockContract(Body):
    """What the block of this operation holds for certain."""

    schema = Const(f"{SCHEMA}.contract")
    version = Const(1)
    legacy_field_policy = Const("reject_non_canonical")
    legacy_fields = LegacyFields()
    required_fields = listed(Text(), "Keys of the block that are never empty.")
    success_fields = listed(Text(), "Keys that the block of a successful answer has, null allowed.")


class ControlPlaneBlock(Body):
    """The answer in one fixed place: the operation, its contract, and a copy of every known key that the body has."""

    schema = Const(SCHEMA)
    version = Const(1)
    operation = OneWord(
        ("start", "list", "describe", "describe_run", "list_runs", "history", "cancel", "terminate", "repair"),
        "What was asked for.",
    )
    operation_name = Nothing("The name of the signal, query or update; null for every other operation.")
    operation_name_field = Nothing("The key that holds that name.")
    workflow_id = Text("Of the body, else of the path.", null=True)
    contract = BlockContract()

    run_id = Text(null=True, optional=True)
    workflow_type = Name(optional=True)
    namespace = Text(optional=True)
    business_key = Name(null=True, optional=True)
    status = OneWord(RunStatus.values, optional=True)
    status_bucket = OneWord(("running", "completed", "failed"), optional=True)
    run_status = OneWord(RunStatus.values, optional=True)
    is_terminal = Flag(optional=True)
    task_queue = Name(optional=True)
    run_number = Whole(optional=True, minimum=1)
    run_count = Whole(optional=True, minimum=1)
    workflow_count = Whole(optional=True, minimum=0)
    is_current_run = Flag(optional=True)
    compatibility = Name(null=True, optional=True)
    started_at = Moment(optional=True)
    closed_at = Moment(null=True, optional=True)
    last_progress_at = Moment(optional=True)
    wait_kind = Text(null=True, optional=True)
    wait_reason = Text(null=True, optional=True)
    next_page_token = Text(null=True, optional=True)
    command_id = Id(null=True, optional=True)
    command_status = Text(optional=True)
    command_source = Text(optional=True)
    target_scope = OneWord(("instance", "run"), optional=True)
    outcome = Text(optional=True)
    reason = Text(null=True, optional=True)
    rejection_reason = Text(null=True, optional=True)
    validation_errors = by_name(listed(Text(), ""), "Of the body.", optional=True)
    blocked_reason = Text(null=True, optional=True)
    message = Text(optional=True)
    remediation = Text(optional=True)
    retryable = Flag(optional=True)


class ControlEnvelope(Body):
    """What every answer of a workflow operation holds besides its own keys, refusals included."""

    control_plane = ControlPlaneBlock()


class NoEnvelope(Body):
    """For routes without an envelope, in a document where others have one."""

    prefix = "Plain"


# -- refusals of the base view, in the order in which it checks --------------------------------------------------------


class Refused(Body):
    """A refusal of the transport: it has not looked at anything but the request."""

    message = Text("What is wrong, for people.")


class PayloadTooLarge(Refused):
    """The body is larger than `limits.max_body_bytes` of discovery, counted while it is read."""

    http_status = 413
    reason = Const("payload_too_large")
    limit = Whole("Bytes a body may have.", minimum=1)
    size = Whole("Bytes that were counted before reading stopped.", minimum=1)


class UnsupportedMediaType(Refused):
    """There is a body, and it is neither `application/json` nor `application/*+json`."""

    http_status = 415
    reason = Const("unsupported_media_type")
    accepted_content_types = listed(Text(), "What is accepted.")


class MalformedJson(Refused):
    """The body is not a JSON object in valid Unicode."""

    http_status = 400
    reason = Const("malformed_json")
    json_error = Text("What the parser said.")


class Unauthorized(Refused):
    """The bearer token is missing, unknown, expired or revoked."""

    http_status = 401
    reason = Const("unauthorized")


class Forbidden(Refused):
    """The token is good, but has none of the route's roles."""

    http_status = 403
    reason = Const("forbidden")
    role = Text("The token's roles, separated by commas.")
    allowed_roles = listed(OneWord(ROLES), "Roles that may use this route.", min_length=1)


class _VersionRefused(Refused):
    http_status = 400
    error = Text("The same text under the worker plane's usual name.")
    supported_version = Const(str(SERVED), "The newest version served; older minor versions are served too.")
    remediation = Text("What to do, for people.")


class MissingProtocolVersion(_VersionRefused):
    """The worker protocol's version header is missing or empty."""

    reason = Const("missing_protocol_version")
    requested_version = Nothing()


class UnsupportedProtocolVersion(_VersionRefused):
    """The version header is malformed, of another major version, or of a newer minor version than this server's."""

    reason = Const("unsupported_protocol_version")
    requested_version = Text("As it was sent.", maxLength=255)


class MissingControlPlaneVersion(Refused):
    """The control plane's version header is missing or empty."""

    http_status = 400
    reason = Const("missing_control_plane_version")
    supported_version = Const(CONTROL_VERSION)


class UnsupportedControlPlaneVersion(Refused):
    """The version header names another version."""

    http_status = 400
    reason = Const("unsupported_control_plane_version")
    supported_version = Const(CONTROL_VERSION)


class InvalidNamespace(Refused):
    """The `namespace` query parameter is not one plain name."""

    http_status = 400
    reason = Const("invalid_namespace")


class NamespaceNotFound(Refused):
    """There is no such namespace, or the token may not use it: the two are answered alike."""

    http_status = 404
    reason = Const("namespace_not_found")
    namespace = Text("The name that was asked for, in lower case.")
    remediation = Text("What to do, for people.")


class MethodNotAllowed(Refused):
    """The route takes other methods only."""

    http_status = 405
    reason = Const("method_not_allowed")


class UnknownRoute(Refused):
    """There is no such route."""

    http_status = 404
    reason = Const("not_found")


class ValidationFailed(Body):
    """Fields are missing or wrong. Nothing was changed."""

    message = Text("What is wrong, for people.")
    reason = Const(Reason.VALIDATION_FAILED)
    errors = by_name(  # type: ignore[assignment]
        listed(Text(), "Sentences for people."),
        "What is wrong with each field, by dotted path (`commands.0.type`).",
    )
    validation_errors = by_name(listed(Text(), "Sentences for people."), "The same.")


class ServerError(Refused):
    """A fault nobody foresaw. Nothing was changed, and the same request may be sent again."""

    http_status = 500
    reason = Const("server_error")
    retryable = Const(True)


# -- 503: the database is busy or gone ---------------------------------------------------------------------------------


class Unavailable(Body):
    """What every 503 says."""

    http_status = 503
    message = Text("What happened, for people.")
    retryable = Const(True)
    retry_after_seconds = Whole("Seconds to wait; also in the `Retry-After` header.", minimum=1, maximum=60)


class BackendLockPressure(Unavailable):
    """The database is busy. Nothing was changed."""

    reason = Const("backend_lock_pressure")


class BackendUnavailable(Unavailable):
    """The database cannot be reached. Whether the request had an effect is unknown; it is safe to send it again."""

    reason = Const("backend_unavailable")


class BackendRefused(Unavailable):
    """Base of the shapes in which single routes answer both: what was asked, and that its outcome is unknown."""

    reason = OneWord(("backend_lock_pressure", "backend_unavailable"), "The database is busy, or cannot be reached.")
    outcome = Const("unknown")


# -- refusals by the engine --------------------------------------------------------------------------------------------


class WorkerRefusal(Body):
    """A refusal by the engine on the worker plane. It has changed nothing."""

    error = Text("What is wrong, for people.")


class ControlRefusal(Body):
    """The same on the control plane."""

    message = Text("What is wrong, for people.")


# -- facts that bodies of both planes show -----------------------------------------------------------------------------


def run_status(says: str = "The run's status.") -> OneWord:
    return OneWord(RunStatus.values, says)


def closed_reason(says: str = "Why the run closed.", *, null: bool = True) -> OneWord:
    return OneWord(ClosedReason.values, f"{says} Null while it is open." if null else says, null=null)
