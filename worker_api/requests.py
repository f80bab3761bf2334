"""Request bodies of the worker plane: every field with its rule (docs/protocol/worker-protocol.md 3, 5, 7 and 8)."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from wire.validation import EnvelopeField, FlagField, IdField, ObjectField, TextField, WholeField

RUNTIMES = ("php", "python", "rust", "typescript", "go", "java", "external")
MOST_TYPES = 1000
TASK_SLOTS = ("workflow_available", "activity_available", "session_available")


class ManifestField(ObjectField):
    """`{capability: {supported, minimum_protocol_version, …}}`; entries of unknown capabilities are kept."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        value = super().to_internal_value(data)
        for name, entry in value.items():
            if not isinstance(entry, dict) or not isinstance(entry.get("supported"), bool):
                raise serializers.ValidationError(f"{name} must be an object with a boolean `supported`.")
        return value


class SlotsField(ObjectField):
    """Free slots by kind; other keys are dropped."""

    def to_internal_value(self, data: Any) -> dict[str, int]:
        value = super().to_internal_value(data)
        slots = {name: value[name] for name in TASK_SLOTS if name in value}
        if not all(isinstance(number, int) and not isinstance(number, bool) for number in slots.values()):
            raise serializers.ValidationError("Slots must be whole numbers.")
        return slots


class FingerprintsField(ObjectField):
    """`{workflow type: fingerprint}`."""

    def to_internal_value(self, data: Any) -> dict[str, str]:
        value = super().to_internal_value(data)
        if not all(isinstance(text, str) and len(text) <= 255 for text in value.values()):
            raise serializers.ValidationError("Fingerprints must be strings of at most 255 characters.")
        return value


def _types() -> serializers.ListField:
    return serializers.ListField(child=IdField(), required=False, allow_null=True, max_length=MOST_TYPES)


class RegisterRequest(serializers.Serializer[Any]):
    worker_id = IdField(required=False, allow_null=True)
    task_queue = IdField()
    runtime = serializers.ChoiceField(choices=RUNTIMES)
    sdk_version = TextField(max_length=64, required=False, allow_null=True, allow_blank=True)
    build_id = IdField(required=False, allow_null=True, allow_blank=True)
    supported_workflow_types = _types()
    supported_activity_types = _types()
    workflow_definition_fingerprints = FingerprintsField(required=False, allow_null=True)
    workflow_command_contracts = ObjectField(required=False, allow_null=True)
    capabilities = serializers.ListField(child=IdField(), required=False, allow_null=True, max_length=MOST_TYPES)
    capability_manifest = ManifestField(required=False, allow_null=True)
    max_concurrent_workflow_tasks = WholeField(min_value=1, max_value=1_000_000, required=False, allow_null=True)
    max_concurrent_activity_tasks = WholeField(min_value=1, max_value=1_000_000, required=False, allow_null=True)
    max_concurrent_worker_sessions = WholeField(min_value=1, max_value=1_000_000, required=False, allow_null=True)
    task_slots = SlotsField(required=False, allow_null=True)
    process_metrics = ObjectField(required=False, allow_null=True)
    heartbeat_interval_seconds = WholeField(min_value=1, max_value=86_400, required=False, allow_null=True)

    def validate_capabilities(self, value: list[str] | None) -> list[str] | None:
        if value and len(set(value)) != len(value):
            raise serializers.ValidationError("Capabilities must be unique.")
        return value


class WorkerHeartbeatRequest(serializers.Serializer[Any]):
    worker_id = IdField()
    task_slots = SlotsField(required=False, allow_null=True)
    process_metrics = ObjectField(required=False, allow_null=True)
    heartbeat_interval_seconds = WholeField(min_value=1, max_value=86_400, required=False, allow_null=True)


class DeregisterRequest(serializers.Serializer[Any]):
    registration_token = serializers.RegexField(r"^[0-9a-f]{32}\Z")


class ActivityPollRequest(serializers.Serializer[Any]):
    """Fields that every poll has. An empty text counts as absent where the field may be absent."""

    worker_id = IdField()
    task_queue = IdField()
    build_id = IdField(required=False, allow_null=True, allow_blank=True)
    poll_request_id = IdField(required=False, allow_null=True, allow_blank=True)
    timeout_seconds = WholeField(min_value=0, max_value=60, required=False, allow_null=True)


class WorkflowPollRequest(ActivityPollRequest):
    history_page_size = WholeField(min_value=1, max_value=1000, required=False, allow_null=True)
    accept_history_encoding = TextField(max_length=64, required=False, allow_null=True, allow_blank=True)
    task_kinds = serializers.ListField(
        child=serializers.ChoiceField(choices=("workflow", "update_validation")),
        required=False,
        allow_null=True,
        min_length=1,
        max_length=2,
    )

    def validate_task_kinds(self, value: list[str] | None) -> list[str] | None:
        if value and len(set(value)) != len(value):
            raise serializers.ValidationError("Task kinds must be unique.")
        return value


class WorkflowTaskFence(serializers.Serializer[Any]):
    lease_owner = IdField()
    workflow_task_attempt = WholeField(min_value=1, max_value=2_147_483_647)


class WorkflowTaskHistoryRequest(WorkflowTaskFence):
    next_history_page_token = TextField(max_length=255)
    history_page_size = WholeField(min_value=1, max_value=1000, required=False, allow_null=True)
    accept_history_encoding = TextField(max_length=64, required=False, allow_null=True, allow_blank=True)


class WorkflowTaskCompleteRequest(WorkflowTaskFence):
    """`commands` are validated by the engine, each under its own path; here they only have to be there."""

    commands = serializers.ListField(child=ObjectField(), required=False)

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        fence = {name: data[name] for name in ("lease_owner", "workflow_task_attempt") if name in data}
        return dict(super().to_internal_value(fence))


class WorkflowTaskFailureField(serializers.Serializer[Any]):
    message = TextField(allow_controls=True, trim_whitespace=False)
    type = TextField(required=False, allow_null=True, allow_blank=True, allow_controls=True)
    reason = TextField(required=False, allow_null=True, allow_blank=True, allow_controls=True)
    stack_trace = TextField(
        required=False, allow_null=True, allow_blank=True, allow_controls=True, trim_whitespace=False
    )
    sequence = WholeField(min_value=1, required=False, allow_null=True)


class WorkflowTaskFailRequest(WorkflowTaskFence):
    failure = WorkflowTaskFailureField()


class ActivityTaskFence(serializers.Serializer[Any]):
    activity_attempt_id = IdField()
    lease_owner = IdField()


class ActivityTaskCompleteRequest(ActivityTaskFence):
    result = EnvelopeField(required=False, allow_null=True)


class ActivityFailureField(serializers.Serializer[Any]):
    message = TextField(allow_blank=True, allow_controls=True, trim_whitespace=False)
    type = TextField(required=False, allow_null=True, allow_blank=True, allow_controls=True)
    # `class` is a keyword; the field is declared under its own name below.
    code = serializers.IntegerField(required=False, allow_null=True)
    stack_trace = TextField(
        required=False, allow_null=True, allow_blank=True, allow_controls=True, trim_whitespace=False
    )
    non_retryable = FlagField(required=False, allow_null=True)
    details = serializers.JSONField(required=False, allow_null=True)
    kind = TextField(required=False, allow_null=True, allow_blank=True)
    timeout_type = TextField(required=False, allow_null=True, allow_blank=True)
    cancelled = FlagField(required=False, allow_null=True)
    diagnostics = serializers.JSONField(required=False, allow_null=True)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        fields = super().get_fields()
        fields["class"] = TextField(required=False, allow_null=True, allow_blank=True, allow_controls=True)
        return fields


class ActivityTaskFailRequest(ActivityTaskFence):
    failure = ActivityFailureField()


class ActivityHeartbeatRequest(ActivityTaskFence):
    details = serializers.JSONField(required=False, allow_null=True)
    message = TextField(max_length=280, required=False, allow_null=True, allow_blank=True, allow_controls=True)
    current = serializers.FloatField(required=False, allow_null=True)
    total = serializers.FloatField(required=False, allow_null=True)
    unit = TextField(max_length=64, required=False, allow_null=True, allow_blank=True)

    def validate_details(self, value: Any) -> Any:
        if value is not None and not isinstance(value, (dict, list)):
            raise serializers.ValidationError("This must be an object or a list.")
        return value
