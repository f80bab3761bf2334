"""How drf-spectacular describes our views (wire/documents.py builds the documents).

A view says what it takes (`request_serializer`, `query_serializer`) and what it answers (`answers`); its docstring is
the operation's text. Everything that the base view adds by itself, headers, envelope and refusals, is added here.
"""

# drf-spectacular says of half of its functions what they take.
# mypy: allow-untyped-calls

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from drf_spectacular.extensions import OpenApiSerializerFieldExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework.serializers import Serializer

from durable.protocol import SERVED
from wire import answers as shared
from wire.answer_fields import BestEffort, Body, Const, OneOf
from wire.answers import enveloped, status_of
from wire.capabilities import server_capabilities
from wire.glossary import WORDS
from wire.roles import OPEN, ROUTE_ROLES
from wire.validation import Described
from wire.versions import CONTROL_HEADER, CONTROL_VERSION, WORKER_HEADER
from wire.views import ApiView, ControlView, WorkerView

Schema = dict[str, Any]

SECURITY_SCHEME = "bearer"
_PATH_PARAMETERS = {
    "workflow_id": "The workflow.",
    "run_id": "One of its runs.",
    "task_id": "The task, as its poll returned it.",
    "worker_id": "The worker's id, percent-encoded; it may hold any character, slashes included.",
}
# Routes by the beginning of their name.
_TAGS = {
    "worker": "workers",
    "workflow-task": "workflow tasks",
    "activity-task": "activity tasks",
    "workflow": "workflows",
}
# Keys that tell the alternatives of one status apart, in the order in which they are tried.
_DISCRIMINATORS = ("reason", "poll_status", "outcome", "type")


class UndescribedError(Exception):
    """Something is served that nothing describes; the message says what."""


class DescribedFieldExtension(OpenApiSerializerFieldExtension):
    """Fields that describe themselves (wire/validation.py, wire/answer_fields.py)."""

    target_class = "wire.validation.Described"
    match_subclasses = True

    def get_name(self) -> str | None:
        name: str | None = self.target.component
        return name

    def map_serializer_field(self, auto_schema: AutoSchema, direction: Any) -> Schema:
        field = self.target
        if isinstance(field, OneOf):
            refs = [auto_schema.resolve_serializer(body, direction).ref for body in field.bodies]
            return _one_of(field.bodies, refs)
        if isinstance(field, BestEffort):
            ref = auto_schema.resolve_serializer(field.body, direction).ref
            return {"anyOf": [ref, {"description": "Anything else is ignored."}]}
        schema: Schema = field.json_schema()
        return schema


class OperationSchema(AutoSchema):
    """One method of one route."""

    @property
    def described(self) -> ApiView:
        """The route's view: all views that are described are ours."""
        view = self.view
        if not isinstance(view, ApiView):
            raise TypeError(f"{type(view).__name__} is no ApiView")
        return view

    def get_operation_id(self) -> str:
        """The route's name, as metrics and logs have it; with the operation's where a route has several methods."""
        view = self.described
        name = view.route.replace("-", "_")
        if isinstance(view, ControlView) and len(view.answers) > 1:
            return f"{name}_{view.operation_of(None)}"
        return name

    def get_summary(self) -> str:
        return self._text().partition("\n")[0].rstrip(".")

    def get_description(self) -> str:  # type: ignore[override]  # as drf-spectacular has it
        roles = sorted(ROUTE_ROLES[self.described.route])
        who = f"Roles: {' or '.join(f'`{role}`' for role in roles)}." if roles else "Needs no token."
        return "\n\n".join(part for part in (self._text().partition("\n")[2].strip(), who) if part)

    def _text(self) -> str:
        handler = getattr(self.described, self.method.lower())
        return inspect.getdoc(handler) or inspect.cleandoc(type(self.described).__doc__ or "")

    def get_tags(self) -> list[str]:
        route = self.described.route
        return [next((tag for start, tag in _TAGS.items() if _begins(route, start)), "server")]

    def get_extensions(self) -> Schema:
        return {"x-roles": sorted(ROUTE_ROLES[self.described.route])}

    def get_auth(self) -> list[Schema]:
        if ROUTE_ROLES[self.described.route] is OPEN:
            return []
        scheme = {"type": "http", "scheme": "bearer", "description": "An API token, or the development token."}
        self.registry.register_on_missing(
            ResolvedComponent(
                name=SECURITY_SCHEME, type=ResolvedComponent.SECURITY_SCHEMA, object=OperationSchema, schema=scheme
            )
        )
        return [{SECURITY_SCHEME: []}]

    def map_parsers(self) -> list[Any]:
        return ["application/json"]

    def map_renderers(self, attribute: str) -> list[Any]:
        return ["application/json"] if attribute == "media_type" else []

    def _is_list_view(self, serializer: Any = None) -> bool:
        return False

    # -- requests ------------------------------------------------------------------------------------------------------

    def get_request_serializer(self) -> Any:
        return self.described.request_serializer

    def get_override_parameters(self) -> list[Any]:
        found = [
            OpenApiParameter(name, str, OpenApiParameter.PATH, description=says)
            for name, says in _PATH_PARAMETERS.items()
            if f"{{{name}}}" in self.path
        ]
        if ROUTE_ROLES[self.described.route] is not OPEN:
            found += _NAMESPACE_PARAMETERS
        if isinstance(self.described, WorkerView):
            found += _WORKER_HEADERS
        if isinstance(self.described, ControlView):
            found += _CONTROL_HEADERS
        if ROUTE_ROLES[self.described.route] is not OPEN:
            found.append(_RETRY_AFTER)
        return found + self._query_parameters()

    def _query_parameters(self) -> list[OpenApiParameter]:
        if self.method != "GET" or self.described.query_serializer is None:
            return []
        mapped = self._map_serializer(self.described.query_serializer, "request")
        return [_query_parameter(name, schema) for name, schema in mapped["properties"].items()]

    # -- answers -------------------------------------------------------------------------------------------------------

    def get_response_serializers(self) -> Any:
        by_status: dict[int, list[type[Body]]] = defaultdict(list)
        for answer in self._answers():
            by_status[status_of(answer)].append(answer)
        return {
            (status, found[0].media_type): OpenApiResponse(self._content(found), description=_description(found))
            for status, found in sorted(by_status.items())
        }

    def _answers(self) -> list[type[Body]]:
        view, envelope = self.described, self.described.answer_envelope()
        if self.method.lower() not in view.answers:
            raise UndescribedError(f"{type(view).__name__}.answers does not say what {self.method} answers")
        own = [enveloped(answer, envelope) for answer in view.answers[self.method.lower()]]
        has_fields = self._query_parameters() or (self.method == "POST" and self.described.request_serializer)
        every = _shared_answers(self.described, has_fields=bool(has_fields))
        return own + [enveloped(answer, envelope or shared.NoEnvelope) for answer in every]

    def _content(self, found: Sequence[type[Body]]) -> Any:
        if found[0].media_type != "application/json":
            return OpenApiTypes.STR
        if len(found) == 1:
            return found[0]
        return _one_of(found, [self.resolve_serializer(answer, "response").ref for answer in found])

    def _get_serializer_field_meta(self, field: Any, direction: Any) -> Any:
        meta = super()._get_serializer_field_meta(field, direction)
        if isinstance(field, Described):
            says = meta.get("description") or WORDS.get(getattr(field, "field_name", None) or "")
            if text := " ".join(part for part in (says, field.rules()) if part):
                meta["description"] = text
        return meta

    def _map_serializer(self, serializer: Any, direction: Any, bypass_extensions: bool = False) -> Any:
        schema = super()._map_serializer(serializer, direction, bypass_extensions)
        cls = serializer if inspect.isclass(serializer) else type(serializer)
        if issubclass(cls, Body):
            schema["additionalProperties"] = False
            if cls.example is not None:
                schema["examples"] = [{**cls.example, **_envelope_example(cls)}]
        return schema


def _begins(route: str, start: str) -> bool:
    return route in (start, f"{start}s") or route.startswith(f"{start}-")


def _envelope_example(body: type[Body]) -> Schema:
    if not issubclass(body, shared.WorkerEnvelope):
        return {}
    return {"protocol_version": str(SERVED), "server_capabilities": server_capabilities()}


def _query_parameter(name: str, schema: Schema) -> OpenApiParameter:
    """In a query everything is text: a number is described as one."""
    schema = dict(schema)
    description = schema.pop("description", "")
    if isinstance(schema.get("type"), list):
        schema = {key: value for key, value in schema.items() if key != "pattern"} | {"type": "integer"}
    return OpenApiParameter(name, schema, OpenApiParameter.QUERY, description=description)


def _shared_answers(view: ApiView, *, has_fields: bool) -> list[type[Body]]:
    """What the base view itself answers, in the order in which it checks."""
    found: list[type[Body]] = [shared.PayloadTooLarge, shared.UnsupportedMediaType, shared.MalformedJson]
    if ROUTE_ROLES[view.route] is not OPEN:
        found += [shared.Unauthorized, shared.Forbidden]
        if isinstance(view, WorkerView):
            found += [shared.MissingProtocolVersion, shared.UnsupportedProtocolVersion]
        if isinstance(view, ControlView):
            found += [shared.MissingControlPlaneVersion, shared.UnsupportedControlPlaneVersion]
        found.append(shared.InvalidNamespace)
        if view.needs_namespace():
            found.append(shared.NamespaceNotFound)
        if type(view).unavailable is ApiView.unavailable:
            found += [shared.BackendLockPressure, shared.BackendUnavailable]
    if has_fields:
        found.append(shared.ValidationFailed)
    return [*found, shared.MethodNotAllowed, shared.ServerError]


def _const(body: type[Serializer[Any]], key: str) -> str | None:
    field = body().fields.get(key)
    return str(field.value) if isinstance(field, Const) else None


def _one_of(bodies: Sequence[type[Serializer[Any]]], refs: Sequence[Schema]) -> Schema:
    """A choice of bodies, with the key that tells them apart where there is one."""
    if (key := _discriminator(bodies)) is None:
        return {"oneOf": [*refs]}
    mapping = {_const(body, key): ref["$ref"] for body, ref in zip(bodies, refs, strict=True)}
    return {"oneOf": [*refs], "discriminator": {"propertyName": key, "mapping": mapping}}


def _discriminator(found: Sequence[type[Serializer[Any]]]) -> str | None:
    """The key whose fixed value is another one in each body, if there is one."""
    for key in _DISCRIMINATORS:
        values = [_const(answer, key) for answer in found]
        if None not in values and len(set(values)) == len(values):
            return key
    return None


def _description(found: Sequence[type[Body]]) -> str:
    """When each answer of a status is given."""
    texts = [" ".join(inspect.cleandoc(answer.__doc__ or "").split()) for answer in found]
    if len(found) == 1:
        return texts[0]
    key = _discriminator(found)
    names = [_const(answer, key) if key else answer.__name__ for answer in found]
    return "\n".join(f"- `{name}`: {text}" for name, text in zip(names, texts, strict=True))


# -- headers -----------------------------------------------------------------------------------------------------------

_NAMESPACE_PARAMETERS = [
    OpenApiParameter(
        "X-Namespace",
        str,
        OpenApiParameter.HEADER,
        description="The namespace, in any case; without it the `namespace` parameter, else the server's default one.",
    ),
    OpenApiParameter(
        "namespace", str, OpenApiParameter.QUERY, description="The namespace, for clients that cannot send the header."
    ),
]
_WORKER_HEADERS = [
    OpenApiParameter(
        WORKER_HEADER,
        {"type": "string", "pattern": r"^\s*[0-9]+\.[0-9]+\s*$", "examples": [str(SERVED)]},
        OpenApiParameter.HEADER,
        required=True,
        description=f"The protocol version the worker speaks: `{SERVED.major}.N`, at most `{SERVED}`.",
    ),
    OpenApiParameter(
        WORKER_HEADER,
        {"type": "string", "const": str(SERVED)},
        OpenApiParameter.HEADER,
        response=True,
        required=True,
        description="The protocol version this server speaks.",
    ),
]
_CONTROL_HEADERS = [
    OpenApiParameter(
        CONTROL_HEADER,
        {"type": "string", "const": CONTROL_VERSION},
        OpenApiParameter.HEADER,
        required=True,
        description="The version of the control plane.",
    ),
    OpenApiParameter(
        CONTROL_HEADER,
        {"type": "string", "const": CONTROL_VERSION},
        OpenApiParameter.HEADER,
        response=True,
        required=True,
        description="The version of the control plane.",
    ),
]
_RETRY_AFTER = OpenApiParameter(
    "Retry-After",
    int,
    OpenApiParameter.HEADER,
    response=[429, 503],
    required=True,
    description="Seconds to wait, as `retry_after_seconds` of the body.",
)
