"""Request bodies and queries of the control plane (docs/protocol/control-plane.md 7)."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from durable import avro, conf
from durable.commands.fields import envelope_fault
from durable.jsontext import dump_json
from wire.validation import AnyField, EnvelopeField, IdField, ObjectField, PatternField, TextField, WholeField

MOST_SECONDS = 315_360_000
# Belong to other servers' start requests; taken silently they would mislead.
UNSUPPORTED_START_FIELDS = (
    "workflow_execution_timeout", "workflow_run_timeout", "workflow_task_timeout", "retry_policy", "idempotency_key",
    "request_id",
)  # fmt: skip


class InputField(EnvelopeField):
    """Arguments: an envelope, or a JSON list of positional arguments that is encoded here."""

    component = None

    def json_schema(self) -> dict[str, Any]:
        return {"anyOf": [super().json_schema(), {"type": "array", "items": {}, "description": "JSON arguments."}]}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if isinstance(data, list):
            try:
                return avro.envelope(data)
            except (ValueError, TypeError) as error:
                raise serializers.ValidationError(f"This cannot be encoded: {error}.") from error
        if fault := envelope_fault(data):
            raise serializers.ValidationError(f"{fault} A list of arguments is taken as well.")
        return dict(data)

    def to_representation(self, value: Any) -> Any:
        return value


class SearchAttributesField(ObjectField):
    """`{name: scalar or list of strings}`."""

    def json_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "maxProperties": 100,
            "propertyNames": {"pattern": "^[A-Za-z][A-Za-z0-9_]{0,127}$"},
            "additionalProperties": {
                "anyOf": [
                    {"type": ["string", "number", "boolean", "null"]},
                    {"type": "array", "items": {"type": "string"}},
                ]
            },
        }

    def rules(self) -> str:
        return "Each value has at most 2048 bytes as JSON."

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        value = super().to_internal_value(data)
        if len(value) > 100:
            raise serializers.ValidationError("At most 100 search attributes are allowed.")
        for name, content in value.items():
            if not name.isascii() or not name.replace("_", "a").isalnum() or not name[0].isalpha() or len(name) > 128:
                raise serializers.ValidationError(f"{name[:128]!r} is not a search attribute name.")
            if not _is_scalar_or_texts(content) or len(dump_json(content).encode()) > 2048 + 2:
                raise serializers.ValidationError(f"{name} must be a scalar or a list of strings, at most 2048 bytes.")
        return value


def _is_scalar_or_texts(content: Any) -> bool:
    if isinstance(content, list):
        return all(isinstance(element, str) for element in content)
    return content is None or isinstance(content, (str, int, float, bool))


class MemoField(ObjectField):
    """Any JSON object within the memo limit."""

    def rules(self) -> str:
        return "At most `limits.max_memo_bytes` of discovery, as JSON."

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        value = super().to_internal_value(data)
        size, most = len(dump_json(value).encode()), conf.current().max_memo_bytes
        if size > most:
            raise serializers.ValidationError(f"The memo has {size} bytes; at most {most} are allowed.")
        return value


class StartRequestBody(serializers.Serializer[Any]):
    """A workflow to start.

    Refused by name: `workflow_execution_timeout`, `workflow_run_timeout`, `workflow_task_timeout`, `retry_policy`,
    `idempotency_key`, `request_id`.
    """

    workflow_type = IdField(help_text="Which workflow code to run.")
    workflow_id = PatternField(
        r"^[A-Za-z0-9._:-]{1,128}\Z",
        required=False,
        allow_null=True,
        help_text="The caller's own id, taken for good once it was used; without one the server makes one.",
    )
    task_queue = IdField(required=False, allow_null=True, help_text="`default` unless it is said.")
    input = InputField(  # type: ignore[assignment]
        required=False,
        allow_null=True,
        help_text="A payload, or a list of arguments to encode. At most `limits.payload_size_bytes` encoded.",
    )
    execution_timeout_seconds = WholeField(
        min_value=1, max_value=MOST_SECONDS, required=False, allow_null=True, help_text="For all runs of the workflow."
    )
    run_timeout_seconds = WholeField(
        min_value=1,
        max_value=MOST_SECONDS,
        required=False,
        allow_null=True,
        help_text="For one run; not longer than `execution_timeout_seconds`.",
    )
    duplicate_policy = serializers.ChoiceField(
        choices=("fail", "use-existing"),
        required=False,
        allow_null=True,
        help_text="What happens if the id is taken: `fail`, unless it is said, or answer with the run that is open.",
    )
    business_key = IdField(required=False, allow_null=True, help_text="The caller's own key; need not be unique.")
    memo = MemoField(required=False, allow_null=True, help_text="Anything the caller wants to find with the run.")
    search_attributes = SearchAttributesField(
        required=False, allow_null=True, help_text="By name: a scalar or a list of strings."
    )
    priority = WholeField(
        min_value=0,
        max_value=9,
        required=False,
        allow_null=True,
        help_text="Lower is taken first; 5 unless it is said.",
    )
    fairness_key = PatternField(
        r"^[A-Za-z0-9._:-]{1,64}\Z",
        required=False,
        allow_null=True,
        help_text="Stored, not yet interpreted.",
    )
    fairness_weight = WholeField(
        min_value=1, max_value=1000, required=False, allow_null=True, help_text="Stored, not yet interpreted."
    )
    build_id = IdField(
        required=False, allow_null=True, help_text="Pins the run to workers of this build; any build unless it is said."
    )
    compatibility = IdField(required=False, allow_null=True, help_text="The same, if `build_id` is not sent.")
    visibility_labels = ObjectField(required=False, allow_null=True, help_text="Stored, never interpreted.")
    observability_context = AnyField(
        required=False,
        allow_null=True,
        help_text="Trace context: an object that is stored and never interpreted; anything else is dropped.",
    )

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        sent = [name for name in UNSUPPORTED_START_FIELDS if name in data]
        if sent:
            raise serializers.ValidationError({name: ["This field is not supported."] for name in sent})
        return dict(super().to_internal_value(data))

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        run, execution = attrs.get("run_timeout_seconds"), attrs.get("execution_timeout_seconds")
        if run and execution and run > execution:
            raise serializers.ValidationError(
                {"run_timeout_seconds": [f"{run} s is longer than execution_timeout_seconds ({execution} s)."]}
            )
        return attrs


def _request_id() -> IdField:
    return IdField(required=False, allow_null=True, help_text="The caller's own id of this command, kept with it.")


class StopRequestBody(serializers.Serializer[Any]):
    """Why the run is closed."""

    reason = TextField(
        max_length=1000,
        required=False,
        allow_null=True,
        allow_blank=True,
        allow_controls=True,
        help_text="Goes into the history.",
    )
    request_id = _request_id()


class RepairRequestBody(serializers.Serializer[Any]):
    """A repair needs nothing."""

    request_id = _request_id()


class ListQuery(serializers.Serializer[Any]):
    workflow_type = TextField(max_length=255, required=False, allow_blank=True, help_text="Only runs of this type.")
    status = TextField(
        max_length=32,
        required=False,
        allow_blank=True,
        help_text="Only runs of this bucket: `running`, `completed` or `failed`.",
    )
    query = TextField(
        max_length=2048,
        required=False,
        allow_blank=True,
        help_text="Only runs whose workflow id begins with this.",
    )
    page_size = WholeField(
        min_value=1, max_value=200, required=False, help_text="Runs on a page; 50 unless it is said."
    )
    next_page_token = TextField(
        max_length=8192, required=False, allow_blank=True, help_text="As the page before returned it."
    )


class HistoryQuery(serializers.Serializer[Any]):
    page_size = WholeField(
        min_value=1, max_value=1000, required=False, help_text="Events on a page; 100 unless it is said."
    )
    next_page_token = TextField(
        max_length=255, required=False, allow_blank=True, help_text="As the page before returned it."
    )
