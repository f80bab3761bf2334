"""Answers about registration, heartbeat and deregistration (docs/protocol/worker-protocol.md 3)."""

from __future__ import annotations

from durable.refusals import Kind, Reason
from wire.answer_fields import Answers, AsSent, Body, Const, Name, Nothing, OneWord, Text, Whole, listed
from wire.answers import BackendRefused, WorkerRefusal
from worker_api.requests import RUNTIMES, ManifestField


class WorkerRegistered(Body):
    """The worker is registered as a new incarnation of its id; existing leases were not touched."""

    http_status = 201
    worker_id = Name("As sent, or a new one.")
    registered = Const(True)
    registration_token = Text("Names this incarnation when it deregisters.", pattern="^[0-9a-f]{32}$")
    namespace = Name()
    task_queue = Name()
    runtime = OneWord(RUNTIMES)
    build_id = Name(null=True)
    capabilities = listed(Text(), "As stored.")
    capability_manifest = ManifestField(help_text="As stored.")
    status = OneWord(("active", "draining"), "A draining worker is leased nothing more.")
    heartbeat_interval_seconds = Whole("How often to send a worker heartbeat.", minimum=1)
    stale_after_seconds = Whole("A worker that was not heard of for this long is stale.", minimum=1)


class WorkflowDefinitionChanged(WorkerRefusal):
    """An active registration of this worker id has another fingerprint for the workflow type."""

    reason = Const(Reason.WORKFLOW_DEFINITION_CHANGED)
    workflow_type = Text("The first type whose fingerprints differ.")
    remediation = Text("What to do, for people.")


class _CapabilityRefused(WorkerRefusal):
    registered = Const(False)
    capability = Text("The capability that does not fit.")
    requested_version = Text("The protocol version of this request.")
    minimum_protocol_version = Text("The version that has the capability.")


class MetadataCapabilityMismatch(_CapabilityRefused):
    """`memo_upserts` or `typed_search_attributes` is declared in a protocol version that does not have it."""

    reason = Const(Reason.WORKFLOW_METADATA_CAPABILITY_PROTOCOL_MISMATCH)


class CapabilityManifestMismatch(_CapabilityRefused):
    """The manifest says otherwise than `capabilities` about one of the capabilities that are declared in both."""

    reason = Const(Reason.WORKER_CAPABILITY_MANIFEST_MISMATCH)


class CapabilityFloorMismatch(_CapabilityRefused):
    """The manifest declares a capability that needs a newer protocol version than this request's."""

    reason = Const(Reason.WORKER_CAPABILITY_PROTOCOL_FLOOR_MISMATCH)


class PreparedLocalActivityMismatch(WorkerRefusal):
    """`prepared_local_activities` is declared without `cooperative_cancellation`, or below its protocol version."""

    reason = Const(Reason.PREPARED_LOCAL_ACTIVITY_CAPABILITY_MISMATCH)
    registered = Const(False)


class RegisterUnavailable(BackendRefused):
    """The registration may or may not have happened; sent again, it makes a new incarnation."""

    operation = Const("register_worker")
    worker_id = AsSent()
    task_queue = AsSent()


class WorkerHeartbeatRecorded(Body):
    """The worker is known to live. Its task leases are not renewed by this."""

    worker_id = Name()
    acknowledged = Const(True)
    heartbeat_recorded = Const(True)
    heartbeat_interval_seconds = Whole("How often to send a worker heartbeat.", minimum=1)
    stale_after_seconds = Whole("A worker that was not heard of for this long is stale.", minimum=1)
    status = OneWord(("active", "draining"), "A draining worker is leased nothing more.")


class WorkerNotRegistered(WorkerRefusal):
    """There is no registration of this worker id in the namespace."""

    reason = Const(Reason.WORKER_NOT_REGISTERED)
    worker_id = Name()


class HeartbeatNotRegistered(WorkerNotRegistered):
    """There is no registration of this worker id in the namespace: register again."""

    refusal_kind = Kind.NOT_FOUND


class WorkerHeartbeatUnavailable(BackendRefused):
    """The heartbeat may or may not have been recorded; the next one will do."""

    operation = Const("heartbeat_worker")
    worker_id = AsSent()
    task_queue = Nothing()


class WorkerDeregistered(Body):
    """The registration is gone, and its workflow task leases have ended; activity leases run out by themselves."""

    worker_id = Name()
    outcome = Const("deregistered")
    recovered_workflow_task_count = Whole("Workflow tasks that became available again.", minimum=0)


class IncarnationDeregistered(WorkerDeregistered):
    """This incarnation is deregistered. A repeat gets the same receipt for as long as it is kept."""

    registration_token = Text("As sent.")


class WorkerNotFound(WorkerRefusal):
    """There is no registration of this worker id in the namespace; it may have been removed before."""

    reason = Const(Reason.WORKER_NOT_FOUND)
    worker_id = Text()


class _IncarnationRefused(WorkerRefusal):
    worker_id = Text()
    registration_token = Text("As sent.")


class RegistrationTokenNotFound(_IncarnationRefused):
    """No incarnation of this worker id in this namespace has or had this token."""

    reason = Const(Reason.WORKER_REGISTRATION_TOKEN_NOT_FOUND)


class RegistrationLostAuthority(_IncarnationRefused):
    """A later registration of the same worker id has replaced this one, and is not touched."""

    reason = Const(Reason.WORKER_REGISTRATION_LOST_AUTHORITY)
    retryable = Const(False)


class RegistrationReceiptExpired(_IncarnationRefused):
    """This incarnation was deregistered so long ago that its receipt is not kept any more."""

    reason = Const(Reason.WORKER_REGISTRATION_RECEIPT_EXPIRED)


class DeregisterUnavailable(BackendRefused):
    """The deregistration may or may not have happened; sent again, it gets its receipt."""

    operation = Const("deregister_worker")
    worker_id = Text()
    registration_token = AsSent()


REGISTER: Answers = (
    WorkerRegistered,
    WorkflowDefinitionChanged,
    MetadataCapabilityMismatch,
    CapabilityManifestMismatch,
    CapabilityFloorMismatch,
    PreparedLocalActivityMismatch,
    RegisterUnavailable,
)
HEARTBEAT: Answers = (WorkerHeartbeatRecorded, HeartbeatNotRegistered, WorkerHeartbeatUnavailable)
DEREGISTER: Answers = (WorkerDeregistered, WorkerNotFound)
DEREGISTER_INCARNATION: Answers = (
    IncarnationDeregistered,
    RegistrationTokenNotFound,
    RegistrationLostAuthority,
    RegistrationReceiptExpired,
    DeregisterUnavailable,
)
