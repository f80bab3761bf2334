"""Fields of answers: short names for what bodies are made of. Each takes its description first.

They describe and never run: views answer plain dictionaries, and tests hold those against the API documents.
"""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers

from durable.refusals import Kind
from wire.validation import Described


class Body(serializers.Serializer[Any]):
    """A JSON object with exactly these keys: a key that is not declared is a mistake."""

    # The status it is sent with. A refusal's comes from its reason instead (wire/answers.py).
    http_status: ClassVar[int] = 200
    # Set where a refusal's reason is another kind of no than usual.
    refusal_kind: ClassVar[Kind | None] = None
    media_type: ClassVar[str] = "application/json"
    # A real answer, envelope apart, for the API documents.
    example: ClassVar[dict[str, Any] | None] = None
    # Put before the name of a body that this one is an envelope of.
    prefix: ClassVar[str] = ""


# What one route can answer.
Answers = tuple[type[Body], ...]


class AnswerField(Described, serializers.Field):  # type: ignore[type-arg]
    """A value of an answer. `null` and `optional` say whether it may be null or left out; the rest is JSON Schema."""

    base: ClassVar[dict[str, Any]]

    def __init__(self, says: str = "", *, null: bool = False, optional: bool = False, **schema: Any) -> None:
        super().__init__(help_text=says or None, allow_null=null, required=not optional)
        self.keywords = schema

    def json_schema(self) -> dict[str, Any]:
        return {**self.base, **self.keywords}


class Text(AnswerField):
    base = {"type": "string"}


class Id(AnswerField):
    """An id this server made: it may stand in a path as it is."""

    base = {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,255}$"}


class Name(AnswerField):
    """A name or id that a caller chose, as it was taken."""

    base = {"type": "string", "minLength": 1, "maxLength": 255}


class AsSent(AnswerField):
    """What the request says, repeated before anybody has looked at it."""

    base = {"type": "string"}

    def __init__(self, **schema: Any) -> None:
        super().__init__("As sent; null if it was not.", null=True, **schema)


class Moment(AnswerField):
    """A time in UTC with six fractional digits and a `Z`."""

    base = {
        "type": "string",
        "format": "date-time",
        "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}Z$",
    }


class Whole(AnswerField):
    base = {"type": "integer"}


class Number(AnswerField):
    base = {"type": "number"}


class Flag(AnswerField):
    base = {"type": "boolean"}


class Nothing(AnswerField):
    """Always null."""

    base = {"type": "null"}


class FreeObject(AnswerField):
    """An object whose keys are not this API's to fix; its description says whose they are."""

    base = {"type": "object", "additionalProperties": True}


class AnyJSON(AnswerField):
    """A caller's own JSON value of whatever type."""

    base = {"type": ["object", "array", "string", "number", "boolean"]}


class Const(AnswerField):
    """One fixed value."""

    _TYPES: ClassVar[dict[type, str]] = {bool: "boolean", int: "integer"}

    def __init__(self, value: bool | int | str, says: str = "", *, optional: bool = False) -> None:
        super().__init__(says, optional=optional)
        self.value = value

    def json_schema(self) -> dict[str, Any]:
        value = self.value if isinstance(self.value, (bool, int)) else str(self.value)
        return {"type": self._TYPES.get(type(self.value), "string"), "const": value}


class OneWord(AnswerField):
    """One of some fixed words."""

    def __init__(self, words: Any, says: str = "", *, null: bool = False, optional: bool = False) -> None:
        super().__init__(says, null=null, optional=optional)
        self.words = [str(word) for word in words]

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": [*self.words, None] if self.allow_null else self.words}


class OneOf(AnswerField):
    """One of several bodies; wire/schema.py refers to them."""

    base: ClassVar[dict[str, Any]] = {}

    def __init__(self, *bodies: type[serializers.Serializer[Any]], says: str = "", optional: bool = False) -> None:
        super().__init__(says, optional=optional)
        self.bodies = bodies


class BestEffort(AnswerField):
    """A body that may be sent along; anything else in its place is ignored and no error."""

    base: ClassVar[dict[str, Any]] = {}

    def __init__(self, body: type[serializers.Serializer[Any]], says: str) -> None:
        super().__init__(says, optional=True)
        self.body = body


def listed(child: Any, says: str, **limits: Any) -> serializers.ListField:
    """A list of values, or of bodies."""
    return serializers.ListField(child=child, help_text=says, **limits)


def by_name(
    child: serializers.Field[Any, Any, Any, Any], says: str, *, optional: bool = False
) -> serializers.DictField:
    """An object whose keys are names and whose values are all alike."""
    return serializers.DictField(child=child, help_text=says, required=not optional)
