"""Every refusal the server can give, produced by a request and compared in full (docs/protocol/refusals.md)."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from durable.refusals import _KINDS, Kind, Reason
from tests.client import ApiClient
from tests.protocol.cases import CASES
from tests.protocol.reports import without
from tests.snapshot import nothing_recorded
from wire.errors import STATUS_OF_KIND

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("wire", "worker_api", "control_api")
# Answers to faults, made by wire.errors itself.
FAULTS = {"backend_lock_pressure", "backend_unavailable", "server_error"}


def transport_reasons() -> set[str]:
    """Every reason that some line of the API gives to HttpError, read from the source."""
    found: set[str] = set()
    for package in PACKAGES:
        for source in (ROOT / package).rglob("*.py"):
            tree = ast.parse(source.read_text())
            calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _names(node.func) == "HttpError"]
            for call in calls:
                found |= _texts(call.args[1], tree)
    return found


def _names(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _texts(node: ast.expr, tree: ast.Module) -> set[str]:
    if isinstance(node, ast.Name):
        values = [
            assigned.value
            for assigned in ast.walk(tree)
            if isinstance(assigned, ast.Assign) and node.id in {_names(target) for target in assigned.targets}
        ]
        return {text for value in values for text in _texts(value, tree)}
    if isinstance(node, ast.IfExp):
        return _texts(node.body, tree) | _texts(node.orelse, tree)
    assert isinstance(node, ast.Constant), f"line {node.lineno}: a reason that this test cannot read"
    return {node.value}


TRANSPORT = sorted(transport_reasons() | FAULTS)
EVERY_REASON = [*(str(reason) for reason in Reason), *TRANSPORT]


@pytest.mark.parametrize("reason", EVERY_REASON)
def test_refuses_with_the_exact_answer(populated: ApiClient, override_durable: Any, reason: str) -> None:
    assert reason in CASES, f"no test produces {reason}"
    case = CASES[reason](populated, override_durable)

    with nothing_recorded():
        response = case.send()

    body = {key: value for key, value in response.plain.items() if key != "control_plane"}
    assert body == without({"reason": reason, **case.body})
    assert response.status == case.status


def test_has_no_case_for_a_reason_that_is_gone() -> None:
    assert sorted(CASES) == sorted(EVERY_REASON)


def test_finds_the_transport_reasons_in_the_source() -> None:
    assert {"unauthorized", "forbidden", "missing_control_plane_version", "not_found"} <= transport_reasons()


def test_gives_every_kind_of_refusal_a_status() -> None:
    assert STATUS_OF_KIND == {
        Kind.MALFORMED: 400,
        Kind.NOT_FOUND: 404,
        Kind.CONFLICT: 409,
        Kind.GONE: 410,
        Kind.NOT_REGISTERED: 412,
        Kind.INVALID_REQUEST: 422,
        Kind.UNAVAILABLE: 429,
        Kind.DRAINING: 200,
    }
    assert set(STATUS_OF_KIND) == set(Kind)
    assert set(_KINDS.values()) <= set(Kind)


@pytest.mark.parametrize("reason", EVERY_REASON)
def test_names_the_reason_in_the_documentation(reason: str) -> None:
    assert f"`{reason}`" in (ROOT / "docs/protocol/refusals.md").read_text()
