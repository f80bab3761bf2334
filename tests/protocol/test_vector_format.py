"""What the vectors' format accepts, and what its matchers let through (docs/protocol/vectors.md)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.run_vectors import VECTORS
from tests.protocol.vector_format import (
    FORMAT,
    Case,
    Comparison,
    Variables,
    VectorError,
    fill,
    fill_path,
    read_cases,
)

PAGE = Path(__file__).parents[2] / "docs" / "protocol" / "vectors.md"
REQUEST = {"path": "/api/worker/heartbeat", "body": {}}
CASE = {"id": "X1", "title": "does something", "when": REQUEST, "then": {"status": 200}}
RUN = {"run": {"workflow_id": "w", "run_id": "r"}, "status": "waiting", "appended": []}
TIME = "2026-11-03T10:00:00.000000Z"


def write(folder: Path, *cases: dict[str, Any], **file: Any) -> Path:
    path = folder / "some.json"
    path.write_text(json.dumps({"format": FORMAT, "chapter": 12, "title": "some", "cases": cases, **file}))
    return path


def read(folder: Path, *cases: dict[str, Any], **file: Any) -> list[Case]:
    return read_cases(write(folder, *cases, **file))


def differences(expected: Any, actual: Any, **known: Any) -> list[str]:
    comparison = Comparison.begin(Variables(known))
    comparison.compare(expected, actual, "body")
    return comparison.differences


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["durable.vectors.v2", "", None, 1])
def test_refuses_an_unknown_format(tmp_path: Path, name: Any) -> None:
    with pytest.raises(VectorError, match=r"some\.json: unknown vector format"):
        read(tmp_path, CASE, format=name)


@pytest.mark.parametrize("text", ["", "[]", "{", '"durable.vectors.v1"'])
def test_refuses_what_is_no_vector_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "some.json"
    path.write_text(text)

    with pytest.raises(VectorError, match=r"some\.json"):
        read_cases(path)


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "misspelt key of a case": ({**CASE, "chnaged": []}, {}, "unknown keys chnaged"),
    "misspelt key of a file": (CASE, {"scene": {}}, "unknown keys scene"),
    "misspelt key of a request": ({**CASE, "when": {**REQUEST, "bdoy": {}}}, {}, "unknown keys bdoy"),
    "misspelt key of an expectation": ({**CASE, "then": {"status": 200, "boby": {}}}, {}, "unknown keys boby"),
    "misspelt key of a step": ({**CASE, "given": [{"send": REQUEST, "expects": {}}]}, {}, "unknown keys expects"),
    "misspelt key of an observation": ({**CASE, "changed": [{**RUN, "appendde": []}]}, {}, "unknown keys appendde"),
    "expectation without a status": ({**CASE, "then": {"body": {}}}, {}, "needs status"),
    "case without an expectation": ({"id": "X1", "title": "x", "when": REQUEST}, {}, "needs then"),
    "observation without its events": ({**CASE, "changed": [{"run": {}, "status": "x"}]}, {}, "needs appended"),
    "unknown scene": ({**CASE, "given": ["nowhere"]}, {}, "'nowhere' is not among the file's scenes"),
    "unknown variant": ({**CASE, "variants": ["other"]}, {}, "'other' is not among the file's variants"),
    "observation before anything happened": ({**CASE, "given": [RUN]}, {}, "`given` takes steps alone"),
    "fewer expectations than requests": ({**CASE, "when": [REQUEST, REQUEST]}, {}, "must be of one length"),
    "no object for a step": ({**CASE, "given": [7]}, {}, "a step must be an object"),
}


@pytest.mark.parametrize("what", WRONG)
def test_refuses_a_file_with(tmp_path: Path, what: str) -> None:
    case, file, message = WRONG[what]

    with pytest.raises(VectorError, match=re.escape(message)):
        read(tmp_path, case, **file)


def test_refuses_a_case_that_stands_there_twice(tmp_path: Path) -> None:
    with pytest.raises(VectorError, match="X1 stands there twice"):
        read(tmp_path, CASE, CASE)


def test_makes_a_case_of_each_variant(tmp_path: Path) -> None:
    variants = {"a": {"x": 1}, "b": {"x": 2}}

    cases = read(tmp_path, {**CASE, "variants": ["a", "b"]}, variants=variants, variables={"x": 0, "y": 3})

    assert [(case.id, case.variables) for case in cases] == [("X1/a", {"x": 1, "y": 3}), ("X1/b", {"x": 2, "y": 3})]


def test_puts_the_steps_of_scenes_where_they_are_named(tmp_path: Path) -> None:
    first, second = ({"send": {**REQUEST, "path": path}} for path in ("/1", "/2"))
    scenes = {"one": [first], "both": ["one", second]}

    (case,) = read(tmp_path, {**CASE, "given": ["both", first], "changed": [RUN, "one"]}, scenes=scenes)

    assert [step.send.path for step in case.given] == ["/1", "/2", "/1"]
    assert len(case.changed) == 2


# -- what is sent ------------------------------------------------------------------------------------------------------


def test_fills_in_what_is_known() -> None:
    variables = Variables({"task": "t-1", "content": {"a": [{"$ref": "task"}]}})

    filled = fill({"$merge": [{"a": 1, "b": 2}, {"$ref": "content"}]}, variables)

    assert filled == {"a": ["t-1"], "b": 2}


def test_makes_names_that_stay_within_a_case_and_are_fresh_in_another() -> None:
    one, other = Variables({}), Variables({})

    names = [fill({"$unique": "queue"}, one), one.read("queue"), fill({"$unique": "queue"}, other)]

    assert names[0] == names[1] != names[2]
    assert all(re.fullmatch(r"queue-[0-9a-f]{10}", name) for name in names)


def test_encodes_names_in_paths() -> None:
    path = fill_path("/x/{name}/y", Variables({"name": "a b/c"}), lambda text: text.replace("/", "%2F"))

    assert path == "/x/a b%2Fc/y"


@pytest.mark.parametrize("template", [{"$ref": "nobody"}, {"$type": "id"}, {"$nonsense": 1}])
def test_sends_nothing_that_it_does_not_know(template: Any) -> None:
    with pytest.raises(VectorError):
        fill([template], Variables({}))


# -- what is expected --------------------------------------------------------------------------------------------------

FITS: list[tuple[Any, Any]] = [
    ({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
    ({"$any": True}, None),
    ({"$type": "timestamp"}, TIME),
    ({"$type": "id"}, "01J.a_b:c-d"),
    ({"$type": "text"}, "some text"),
    ({"$type": "integer"}, 0),
    ({"$type": "boolean"}, False),
    ({"$type": "object"}, {}),
    ({"$type": "list"}, []),
    ({"$has": {"a": 1}}, {"a": 1, "b": 2}),
    ({"$has": {"a": 1}, "$absent": ["c"]}, {"a": 1, "b": 2}),
    ({"$one_of": [1, {"$type": "text"}]}, "x"),
    ({"$not": 1}, 2),
    ({"$ref": "known"}, {"x": 1}),
    ({"$merge": [{"$ref": "known"}, {"y": {"$type": "integer"}}]}, {"x": 1, "y": 2}),
]


@pytest.mark.parametrize(("expected", "actual"), FITS)
def test_lets_through(expected: Any, actual: Any) -> None:
    assert differences(expected, actual, known={"x": 1}) == []


DIFFERS: list[tuple[Any, Any, str]] = [
    ({"a": 1}, {}, "body: missing field 'a'"),
    ({}, {"a": 1}, "body: unexpected field 'a': 1"),
    ({"a": {"b": 1}}, {"a": {"b": 2}}, "body.a.b: expected 1, got 2"),
    ([1, 2], [1, 3], "body.1: expected 2, got 3"),
    ([1], [1, 2], "body: expected [1], got [1, 2]"),
    (1, "1", 'body: expected 1, got "1"'),
    (1, True, "body: expected 1, got true"),
    (1, 1.0, "body: expected 1, got 1.0"),
    (False, 0, "body: expected false, got 0"),
    (None, False, "body: expected null, got false"),
    ({}, [], "body: expected {}, got []"),
    ({"a": {"$any": True}}, {}, "body: missing field 'a'"),
    ({"$type": "timestamp"}, "2026-11-03T10:00:00Z", "body: expected a value of type timestamp"),
    ({"$type": "timestamp"}, "2026-11-03T10:00:00.000000+00:00", "body: expected a value of type timestamp"),
    ({"$type": "id"}, "", "body: expected a value of type id"),
    ({"$type": "text"}, " ", "body: expected a value of type text"),
    ({"$type": "integer"}, True, "body: expected a value of type integer"),
    ({"$capture": "x", "$type": "integer"}, "1", "body: expected a value of type integer"),
    ({"$has": {"a": 1}}, {"b": 1}, "body: missing field 'a'"),
    ({"$has": {"a": 1}}, None, "body: expected an object, got null"),
    ({"$absent": ["a"]}, {"a": None}, "body: unexpected field 'a': null"),
    ({"$one_of": [1, 2]}, 3, "body: none of 2 forms fits:"),
    ({"$not": {"$ref": "known"}}, {"x": 1}, 'body: expected anything but {"x": 1}'),
    ({"$ref": "known"}, {"x": 1, "y": 1}, "body: unexpected field 'y': 1"),
    ({"$merge": [{"$ref": "known"}, {"x": 2}]}, {"x": 1}, "body.x: expected 2, got 1"),
]


@pytest.mark.parametrize(("expected", "actual", "said"), DIFFERS)
def test_says_what_differs(expected: Any, actual: Any, said: str) -> None:
    found = differences(expected, actual, known={"x": 1})

    assert found
    assert found[0].startswith(said)


@pytest.mark.parametrize("expected", [{"$nonsense": 1}, {"$type": "date"}, {"$ref": "nobody"}])
def test_refuses_a_matcher_it_does_not_know(expected: Any) -> None:
    with pytest.raises(VectorError):
        differences(expected, 1)


def test_captures_from_an_answer_and_compares_with_it_at_once() -> None:
    comparison = Comparison.begin(Variables({}))

    comparison.compare([{"$capture": "id", "$type": "id"}, {"$ref": "id"}], ["a", "b"], "body")

    assert comparison.captured == {"id": "a"}
    assert comparison.differences == ['body.1: expected "a", got "b"']


def test_captures_only_from_the_form_that_fits() -> None:
    comparison = Comparison.begin(Variables({}))

    comparison.compare({"$one_of": [{"a": {"$capture": "x"}, "b": 1}, {"a": {"$capture": "y"}}]}, {"a": 1}, "body")

    assert (comparison.differences, comparison.captured) == ([], {"y": 1})


# -- the files and their page ------------------------------------------------------------------------------------------

CASE_IDS = [case.id for path in VECTORS.glob("*.json") for case in read_cases(path)]
COVERED = [
    line.split("|")[1:3] for line in PAGE.read_text().partition("## What is covered")[2].splitlines() if "|" in line
]
NAMED = [name for _, cases in COVERED for name in re.findall(r"`([^`]+)`", cases)]


def test_ids_are_unique_over_all_files() -> None:
    assert len(CASE_IDS) == len(set(CASE_IDS))


def test_the_page_tells_of_every_row() -> None:
    rows = {row.strip() for row, _ in COVERED}

    assert rows >= {f"N{n}" for n in range(1, 19)} | {f"C{n}" for n in range(1, 27)}


@pytest.mark.parametrize("name", sorted(set(NAMED)))
def test_the_page_names_cases_that_there_are(name: str) -> None:
    assert [case_id for case_id in CASE_IDS if re.match(rf"{re.escape(name)}(?!\d)", case_id)]


@pytest.mark.parametrize("row", sorted({re.split("[-/]", case_id)[0] for case_id in CASE_IDS}))
def test_the_page_names_every_row_that_has_cases(row: str) -> None:
    listed = {*NAMED, *(f"R{n}" for n in range(1, 14)), *(f"I{n}" for n in range(1, 8))}

    assert [name for name in listed if name.rstrip("-") == row]


def test_files_use_every_scene_variant_and_variable_they_define() -> None:
    for path in VECTORS.glob("*.json"):
        text = path.read_text()
        file = json.loads(text)
        for name in [name for kind in ("variables", "variants", "scenes") for name in file.get(kind, {})]:
            assert text.count(f'"{name}"') > 1, f"{path.name} defines {name} and does not use it"
