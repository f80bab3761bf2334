"""Building an API document from a plane's routes."""

# drf-spectacular says of half of its functions what they take.
# mypy: allow-untyped-calls

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.plumbing import ResolvedComponent

from wire.answers import UnknownRoute, enveloped
from wire.schema import OperationSchema, Schema, UndescribedError
from wire.views import ApiView


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """An API document: the routes of `patterns`, and what is answered where there is none."""

    title: str
    version: str
    description: str
    tags: dict[str, str]
    patterns: list[Any]
    unknown_route: type[ApiView]


class _Generator(SchemaGenerator):
    """Also describes what is answered where there is no route."""

    def __init__(self, document: Document) -> None:
        super().__init__(patterns=document.patterns)
        self.document = document

    def parse(self, input_request: Any, public: Any) -> Any:
        paths = super().parse(input_request, public)
        view = self.document.unknown_route()
        view.request = None  # type: ignore[assignment]  # as for every described view: there is none
        schema = OperationSchema()
        schema.view, schema.registry, schema.path, schema.method = view, self.registry, "", "GET"
        answer = enveloped(UnknownRoute, view.answer_envelope())
        described = {
            "description": f"{answer.__doc__} Given for every other path.",
            "headers": schema._get_response_headers_for_code("404"),
            "content": {"application/json": {"schema": schema.resolve_serializer(answer, "response").ref}},
        }
        component = ResolvedComponent("UnknownRoute", ResolvedComponent.RESPONSE, schema=described, object=answer)
        self.registry.register(component)
        return paths


def build_document(document: Document) -> Schema:
    """The OpenAPI document, always the same for the same code. Raises UndescribedError, also where it had to guess."""
    schema = _Generator(document).get_schema(request=None, public=True)
    if GENERATOR_STATS:
        guesses = [*GENERATOR_STATS._warn_cache, *GENERATOR_STATS._error_cache]
        raise UndescribedError("\n".join(guesses))
    info = {
        "title": document.title,
        "version": document.version,
        "description": document.description,
        "license": {"name": "MIT", "identifier": "MIT"},
    }
    tags = [{"name": name, "description": says} for name, says in document.tags.items()]
    responses = _name_responses(schema["paths"])
    parts = {**schema["components"], "responses": {**schema["components"]["responses"], **responses}}
    return {
        "openapi": schema["openapi"],
        "info": info,
        "tags": tags,
        "paths": schema["paths"],
        "components": dict(sorted(parts.items())),
    }


def _name_responses(paths: Schema) -> Schema:
    """Replace answers of one body that several operations share by references; returns them by their body's name."""
    uses: dict[str, list[tuple[Schema, str]]] = defaultdict(list)
    for responses in (operation["responses"] for methods in paths.values() for operation in methods.values()):
        for status, response in responses.items():
            schema = response["content"].get("application/json", {}).get("schema", {})
            if set(schema) == {"$ref"}:
                uses[schema["$ref"].rpartition("/")[2]].append((responses, status))
    named = {}
    for name, places in sorted(uses.items()):
        found = [responses[status] for responses, status in places]
        if len(found) > 1 and all(response == found[0] for response in found):
            named[name] = found[0]
            for responses, status in places:
                responses[status] = {"$ref": f"#/components/responses/{name}"}
    return named
