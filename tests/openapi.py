"""Holds exchanges against the committed API documents: every body a test sees must be as it is described.

`check_exchange` fits `tests.client.exchange_checks`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "openapi"
FILES = {"worker": "worker-protocol-api.openapi.yaml", "control": "control-plane-api.openapi.yaml"}
MOST_ERRORS = 8
# What the base view says of any request, before it has looked where it goes.
_BEFORE_ROUTING = (400, 413, 415)
# What it says of a known route before it has looked for the method.
_BEFORE_METHOD = (*_BEFORE_ROUTING, 401, 403, 404, 405)

Schema = dict[str, Any]


@cache
def document(name: str) -> Schema:
    """A committed document: `worker` or `control`."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loaded: Schema = yaml.load((FOLDER / FILES[name]).read_text(), Loader=loader)  # both are safe loaders
    return loaded


def check_exchange(method: str, path: str, status: int, request_body: Any, response_body: Any) -> None:
    """Raise AssertionError unless the answer, and a request that succeeded, are as the documents say.

    `path` is the request's, encoded or not, with or without a query; `request_body` is None where it was not JSON.
    """
    # Routes are matched after percent signs are decoded, once.
    path = unquote(path.partition("?")[0])
    exchange = f"{method} {path} -> {status}"
    # A server sends the answer to HEAD without its body; what the body would be is the same.
    method = "GET" if method == "HEAD" else method
    name, template = find_route(path)
    schema = _answer_schema(name, template, method.lower(), status, exchange)
    if schema is not None:
        _check(name, schema, response_body, f"{exchange}: the answer is not as described")
    if 200 <= status < 300 and isinstance(request_body, dict) and template is not None:
        request = _request_schema(name, template, method.lower())
        if request is not None:
            _check(name, request, request_body, f"{exchange}: the request was taken, but is not as described")


def find_route(path: str) -> tuple[str, str | None]:
    """The document a path belongs to, and its template there; None for a path that is no route."""
    for name in FILES:
        for template, pattern in _patterns(name):
            if pattern.fullmatch(path):
                return name, template
    return ("worker" if re.match(r"/api/worker(/|$)", path) else "control"), None


@cache
def _patterns(name: str) -> list[tuple[str, re.Pattern[str]]]:
    """Templates as patterns, those with more fixed text first. Only a worker's id may hold slashes."""
    found = []
    for template in sorted(document(name)["paths"], key=lambda path: -len(re.sub(r"{\w+}", "", path))):
        parts = re.split(r"{(\w+)}", template)
        text = "".join(
            re.escape(part) if number % 2 == 0 else ".+" if part == "worker_id" else "[^/]+"
            for number, part in enumerate(parts)
        )
        found.append((template, re.compile(text)))
    return found


def _answer_schema(name: str, template: str | None, method: str, status: int, exchange: str) -> Schema | None:
    if template is None:
        if status in _BEFORE_ROUTING:
            return None
        assert status == 404, f"{exchange}: there is no such route in the documents"
        return _content(name, {"$ref": "#/components/responses/UnknownRoute"})
    operations = document(name)["paths"][template]
    # What other methods are answered stands with each of those that are taken.
    operation = operations.get(method) or (next(iter(operations.values())) if status in _BEFORE_METHOD else None)
    assert operation is not None, f"{exchange}: the documents have no such method on this route"
    response = operation["responses"].get(str(status))
    assert response is not None, f"{exchange}: described are {', '.join(sorted(operation['responses']))}"
    return _content(name, response)


def _request_schema(name: str, template: str, method: str) -> Schema | None:
    body = document(name)["paths"][template][method].get("requestBody")
    return None if body is None else body["content"]["application/json"]["schema"]


def _content(name: str, response: Schema) -> Schema:
    schema: Schema = resolve(name, response)["content"]["application/json"]["schema"]
    return schema


def resolve(name: str, schema: Schema) -> Schema:
    """What a reference refers to; anything else as it is."""
    while "$ref" in schema:
        found: Any = document(name)
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


# -- validation --------------------------------------------------------------------------------------------------------

_validators: dict[tuple[str, int], Draft202012Validator] = {}


def matches(name: str, schema: Schema, body: Any) -> bool:
    """Whether a body is what a schema of the document says."""
    return bool(_validator(name, schema).is_valid(body))


def _validator(name: str, schema: Schema) -> Draft202012Validator:
    # The documents stay loaded, so that a part of one keeps its identity.
    key = (name, id(schema))
    if key not in _validators:
        _validators[key] = Draft202012Validator({**schema, "components": document(name)["components"]})
    return _validators[key]


def _check(name: str, schema: Schema, body: Any, complaint: str) -> None:
    if _validator(name, schema).is_valid(body):
        return
    errors = list(_errors(name, schema, body))
    lines = [*errors[:MOST_ERRORS], *([f"… and {len(errors) - MOST_ERRORS} more"] if len(errors) > MOST_ERRORS else [])]
    raise AssertionError("\n  ".join([complaint, *lines, f"body: {body!r:.2000}"]))


def _errors(name: str, schema: Schema, body: Any) -> Iterator[str]:
    """What is wrong; of several alternatives only with the one that was probably meant."""
    alternatives = resolve(name, schema).get("oneOf")
    if not alternatives:
        title = schema.get("$ref", "").rpartition("/")[2]
        for error in _validator(name, schema).iter_errors(body):
            yield _sentence(error, title)
        return
    fitting = [part for part in alternatives if _validator(name, part).is_valid(body)]
    if len(fitting) > 1:
        yield f"it fits several: {', '.join(part.get('$ref', '?').rpartition('/')[2] for part in fitting)}"
        return
    yield from _errors(name, min(alternatives, key=lambda part: _distance(name, part, body)), body)


def _distance(name: str, schema: Schema, body: Any) -> tuple[int, int]:
    """How far a body is from an alternative: its fixed values first, then everything."""
    properties = resolve(name, schema).get("properties", {})
    given = body if isinstance(body, Mapping) else {}
    wrong = sum("const" in part and given.get(key) != part["const"] for key, part in properties.items())
    return wrong, sum(1 for _ in _validator(name, schema).iter_errors(body))


def _sentence(error: ValidationError, title: str) -> str:
    place = error.json_path.removeprefix("$").lstrip(".") or "the body"
    return f"{f'{title}: ' if title else ''}{place}: {error.message:.300}"
