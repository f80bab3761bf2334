"""Serializer fields that say what the protocol says, and errors under dotted paths (worker-protocol.md 1.8)."""

from __future__ import annotations

import re
from typing import Any

from django.core.validators import ProhibitNullCharactersValidator
from rest_framework import serializers

from durable.commands.fields import as_whole, envelope_fault
from durable.ids import has_control

_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


def flat_errors(errors: Any, path: str = "") -> dict[str, list[str]]:
    """DRF's nested errors as `{"a.0.b": [text, …]}`."""
    if isinstance(errors, dict):
        flat: dict[str, list[str]] = {}
        for key, inner in errors.items():
            name = path if key == "non_field_errors" and path else f"{path}.{key}" if path else str(key)
            flat.update(flat_errors(inner, name))
        return flat
    if isinstance(errors, list) and any(isinstance(element, dict) for element in errors):
        flat = {}
        for number, element in enumerate(errors):
            if element:
                flat.update(flat_errors(element, f"{path}.{number}"))
        return flat
    return {path: [str(text) for text in (errors if isinstance(errors, list) else [errors])]}


class Described:
    """A field that says itself what it takes or holds; wire/schema.py puts that into the API documents."""

    # The name of its own component, for a schema that many bodies share.
    component: str | None = None

    def json_schema(self) -> dict[str, Any]:
        """The value as JSON Schema, null and the limits of validators apart."""
        raise NotImplementedError

    def rules(self) -> str:
        """What JSON Schema cannot say, as sentences after the field's own text."""
        return ""


class TextField(Described, serializers.CharField):
    """Text that is text: numbers and booleans are not turned into it. Blank counts as empty, controls are refused."""

    def __init__(self, **options: Any) -> None:
        self.allow_controls: bool = options.pop("allow_controls", False)
        super().__init__(**options)
        if self.allow_controls:
            # NUL is one of them: a worker must be able to report whatever its exception says.
            self.validators = [one for one in self.validators if not isinstance(one, ProhibitNullCharactersValidator)]

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string"} if self.allow_blank else {"type": "string", "minLength": 1}

    def rules(self) -> str:
        said = "White space around it is dropped." if self.trim_whitespace else ""
        return said if self.allow_controls else f"{said} Control characters are refused.".strip()

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        value = str(super().to_internal_value(data))
        if not self.allow_controls and has_control(value):
            raise serializers.ValidationError("Control characters are not allowed.")
        if _LONE_SURROGATE.search(value):
            raise serializers.ValidationError("This is not valid Unicode text.")
        return value


class PatternField(serializers.RegexField):
    """Text of one form, as it was sent: neither trimmed into it nor made of a number."""

    def __init__(self, regex: str, **options: Any) -> None:
        super().__init__(regex, trim_whitespace=False, **options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return str(super().to_internal_value(data))


class IdField(TextField):
    """An id, owner, queue or type: 1 to 255 bytes as sent."""

    def __init__(self, **options: Any) -> None:
        self.most_bytes: int = options.pop("most_bytes", 255)
        super().__init__(max_length=self.most_bytes, trim_whitespace=False, **options)

    def run_validation(self, data: Any = serializers.empty) -> Any:
        # Whitespace alone counts as empty, though inner and outer spaces of a real id are kept as sent.
        if isinstance(data, str) and not data.strip():
            data = ""
        return super().run_validation(data)

    def to_internal_value(self, data: Any) -> str:
        value = super().to_internal_value(data)
        if len(value.encode()) > self.most_bytes:
            raise serializers.ValidationError(f"At most {self.most_bytes} bytes are allowed.")
        return value

    def rules(self) -> str:
        blank = "Empty or white space alone counts as absent." if self.allow_blank else "White space alone is refused."
        return f"At most {self.most_bytes} bytes of UTF-8, kept as sent. {blank} Control characters are refused."


class WholeField(Described, serializers.IntegerField):
    """A whole number, or its decimal digits as text; never a boolean or a fraction."""

    def json_schema(self) -> dict[str, Any]:
        return {"type": ["integer", "string"], "pattern": r"^\s*[0-9]{1,19}\s*$"}

    def rules(self) -> str:
        return "Decimal digits as text are taken as well."

    def to_internal_value(self, data: Any) -> int:
        number = as_whole(data)
        if number is None:
            self.fail("invalid")
        return number


class FlagField(Described, serializers.BooleanField):
    """True or false, nothing that looks like it."""

    def json_schema(self) -> dict[str, Any]:
        return {"type": "boolean"}

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return bool(data)


class EnvelopeField(Described, serializers.Field):  # type: ignore[type-arg]
    """A payload: exactly `{"codec": "avro", "blob": "<base64>"}`, kept as it was sent."""

    component = "PayloadEnvelope"

    def json_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "description": "A payload: opaque to the server, stored and returned as it was sent.",
            "properties": {
                "codec": {"type": "string", "const": "avro", "description": "The only codec."},
                "blob": {"type": "string", "description": "Base64 of an Avro single-object frame."},
            },
            "required": ["codec", "blob"],
            "additionalProperties": False,
        }

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if fault := envelope_fault(data):
            raise serializers.ValidationError(fault)
        return dict(data)

    def to_representation(self, value: Any) -> Any:
        return value


class ObjectField(Described, serializers.Field):  # type: ignore[type-arg]
    """Any JSON object."""

    def json_schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": True}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise serializers.ValidationError("This must be an object.")
        return data

    def to_representation(self, value: Any) -> Any:
        return value


class AnyField(Described, serializers.JSONField):
    """Any JSON value."""

    def json_schema(self) -> dict[str, Any]:
        return {"type": ["object", "array", "string", "number", "boolean"]}
