"""Answers of health, readiness, discovery and metrics (docs/protocol/control-plane.md 5)."""

from __future__ import annotations

from durable.protocol import SERVED
from durable.states import STATUS_BUCKETS
from wire.answer_fields import Answers, Body, Const, Flag, Moment, Number, OneWord, Text, Whole, listed
from wire.answers import ServerCapabilities
from wire.control_block import SCHEMA
from wire.versions import CONTROL_HEADER, CONTROL_VERSION, WORKER_HEADER


class DatabaseReached(Body):
    """The database answers."""

    database = Const("ok")


class DatabaseUnavailable(Body):
    """The database does not answer."""

    database = Const("unavailable")


class Serving(Body):
    """This process reaches its database."""

    status = Const("serving")
    timestamp = Moment()
    checks = DatabaseReached()


class Degraded(Body):
    """This process does not reach its database."""

    http_status = 503
    status = Const("degraded")
    timestamp = Moment()
    checks = DatabaseUnavailable()


class MigrationsPending(Body):
    """The database answers, but is older than this version."""

    database = Const("ok")
    migrations = Const("pending")


class ReadinessChecks(Body):
    """What readiness looks at."""

    database = Const("ok")
    migrations = Const("ok")
    oldest_expired_lease_seconds = Number("How far the oldest lease is past its end; 0 if none is.", minimum=0)
    sweep_last_success_age_seconds = Number("Since upkeep last looked for expired leases; null if never.", null=True)
    upkeep = OneWord(("ok", "late"), "`late`: a lease is more than 30 s past its end.")
    namespaces = OneWord(("ok", "none"))
    wakeups = OneWord(
        ("local", "ok", "degraded"),
        "How this process hears of work that others made ready. `degraded`: by looking, which takes longer.",
    )


class Ready(Body):
    """Send this process work."""

    status = Const("ready")
    timestamp = Moment()
    checks = ReadinessChecks()


class _NotReady(Body):
    http_status = 503
    status = Const("not_ready")
    timestamp = Moment()


class NotReady(_NotReady):
    """Upkeep is late, or there is no namespace."""

    checks = ReadinessChecks()


class NotMigrated(_NotReady):
    """The database lacks migrations of this version."""

    checks = MigrationsPending()


class NotConnected(_NotReady):
    """This process does not reach its database."""

    checks = DatabaseUnavailable()


HEALTH: Answers = (Serving, Degraded)
READY: Answers = (Ready, NotReady, NotMigrated, NotConnected)


# -- discovery ---------------------------------------------------------------------------------------------------------


class ContractName(Body):
    """The contract of the block."""

    schema = Const(f"{SCHEMA}.contract")
    version = Const(1)


class ResponseContract(Body):
    """The `control_plane` block of answers."""

    schema = Const(SCHEMA)
    version = Const(1)
    contract = ContractName()


class RejectedAliases(Body):
    """Spellings that are refused."""

    use_existing = Const("use-existing")


class DuplicatePolicyField(Body):
    """What `duplicate_policy` may say."""

    canonical_values = listed(OneWord(("fail", "use-existing")), "Values that are accepted.")
    rejected_aliases = RejectedAliases(help_text="Values that are refused, and what they are called.")


class StartFields(Body):
    """Fields of a start."""

    duplicate_policy = DuplicatePolicyField()


class StartContract(Body):
    """What a start may say."""

    fields = StartFields()  # type: ignore[assignment]
    unsupported_fields = listed(Text(), "Fields that are refused by name.")


class StatusField(Body):
    """What `status` may say."""

    canonical_values = listed(OneWord(STATUS_BUCKETS), "Values that are accepted.")


class ListFields(Body):
    """Fields of a list's query."""

    status = StatusField()


class ListContract(Body):
    """What a list may ask for."""

    fields = ListFields()  # type: ignore[assignment]


class RequestOperations(Body):
    """Operations whose requests have rules to publish."""

    start = StartContract()
    list = ListContract()


class RequestContract(Body):
    """What requests may say."""

    schema = Const("durable-workflow.v2.control-plane-request.contract")
    version = Const(1)
    operations = RequestOperations()


class ControlPlaneManifest(Body):
    """The control plane: its version and its contracts."""

    version = Const(CONTROL_VERSION)
    header = Const(CONTROL_HEADER)
    response_contract = ResponseContract()
    request_contract = RequestContract()


class WorkerProtocolManifest(Body):
    """The worker plane: its version and what it can do."""

    version = Const(str(SERVED))
    header = Const(WORKER_HEADER)
    server_capabilities = ServerCapabilities()


class AuthPrecedence(Body):
    """Where clients look for their settings."""

    connection_values = listed(Text(), "Where clients look for connection values, first match first.")
    profile_selection = listed(Text(), "Where clients look for the profile's name.")


class AuthEnvironment(Body):
    """Environment variables of clients."""

    server_url = Const("DURABLE_WORKFLOW_SERVER_URL")
    namespace = Const("DURABLE_WORKFLOW_NAMESPACE")
    auth_token = Const("DURABLE_WORKFLOW_AUTH_TOKEN")
    tls_verify = Const("DURABLE_WORKFLOW_TLS_VERIFY")
    profile = Const("DW_ENV")


class TokenMaterial(Body):
    """Bearer tokens."""

    status = Const("supported")
    effective_config_value = Const("redacted")


class ReservedMaterial(Body):
    """A way to authenticate that is not offered."""

    status = Const("reserved")


class AuthMaterial(Body):
    """Ways to authenticate."""

    token = TokenMaterial()
    mtls = ReservedMaterial()
    signed_headers = ReservedMaterial()


class EffectiveConfig(Body):
    """What clients show of their settings."""

    required_fields = listed(Text(), "What clients show of their configuration.")


class Redaction(Body):
    """What clients keep to themselves."""

    never_echo = listed(Text(), "What clients never show.")


class AuthContract(Body):
    """How clients put their credentials together; workers check it before they register."""

    schema = Const("durable-workflow.v2.auth-composition.contract")
    version = Const(1)
    precedence = AuthPrecedence()
    canonical_environment = AuthEnvironment()
    auth_material = AuthMaterial()
    effective_config = EffectiveConfig()
    redaction = Redaction()


class Capabilities(Body):
    """What the server can do, coarsely."""

    workflow_tasks = Flag()
    activity_tasks = Flag()
    activity_retry_policy = Flag()
    activity_timeouts = Flag()
    non_retryable_failures = Flag()
    payload_codecs = listed(Text(), "Codecs of payload envelopes.")
    response_compression = listed(Text(), "Content encodings of whole answers.")
    completion_receipts = Flag("An identical repeat of a recorded report is answered as a duplicate.")
    not_recorded_receipts = Flag("A late report is told for certain that it was not recorded.")


class Limits(Body):
    """Limits that requests are held against."""

    max_payload_bytes = Whole("What a client should send in one body.", minimum=1)
    max_body_bytes = Whole("More is not read.", minimum=1)
    payload_size_bytes = Whole("Of one encoded payload; 0: no limit.", minimum=0)
    max_memo_bytes = Whole("Of a memo as JSON.", minimum=1)
    max_search_attributes = Whole(minimum=1)
    max_search_attribute_key_length = Whole(minimum=1)
    max_search_attribute_value_bytes = Whole(minimum=1)
    max_pending_activities = Whole("Of one run; 0: no limit.", minimum=0)
    command_batch_size = Whole("Commands of one completion; 0: no limit.", minimum=0)
    history_page_size = Whole("Events on a page at most.", minimum=1)
    history_page_bytes = Whole("Where a page ends, with at least one event.", minimum=1)
    max_poll_seconds = Whole("The longest window of a poll.", minimum=0)
    inline_task_bytes = Whole("The largest task that a completion's answer holds, as JSON.", minimum=0)


class StructuralLimits(Body):
    """Limits that fail a run visibly when its code passes them; 0 switches one off."""

    pending_activity_count = Whole(minimum=0)
    pending_timer_count = Whole(minimum=0)
    command_batch_size = Whole(minimum=0)
    payload_size_bytes = Whole(minimum=0)
    history_transaction_size = Whole("Events of one completion.", minimum=0)


class ClientCompatibility(Body):
    """How clients find out whether they fit."""

    authority = Const("protocol_manifests", "The two manifests decide, not lists of client versions.")


class ClusterInfo(Body):
    """What this server is and can do. Clients may keep it for as long as they live."""

    server_id = Text()
    implementation = Const("durable-django")
    version = Text("Of the server.")
    default_namespace = Text("For requests that name none.")
    namespace = Text("The one this request named.")
    payload_codec = Const("avro")
    control_plane = ControlPlaneManifest()
    worker_protocol = WorkerProtocolManifest()
    auth_composition_contract = AuthContract()
    capabilities = Capabilities()
    limits = Limits()
    structural_limits = StructuralLimits()
    client_compatibility = ClientCompatibility()


class Metrics(Body):
    """This process's metrics in Prometheus' text format."""

    media_type = "text/plain"


CLUSTER_INFO: Answers = (ClusterInfo,)
METRICS: Answers = (Metrics,)
