"""Request bodies of the worker plane: every field with its rule (docs/protocol/worker-protocol.md 3, 5, 7 and 8)."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from durable.commands.batch import MOST_OF_A_CHECKPOINT
from durable.commands.registry import checkpoint_types
from wire.answer_fields import BestEffort, OneOf
from wire.validation import (
    AnyField,
    Described,
    EnvelopeField,
    FlagField,
    IdField,
    ObjectField,
    PatternField,
    TextField,
    WholeField,
)
from worker_api.command_bodies import COMMANDS

RUNTIMES = ("php", "python", "rust", "typescript", "go", "java", "external")
MOST_TYPES = 1000
MOST_PROGRESS_DETAILS = 20
TASK_SLOTS = {
    "workflow_available": "workflow tasks",
    "activity_available": "activity tasks",
    "session_available": "worker sessions",
}


class ManifestField(ObjectField):
    """`{capability: {supported, minimum_protocol_version, …}}`; entries of unknown capabilities are kept."""

    def json_schema(self) -> dict[str, Any]:
        entry = {
            "type": "object",
            "properties": {
                "supported": {"type": "boolean", "description": "Whether the worker can do it."},
                "minimum_protocol_version": {
                    "type": ["string", "number", "null"],
                    "description": "The version that has it, as `1.N`.",
                },
            },
            "required": ["supported"],
            "additionalProperties": True,
            "description": "What the worker says of one capability; further keys are its own.",
        }
        return {"type": "object", "additionalProperties": entry}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        value = super().to_internal_value(data)
        for name, entry in value.items():
            if not isinstance(entry, dict) or not isinstance(entry.get("supported"), bool):
                raise serializers.ValidationError(f"{name} must be an object with a boolean `supported`.")
        return value


class SlotsField(ObjectField):
    """Free slots by kind; other keys are dropped."""

    def json_schema(self) -> dict[str, Any]:
        slots = {name: {"type": "integer", "description": f"Free slots: {says}."} for name, says in TASK_SLOTS.items()}
        return {"type": "object", "properties": slots}

    def rules(self) -> str:
        return "Numbers are cut to between 0 and what the worker has; other keys are ignored."

    def to_internal_value(self, data: Any) -> dict[str, int]:
        value = super().to_internal_value(data)
        slots = {name: value[name] for name in TASK_SLOTS if name in value}
        if not all(isinstance(number, int) and not isinstance(number, bool) for number in slots.values()):
            raise serializers.ValidationError("Slots must be whole numbers.")
        return slots


class FingerprintsField(ObjectField):
    """`{workflow type: fingerprint}`."""

    def json_schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": {"type": "string", "maxLength": 255}}

    def to_internal_value(self, data: Any) -> dict[str, str]:
        value = super().to_internal_value(data)
        if not all(isinstance(text, str) and len(text) <= 255 for text in value.values()):
            raise serializers.ValidationError("Fingerprints must be strings of at most 255 characters.")
        return value


class ProgressField(Described, serializers.JSONField):
    """An object or a list; anything else is refused by the serializer."""

    def json_schema(self) -> dict[str, Any]:
        return {"type": ["object", "array"], "additionalProperties": True}


def _names(says: str) -> serializers.ListField:
    return serializers.ListField(
        child=IdField(), required=False, allow_null=True, max_length=MOST_TYPES, help_text=says
    )


def _concurrency(what: str) -> WholeField:
    return WholeField(
        min_value=1,
        max_value=1_000_000,
        required=False,
        allow_null=True,
        help_text=f"{what} the worker carries out at once.",
    )


def _slots() -> SlotsField:
    return SlotsField(required=False, allow_null=True, help_text="What the worker could take now.")


def _process_metrics() -> ObjectField:
    return ObjectField(
        required=False,
        allow_null=True,
        help_text="The worker process's own figures, stored as given: `cpu_percent`, `memory_bytes`, `host` and so on.",
    )


def _heartbeat_interval() -> WholeField:
    return WholeField(
        min_value=1,
        max_value=86_400,
        required=False,
        allow_null=True,
        help_text="How often the worker means to send its heartbeat; a hint.",
    )


class RegisterRequest(serializers.Serializer[Any]):
    """A worker, and what it can do."""

    worker_id = IdField(required=False, allow_null=True, help_text="Without one the server makes one.")
    task_queue = IdField(help_text="The queue the worker polls.")
    runtime = serializers.ChoiceField(choices=RUNTIMES, help_text="The language the worker is written in.")
    sdk_version = TextField(
        max_length=64, required=False, allow_null=True, allow_blank=True, help_text="Name and version of its SDK."
    )
    build_id = IdField(
        required=False,
        allow_null=True,
        allow_blank=True,
        help_text="Its code's version. A run that is pinned to a build goes to workers of that build only.",
    )
    supported_workflow_types = _names("Workflow types it runs; none means any.")
    supported_activity_types = _names("Activity types it carries out; none means any.")
    workflow_definition_fingerprints = FingerprintsField(
        required=False, allow_null=True, help_text="By workflow type: a text that changes with its code."
    )
    workflow_command_contracts = ObjectField(
        required=False,
        allow_null=True,
        help_text="By workflow type: the contract of its signals, queries and updates, copied to runs that start.",
    )
    capabilities = _names("What the worker can do, each named once; unknown names are stored.")
    capability_manifest = ManifestField(
        required=False,
        allow_null=True,
        help_text="Needed from protocol 1.18 on. By capability; `local_activities`, `worker_sessions` and"
        " `sticky_execution` must agree with the list.",
    )
    max_concurrent_workflow_tasks = _concurrency("Workflow tasks")
    max_concurrent_activity_tasks = _concurrency("Activity tasks")
    max_concurrent_worker_sessions = _concurrency("Worker sessions")
    task_slots = _slots()
    process_metrics = _process_metrics()
    heartbeat_interval_seconds = _heartbeat_interval()

    def validate_capabilities(self, value: list[str] | None) -> list[str] | None:
        if value and len(set(value)) != len(value):
            raise serializers.ValidationError("Capabilities must be unique.")
        return value


class WorkerHeartbeatRequest(serializers.Serializer[Any]):
    """A worker, and how it stands."""

    worker_id = IdField(help_text="As registered.")
    task_slots = _slots()
    process_metrics = _process_metrics()
    heartbeat_interval_seconds = _heartbeat_interval()


class DeregisterRequest(serializers.Serializer[Any]):
    """Which incarnation of the worker."""

    registration_token = PatternField(r"^[0-9a-f]{32}\Z", help_text="As the registration returned it.")


class ActivityPollRequest(serializers.Serializer[Any]):
    """Fields that every poll has. An empty text counts as absent where the field may be absent."""

    worker_id = IdField(help_text="As registered.")
    task_queue = IdField(help_text="As registered.")
    build_id = IdField(required=False, allow_null=True, allow_blank=True, help_text="As registered, if it is sent.")
    poll_request_id = IdField(
        required=False,
        allow_null=True,
        allow_blank=True,
        help_text="Makes the poll safe to send again; without one every poll is a new claim.",
    )
    timeout_seconds = WholeField(
        min_value=0,
        max_value=60,
        required=False,
        allow_null=True,
        help_text="The window: how long to wait for a task. 0 looks once. Cut to the server's maximum.",
    )


def _page_size() -> WholeField:
    return WholeField(
        min_value=1,
        max_value=1000,
        required=False,
        allow_null=True,
        help_text="Events on a page at most. Cut to the server's maximum.",
    )


def _history_encoding() -> TextField:
    return TextField(
        max_length=64,
        required=False,
        allow_null=True,
        allow_blank=True,
        help_text="`gzip` or `deflate`, in any case, for compressed pages; anything else means none.",
    )


class WorkflowPollRequest(ActivityPollRequest):
    """A poll for workflow tasks, and how their history is to be sent."""

    history_page_size = _page_size()
    accept_history_encoding = _history_encoding()
    task_kinds = serializers.ListField(
        child=serializers.ChoiceField(choices=("workflow", "update_validation")),
        required=False,
        allow_null=True,
        min_length=1,
        max_length=2,
        help_text="Kinds of task the worker takes, each once, in any order; `workflow` alone unless it says otherwise.",
    )

    def validate_task_kinds(self, value: list[str] | None) -> list[str] | None:
        if value and len(set(value)) != len(value):
            raise serializers.ValidationError("Task kinds must be unique.")
        return value


def _deliver() -> serializers.ChoiceField:
    return serializers.ChoiceField(
        choices=("inline",),
        required=False,
        allow_null=True,
        help_text="With the capability `carried_poll_inline_task`: `inline` asks for the task in the answer.",
    )


def _carried_id() -> IdField:
    return IdField(
        required=False,
        allow_null=True,
        allow_blank=True,
        help_text="Needed: the lease is fetched with the ordinary poll under the same id. Without one nothing is"
        " leased.",
    )


CARRIED_POLL = (
    "A poll to claim for in the completion's own transaction. One that is not valid is ignored and left to the"
    " worker's own poll; it is no error and plays no part in the completion."
)


class CarriedActivityPoll(ActivityPollRequest):
    """The worker's next activity poll. `worker_id` must be the lease owner of the task that is completed."""

    poll_request_id = _carried_id()
    deliver = _deliver()


class CarriedWorkflowPoll(WorkflowPollRequest):
    """The worker's next workflow poll. `worker_id` must be the lease owner of the task that is completed."""

    poll_request_id = _carried_id()
    deliver = _deliver()


class WorkflowTaskFence(serializers.Serializer[Any]):
    """Which claim of the task this is about."""

    lease_owner = IdField(help_text="The worker that holds the lease, as its poll returned it.")
    workflow_task_attempt = WholeField(
        min_value=1, max_value=2_147_483_647, help_text="The claim's attempt, as its poll returned it."
    )


class WorkflowTaskHistoryRequest(WorkflowTaskFence):
    """A claim, and which page of its history."""

    next_history_page_token = TextField(max_length=255, help_text="As the page before returned it.")
    history_page_size = _page_size()
    accept_history_encoding = _history_encoding()


class WorkflowTaskCompleteRequest(WorkflowTaskFence):
    """A claim, its commands and the polls it may carry. The engine validates the commands, each under its own path,
    after the claim was checked; the polls are looked at by themselves."""

    commands = serializers.ListField(
        child=OneOf(*COMMANDS.values()),
        min_length=1,
        help_text="In the order in which the code gave them. One that ends the run may stand last.",
    )
    activity_poll = BestEffort(CarriedActivityPoll, CARRIED_POLL)
    workflow_poll = BestEffort(CarriedWorkflowPoll, CARRIED_POLL)


class WorkflowTaskCheckpointFence(WorkflowTaskFence):
    """Which claim of the task this is about, and which of its checkpoints."""

    checkpoint_id = IdField(
        help_text="The worker's name for the checkpoint, another one for each of a claim: makes it safe to send again."
    )
    start_sequence = WholeField(
        min_value=1,
        max_value=2_147_483_647,
        help_text="The number of the run's next step, which the first command takes.",
    )


class WorkflowTaskCheckpointRequest(WorkflowTaskCheckpointFence):
    """A claim and the first of its commands. The engine validates those, each under its own path."""

    commands = serializers.ListField(
        child=OneOf(*(COMMANDS[name] for name in checkpoint_types())),
        min_length=1,
        max_length=MOST_OF_A_CHECKPOINT,
        help_text="In the order in which the code gave them. None may end the run.",
    )


def _words(says: str, *, trim_whitespace: bool = True) -> TextField:
    return TextField(
        required=False,
        allow_null=True,
        allow_blank=True,
        allow_controls=True,
        trim_whitespace=trim_whitespace,
        help_text=says,
    )


class WorkflowTaskFailureField(serializers.Serializer[Any]):
    """What went wrong, or that nothing did and the code waits."""

    message = TextField(allow_controls=True, trim_whitespace=False, help_text="For people.")
    type = _words("The error's type.")
    reason = _words("A replay reason blocks the run: trying again would fail the same way.")
    stack_trace = _words("For people.", trim_whitespace=False)
    sequence = WholeField(min_value=1, required=False, allow_null=True, help_text="The step that failed.")

    def validate_message(self, value: str) -> str:
        if not value.strip():
            raise serializers.ValidationError("This may not be blank.")
        return value


class WorkflowTaskFailRequest(WorkflowTaskFence):
    """A claim and why it ends without commands."""

    failure = WorkflowTaskFailureField()


class ActivityTaskFence(serializers.Serializer[Any]):
    """Which attempt this is about."""

    activity_attempt_id = IdField(help_text="The attempt, as its poll returned it.")
    lease_owner = IdField(help_text="The worker that holds the lease, as its poll returned it.")


class ActivityTaskResult(ActivityTaskFence):
    """An attempt and its result."""

    result = EnvelopeField(required=False, allow_null=True, help_text="Null or left out: there is none.")


class ActivityTaskCompleteRequest(ActivityTaskResult):
    """An attempt, its result, and the poll it may carry. The poll is looked at by itself: see `CarriedWorkflowPoll`."""

    workflow_poll = BestEffort(CarriedWorkflowPoll, CARRIED_POLL)


class ActivityFailureField(serializers.Serializer[Any]):
    """What went wrong with the attempt."""

    message = TextField(allow_blank=True, allow_controls=True, trim_whitespace=False, help_text="For people.")
    type = _words("The error's type; the retry policy may name it.")
    # `class` is a keyword; the field is declared under its own name below.
    code = serializers.IntegerField(required=False, allow_null=True, help_text="The error's own number.")
    stack_trace = _words("For people.", trim_whitespace=False)
    non_retryable = FlagField(
        required=False, allow_null=True, help_text="No further attempt, whatever the policy says."
    )
    details = AnyField(
        required=False, allow_null=True, help_text="The error's own data: a payload envelope or any JSON."
    )
    kind = TextField(required=False, allow_null=True, allow_blank=True, help_text="What sort of failure it was.")
    timeout_type = TextField(required=False, allow_null=True, allow_blank=True, help_text="Which time-out it was.")
    cancelled = FlagField(required=False, allow_null=True, help_text="The attempt ended because it was cancelled.")
    diagnostics = AnyField(required=False, allow_null=True, help_text="What helps to find the cause: any JSON.")

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        fields = super().get_fields()
        fields["class"] = _words("The error's class; the retry policy may name it.")
        return fields


class ActivityTaskFailRequest(ActivityTaskFence):
    """An attempt and its failure."""

    failure = ActivityFailureField()


class ActivityHeartbeatRequest(ActivityTaskFence):
    """An attempt and how far it is."""

    details = ProgressField(required=False, allow_null=True, help_text="The attempt's own notes on its progress.")
    message = TextField(
        max_length=280,
        required=False,
        allow_null=True,
        allow_blank=True,
        allow_controls=True,
        help_text="For people.",
    )
    current = serializers.FloatField(required=False, allow_null=True, help_text="How far it is.")
    total = serializers.FloatField(required=False, allow_null=True, help_text="How far it will go.")
    unit = TextField(max_length=64, required=False, allow_null=True, allow_blank=True, help_text="Of both numbers.")

    def validate_details(self, value: Any) -> Any:
        if value is not None and not isinstance(value, (dict, list)):
            raise serializers.ValidationError("This must be an object or a list.")
        if value is not None and len(value) > MOST_PROGRESS_DETAILS:
            raise serializers.ValidationError(f"At most {MOST_PROGRESS_DETAILS} entries are allowed.")
        return value
