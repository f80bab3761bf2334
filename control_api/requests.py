"""Request bodies and queries of the control plane (docs/protocol/control-plane.md 7)."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from durable import avro, conf
from durable.commands.fields import envelope_fault
from durable.jsontext import dump_json
from wire.validation import IdField, ObjectField, TextField, WholeField

MOST_SECONDS = 315_360_000
# Belong to other servers' start requests; taken silently they would mislead.
UNSUPPORTED_START_FIELDS = (
    "workflow_execution_timeout", "workflow_run_timeout", "workflow_task_timeout", "retry_policy", "idempotency_key",
    "request_id",
)  # fmt: skip


class InputField(serializers.Field):  # type: ignore[type-arg]
    """Arguments: an envelope, or a JSON list of positional arguments that is encoded here."""

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

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        value = super().to_internal_value(data)
        size, most = len(dump_json(value).encode()), conf.current().max_memo_bytes
        if size > most:
            raise serializers.ValidationError(f"The memo has {size} bytes; at most {most} are allowed.")
        return value


class StartRequestBody(serializers.Serializer[Any]):
    workflow_type = IdField()
    workflow_id = serializers.RegexField(r"^[A-Za-z0-9._:-]{1,128}\Z", required=False, allow_null=True)
    task_queue = IdField(required=False, allow_null=True)
    input = InputField(required=False, allow_null=True)  # type: ignore[assignment]
    execution_timeout_seconds = WholeField(min_value=1, max_value=MOST_SECONDS, required=False, allow_null=True)
    run_timeout_seconds = WholeField(min_value=1, max_value=MOST_SECONDS, required=False, allow_null=True)
    duplicate_policy = serializers.ChoiceField(choices=("fail", "use-existing"), required=False, allow_null=True)
    business_key = IdField(required=False, allow_null=True)
    memo = MemoField(required=False, allow_null=True)
    search_attributes = SearchAttributesField(required=False, allow_null=True)
    priority = WholeField(min_value=0, max_value=9, required=False, allow_null=True)
    fairness_key = serializers.RegexField(r"^[A-Za-z0-9._:-]{1,64}\Z", required=False, allow_null=True)
    fairness_weight = WholeField(min_value=1, max_value=1000, required=False, allow_null=True)
    build_id = IdField(required=False, allow_null=True)
    compatibility = IdField(required=False, allow_null=True)
    visibility_labels = ObjectField(required=False, allow_null=True)

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


class StopRequestBody(serializers.Serializer[Any]):
    reason = TextField(max_length=1000, required=False, allow_null=True, allow_blank=True, allow_controls=True)
    request_id = IdField(required=False, allow_null=True)


class RepairRequestBody(serializers.Serializer[Any]):
    request_id = IdField(required=False, allow_null=True)


class ListQuery(serializers.Serializer[Any]):
    workflow_type = TextField(max_length=255, required=False, allow_blank=True)
    status = TextField(max_length=32, required=False, allow_blank=True)
    query = TextField(max_length=2048, required=False, allow_blank=True)
    page_size = WholeField(min_value=1, max_value=200, required=False)
    next_page_token = TextField(max_length=8192, required=False, allow_blank=True)


class HistoryQuery(serializers.Serializer[Any]):
    page_size = WholeField(min_value=1, max_value=1000, required=False)
    next_page_token = TextField(max_length=255, required=False, allow_blank=True)
