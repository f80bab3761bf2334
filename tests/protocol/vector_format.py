"""The vectors' format, `durable.vectors.v1`: files into cases, templates into requests, answers held against matchers.

docs/protocol/vectors.md describes it. Only the standard library is used, so that it runs against any server.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = "durable.vectors.v1"

_REQUIRED: dict[str, set[str]] = {
    "a file": {"format", "chapter", "title", "cases"},
    "a case": {"id", "title", "when", "then"},
    "a request": {"path"},
    "an expectation": {"status"},
    "a step": {"send"},
    "an observation": {"run", "status", "appended"},
}
_OPTIONAL: dict[str, set[str]] = {
    "a file": {"variables", "scenes", "variants"},
    "a case": {"needs", "variants", "given", "changed"},
    "a request": {"method", "body", "headers"},
    "an expectation": {"body"},
    "a step": {"expect", "within"},
    "an observation": set(),
}
_TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}Z")
_NAME_IN_PATH = re.compile(r"\{(\w+)\}")
_TYPES: dict[str, Callable[[Any], bool]] = {
    "timestamp": lambda value: isinstance(value, str) and _TIMESTAMP.fullmatch(value) is not None,
    "id": lambda value: isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9._:-]{1,255}", value) is not None,
    "text": lambda value: isinstance(value, str) and value.strip() != "",
    "integer": lambda value: type(value) is int,
    "boolean": lambda value: type(value) is bool,
    "object": lambda value: isinstance(value, dict),
    "list": lambda value: isinstance(value, list),
}


class VectorError(Exception):
    """A vector file says something that this runner does not understand, or refers to what is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is sent; path and body are templates."""

    method: str
    path: str
    headers: dict[str, Any]
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What must be answered: a status, or None for any 2xx; matchers for the body, or `{"$any": true}`."""

    status: int | None
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A request with what must be answered. `within`: repeat it until it is, so many seconds or `"lease"`."""

    send: Request
    expect: Expectation
    within: float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What became of a run: its status now, and the types of the events appended since before `when`."""

    workflow_id: Any
    run_id: Any
    status: Any
    appended: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case, with the variables that its file and its variant set."""

    id: str
    title: str
    needs: list[str]
    variables: dict[str, Any]
    given: list[Step]
    when: list[Step]
    changed: list[Step | Observation]


# -- reading files -----------------------------------------------------------------------------------------------------


def read_cases(path: Path) -> list[Case]:
    """The cases of a file, each variant a case of its own. VectorError when it is not a vector file of this format."""
    try:
        file = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise VectorError(f"{path.name}: cannot be read: {error}") from error
    if not isinstance(file, dict) or file.get("format") != FORMAT:
        found = file.get("format") if isinstance(file, dict) else None
        raise VectorError(f"{path.name}: unknown vector format {found!r}; this runner reads {FORMAT!r}")
    try:
        _check_keys("a file", file)
        cases = [case for entry in file["cases"] for case in _cases(entry, file)]
    except VectorError as error:
        raise VectorError(f"{path.name}: {error}") from error
    ids = [case.id for case in cases]
    if twice := sorted({case_id for case_id in ids if ids.count(case_id) > 1}):
        raise VectorError(f"{path.name}: {', '.join(twice)} stands there twice")
    return cases


def _check_keys(what: str, entry: Any) -> None:
    """A misspelt key would quietly check nothing."""
    if not isinstance(entry, dict):
        raise VectorError(f"{what} must be an object, not {entry!r}")
    if missing := sorted(_REQUIRED[what] - entry.keys()):
        raise VectorError(f"{what} needs {', '.join(missing)}: {entry!r}")
    if unknown := sorted(entry.keys() - _REQUIRED[what] - _OPTIONAL[what]):
        raise VectorError(f"{what} has unknown keys {', '.join(unknown)}: {entry!r}")


def _cases(entry: dict[str, Any], file: dict[str, Any]) -> list[Case]:
    _check_keys("a case", entry)
    try:
        when, then = _as_list(entry["when"]), _as_list(entry["then"])
        if len(when) != len(then):
            raise VectorError("`when` and `then` must be of one length")
        common: dict[str, Any] = {
            "title": entry["title"],
            "needs": entry.get("needs", []),
            "given": _given(entry.get("given", []), file),
            "when": [_step({"send": send, "expect": expect}) for send, expect in zip(when, then, strict=True)],
            "changed": _entries(entry.get("changed", []), file),
        }
    except VectorError as error:
        raise VectorError(f"{entry['id']}: {error}") from error
    variables = file.get("variables", {})
    if "variants" not in entry:
        return [Case(id=entry["id"], variables=variables, **common)]
    return [
        Case(id=f"{entry['id']}/{name}", variables=variables | _named("variants", name, file), **common)
        for name in entry["variants"]
    ]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _named(kind: str, name: str, file: dict[str, Any]) -> Any:
    try:
        return file[kind][name]
    except KeyError:
        raise VectorError(f"{name!r} is not among the file's {kind}") from None


def _entries(entries: list[Any], file: dict[str, Any]) -> list[Step | Observation]:
    """Steps and observations in order; a text among them stands for what is in the scene of that name."""
    found: list[Step | Observation] = []
    for entry in entries:
        found.extend(_entries(_named("scenes", entry, file), file) if isinstance(entry, str) else [_entry(entry)])
    return found


def _given(entries: list[Any], file: dict[str, Any]) -> list[Step]:
    steps = [entry for entry in _entries(entries, file) if isinstance(entry, Step)]
    if len(steps) < len(_entries(entries, file)):
        raise VectorError("`given` takes steps alone: nothing has changed yet")
    return steps


def _entry(entry: Any) -> Step | Observation:
    if not isinstance(entry, dict) or "run" not in entry:
        return _step(entry)
    _check_keys("an observation", entry)
    return Observation(
        workflow_id=entry["run"]["workflow_id"],
        run_id=entry["run"]["run_id"],
        status=entry["status"],
        appended=entry["appended"],
    )


def _step(entry: Any) -> Step:
    _check_keys("a step", entry)
    send, expect = entry["send"], entry.get("expect")
    _check_keys("a request", send)
    if expect is not None:
        _check_keys("an expectation", expect)
    return Step(
        send=Request(
            method=send.get("method", "POST"),
            path=send["path"],
            headers=send.get("headers", {}),
            body=send.get("body"),
        ),
        expect=Expectation(
            status=expect["status"] if expect else None, body=(expect or {}).get("body", {"$any": True})
        ),
        within=entry.get("within"),
    )


# -- templates ---------------------------------------------------------------------------------------------------------


class Variables:
    """What a case knows by name: its variant, the names it made up, and what it captured from answers."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = dict(values)
        self._run = secrets.token_hex(5)

    def read(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise VectorError(f"{name!r} is used before anything set it") from None

    def unique(self, name: str) -> str:
        """A name that no other case and no other run has; the same within this case."""
        made: str = self._values.setdefault(name, f"{name}-{self._run}")
        return made

    def keep(self, captured: dict[str, Any]) -> None:
        self._values |= captured


def is_directive(template: Any) -> bool:
    return isinstance(template, dict) and any(key.startswith("$") for key in template)


def fill(template: Any, variables: Variables) -> Any:
    """The JSON to send: `$ref`, `$unique` and `$merge` replaced by what they stand for."""
    if isinstance(template, list):
        return [fill(element, variables) for element in template]
    if not isinstance(template, dict):
        return template
    if not is_directive(template):
        return {key: fill(value, variables) for key, value in template.items()}
    match template:
        case {"$ref": name}:
            return fill(variables.read(name), variables)
        case {"$unique": name}:
            return variables.unique(name)
        case {"$merge": parts}:
            return {key: value for part in parts for key, value in fill(part, variables).items()}
    raise VectorError(f"{template!r} cannot be sent")


def fill_path(template: str, variables: Variables, quote: Callable[[str], str]) -> str:
    """The path with each `{name}` replaced, percent-encoded."""
    return _NAME_IN_PATH.sub(lambda found: quote(str(fill(variables.read(found[1]), variables))), template)


# -- matchers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Comparison:
    """Holds answers against expectations. `captured` fills as it goes, `differences` is empty if all is well."""

    variables: Variables
    differences: list[str]
    captured: dict[str, Any]

    @classmethod
    def begin(cls, variables: Variables) -> Comparison:
        return cls(variables, [], {})

    def compare(self, expected: Any, actual: Any, at: str) -> None:
        """Objects must have exactly the expected keys, lists the expected length, numbers the expected type."""
        if is_directive(expected):
            self._directive(expected, actual, at)
        elif isinstance(expected, dict) and isinstance(actual, dict):
            self._unexpected([key for key in actual if key not in expected], actual, at)
            self._fields(expected, actual, at)
        elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
            for index, (element, found) in enumerate(zip(expected, actual, strict=True)):
                self.compare(element, found, f"{at}.{index}")
        # In Python true == 1 == 1.0; in JSON they are three things.
        elif type(expected) is not type(actual) or expected != actual:
            self._differ(shown(expected), actual, at)

    def _fields(self, expected: dict[str, Any], actual: dict[str, Any], at: str) -> None:
        for key, value in expected.items():
            if key in actual:
                self.compare(value, actual[key], f"{at}.{key}")
            else:
                self.differences.append(f"{at}: missing field {key!r}")

    def _unexpected(self, keys: list[str], actual: dict[str, Any], at: str) -> None:
        self.differences.extend(f"{at}: unexpected field {key!r}: {shown(actual[key])}" for key in keys)

    def _differ(self, expected: str, actual: Any, at: str) -> None:
        self.differences.append(f"{at}: expected {expected}, got {shown(actual)}")

    def _directive(self, expected: dict[str, Any], actual: Any, at: str) -> None:
        for name, argument in expected.items():
            match name:
                case "$any":
                    pass
                case "$capture":
                    self.captured[argument] = actual
                case "$type":
                    if argument not in _TYPES:
                        raise VectorError(f"{argument!r} is no $type")
                    if not _TYPES[argument](actual):
                        self._differ(f"a value of type {argument}", actual, at)
                case "$not":
                    if not self._other(argument, actual, at).differences:
                        self._differ(f"anything but {shown(actual)}", actual, at)
                case "$has" | "$absent" if not isinstance(actual, dict):
                    self._differ("an object", actual, at)
                case "$has":
                    self._fields(argument, actual, at)
                case "$absent":
                    self._unexpected([key for key in argument if key in actual], actual, at)
                case "$one_of":
                    self._one_of(argument, actual, at)
                case "$merge":
                    parts = [self._read(part) for part in argument]
                    self.compare({key: value for part in parts for key, value in part.items()}, actual, at)
                case "$ref" | "$unique":
                    self.compare(self._read({name: argument}), actual, at)
                case _:
                    raise VectorError(f"{name!r} is no matcher")

    def _read(self, template: Any) -> Any:
        """What a `$ref` or `$unique` stands for; what was captured in this very answer counts too."""
        match template:
            case {"$ref": name}:
                return self.captured[name] if name in self.captured else self.variables.read(name)
            case {"$unique": name}:
                return self.variables.unique(name)
        return template

    def _other(self, expected: Any, actual: Any, at: str) -> Comparison:
        other = Comparison(self.variables, [], dict(self.captured))
        other.compare(expected, actual, at)
        return other

    def _one_of(self, choices: list[Any], actual: Any, at: str) -> None:
        tried = [self._other(choice, actual, at) for choice in choices]
        for other in tried:
            if not other.differences:
                self.captured.update(other.captured)
                return
        self.differences.append(f"{at}: none of {len(choices)} forms fits:")
        self.differences.extend(f"  {n}. {line}" for n, other in enumerate(tried, 1) for line in other.differences)


def shown(value: Any) -> str:
    """A value for people, cut."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}…"
