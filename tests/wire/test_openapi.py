"""The API documents say what the server does: every route, every answer, every reason, and nothing left open."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.urls import URLPattern, get_resolver
from drf_spectacular.validation import validate_schema
from jsonschema import Draft202012Validator
from rest_framework.serializers import Field

from control_api.views.discovery import UnknownRouteView, UnknownWorkerRouteView, cluster_info
from durable.commands.registry import supported_types
from durable.refusals import Reason, Refusal
from server import schemas
from server.management.commands import write_openapi
from tests.openapi import check_exchange, document, matches, resolve
from wire.control_block import _PROJECTED
from wire.errors import STATUS_OF_KIND
from wire.roles import OPEN, ROUTE_ROLES
from wire.schema import UndescribedError
from wire.views import ApiView
from worker_api.command_bodies import COMMANDS
from worker_api.requests import RegisterRequest
from worker_api.views.workers import RegisterView

ROOT = Path(__file__).resolve().parent.parent.parent
PLANES = ("worker", "control")

# Keys whose values are a caller's or a worker's own: the only places where an object may be of any form.
FREE_IN_ANSWERS = {"payload", "memo", "search_attributes", "capability_manifest", "input", "output"}
FREE_IN_REQUESTS = {
    "input",
    "memo",
    "visibility_labels",
    "observability_context",
    "capability_manifest",
    "workflow_command_contracts",
    "process_metrics",
    "details",
    "diagnostics",
    # Whatever is no valid poll is ignored.
    "activity_poll",
    "workflow_poll",
}

# Never answered as refusals: a draining worker gets 200, and a busy poll id is looked at again.
NOT_ANSWERED = {Reason.WORKER_DRAINING, Reason.POLL_REQUEST_BUSY}

# A heartbeat does not find the worker; a poll calls the same thing a failed precondition.
OTHER_STATUSES = {Reason.WORKER_NOT_REGISTERED: {"404"}}


# -- helpers -----------------------------------------------------------------------------------------------------------


def operations(plane: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document(plane)["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def answers(plane: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(operation id, status, body schema with references resolved) of everything that can be answered as JSON."""
    for _, _, operation in operations(plane):
        for status, response in operation["responses"].items():
            schema = resolve(plane, response)["content"].get("application/json", {}).get("schema")
            for part in [] if schema is None else schema.get("oneOf", [schema]):
                yield operation["operationId"], status, resolve(plane, part)


def components(plane: str) -> dict[str, Any]:
    found: dict[str, Any] = document(plane)["components"]["schemas"]
    return found


def references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for part in schema.values():
            yield from references(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from references(part)


def reachable(plane: str, schemas: Any) -> dict[str, Any]:
    """The components that some schemas refer to, also through others."""
    found: dict[str, Any] = {}
    waiting = list(references(schemas))
    while waiting:
        name = waiting.pop()
        if name not in found and name in components(plane):
            found[name] = components(plane)[name]
            waiting += references(found[name])
    return found


def answer_components(plane: str) -> dict[str, Any]:
    responses = [operation["responses"] for _, _, operation in operations(plane)]
    return reachable(plane, [responses, document(plane)["components"]["responses"]])


def request_components(plane: str) -> dict[str, Any]:
    return reachable(plane, [operation.get("requestBody") for _, _, operation in operations(plane)])


def free_keys(schema: Any, key: str) -> Iterator[str]:
    """The keys below a schema at which anything may stand."""
    if not isinstance(schema, dict):
        return
    types = schema.get("type", [])
    may_be_object = "object" in ([types] if isinstance(types, str) else types)
    says_nothing = not {"type", "$ref", "oneOf", "anyOf", "allOf", "const", "enum"} & schema.keys()
    further = schema.get("additionalProperties")
    if says_nothing or (may_be_object and (further in (True, {}) or (further is None and "properties" not in schema))):
        yield key
    for name, part in schema.get("properties", {}).items():
        yield from free_keys(part, name)
    for part in [schema.get("items"), schema.get("additionalProperties"), *schema.get("oneOf", [])]:
        yield from free_keys(part, key)
    for part in [*schema.get("anyOf", []), *schema.get("allOf", [])]:
        yield from free_keys(part, key)


def fixed_reasons(plane: str) -> dict[str, set[str]]:
    """Every reason of a refusal, with the statuses it stands under."""
    found: dict[str, set[str]] = {}
    for _, status, body in answers(plane):
        reason = body["properties"].get("reason", {})
        for value in [reason["const"]] if "const" in reason else reason.get("enum", []):
            if int(status) >= 400:
                found.setdefault(value, set()).add(status)
    return found


# -- the files ---------------------------------------------------------------------------------------------------------


def test_files_are_what_the_code_says() -> None:
    call_command("write_openapi", "--check")


@pytest.mark.usefixtures("forgotten_documents")
def test_fails_for_a_method_that_does_not_say_what_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RegisterView, "answers", {})

    with pytest.raises(UndescribedError, match=r"RegisterView.answers does not say what POST answers"):
        call_command("write_openapi", "--check")


@pytest.mark.usefixtures("forgotten_documents")
def test_fails_for_a_field_that_drf_spectacular_has_to_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    class Guessed(RegisterRequest):
        unknown = Field(required=False)  # type: ignore[var-annotated]

    monkeypatch.setattr(RegisterView, "request_serializer", Guessed)

    with pytest.raises(UndescribedError, match="could not resolve serializer field"):
        call_command("write_openapi", "--check")


@pytest.fixture
def forgotten_documents() -> Iterator[None]:
    """The documents are built anew in this test, and after it."""
    schemas.document.cache_clear()
    yield
    schemas.document.cache_clear()


def test_check_fails_and_tells_what_drifted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("worker-protocol", "control-plane"):
        file = f"{name}-api.openapi.yaml"
        text = (write_openapi.FOLDER / file).read_text()
        (tmp_path / file).write_text(text.replace("operationId: worker_register", "operationId: worker_enrol"))
    monkeypatch.setattr(write_openapi, "FOLDER", tmp_path)

    with pytest.raises(CommandError) as failure:
        call_command("write_openapi", "--check")

    assert "+      operationId: worker_register" in str(failure.value)
    assert "control-plane" not in str(failure.value)
    assert "worker_enrol" in (tmp_path / "worker-protocol-api.openapi.yaml").read_text()


@pytest.mark.parametrize("plane", PLANES)
def test_documents_are_valid_openapi(plane: str) -> None:
    validate_schema(document(plane))
    for schema in components(plane).values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("plane", PLANES)
def test_every_component_is_used_and_every_reference_resolves(plane: str) -> None:
    used = answer_components(plane) | request_components(plane)

    assert sorted(used) == sorted(components(plane))
    assert set(references(document(plane))) <= set(components(plane)) | set(document(plane)["components"]["responses"])


@pytest.mark.parametrize("plane", PLANES)
def test_every_component_and_key_is_explained(plane: str) -> None:
    silent = []
    for name, schema in components(plane).items():
        silent += [] if schema.get("description", "").strip() else [name]
        for key, part in schema.get("properties", {}).items():
            silent += [] if part.get("description") or next(references(part), None) else [f"{name}.{key}"]

    for path, _, operation in operations(plane):
        silent += [f"{path} {part['name']}" for part in operation.get("parameters", []) if not part.get("description")]

    assert silent == []
    assert not [name for name, schema in components(plane).items() if "exactly these keys" in schema["description"]]


# -- routes ------------------------------------------------------------------------------------------------------------


def views() -> Iterator[tuple[str, type[ApiView]]]:
    """(path with `{names}`, view) of every route of the URL map that is ours."""

    def walk(patterns: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        for pattern in patterns:
            path = prefix + str(pattern.pattern)
            if isinstance(pattern, URLPattern):
                yield path, getattr(pattern.callback, "cls", None)
            else:
                yield from walk(pattern.url_patterns, path)

    for path, view in walk(get_resolver().url_patterns, "/"):
        if isinstance(view, type) and issubclass(view, ApiView):
            yield re.sub(r"<\w+:(\w+)>", r"{\1}", path), view


def test_every_route_is_described_with_its_methods() -> None:
    described = {(path, method) for plane in PLANES for path, method, _ in operations(plane)}

    served = set()
    for path, view in views():
        if view not in (UnknownRouteView, UnknownWorkerRouteView):
            methods = {method for method in ("get", "post", "put", "patch", "delete") if hasattr(view, method)}
            assert set(view.answers) == methods, view
            served |= {(path, method) for method in methods}
    assert described == served


def test_every_operation_is_named_after_its_route_and_says_who_may_use_it() -> None:
    routes = {path: view.route for path, view in views()}
    ids = []
    for plane in PLANES:
        for path, _, operation in operations(plane):
            roles = ROUTE_ROLES[routes[path]]
            ids.append(operation["operationId"])
            assert operation["operationId"].startswith(routes[path].replace("-", "_"))
            assert operation["x-roles"] == sorted(roles)
            assert all(f"`{role}`" in operation["description"] for role in roles)
            assert bool(operation.get("security")) == (roles is not OPEN)
            assert operation["summary"]
            assert not operation["summary"].endswith(".")
    assert len(set(ids)) == len(ids)


def test_every_operation_answers_what_the_base_view_may_answer() -> None:
    always = {"400", "405", "413", "415", "500"}
    for plane in PLANES:
        for path, method, operation in operations(plane):
            expected = always | ({"401", "403", "503"} if operation["x-roles"] else set())
            expected |= {"422"} if "requestBody" in operation else set()
            assert expected <= set(operation["responses"]), (method, path)


def test_versions_and_namespace_are_described_as_headers() -> None:
    for plane, header in (
        ("worker", "X-Durable-Workflow-Protocol-Version"),
        ("control", "X-Durable-Workflow-Control-Plane-Version"),
    ):
        for path, _, operation in operations(plane):
            if not path.startswith(("/api/worker", "/api/workflows")):
                continue
            sent = {part["name"]: part for part in operation["parameters"] if part["in"] == "header"}
            assert sent[header]["required"]
            assert "X-Namespace" in sent
            assert all(header in resolve(plane, answer)["headers"] for answer in operation["responses"].values())
        assert header in document(plane)["components"]["responses"]["UnknownRoute"]["headers"]


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plane", PLANES)
def test_answers_forbid_keys_that_are_not_described(plane: str) -> None:
    closed = {
        name for name, schema in answer_components(plane).items() if schema.get("additionalProperties") is not False
    }

    assert closed == set()


@pytest.mark.parametrize("plane", PLANES)
def test_only_payloads_are_of_any_form(plane: str) -> None:
    in_answers = {key for name, schema in answer_components(plane).items() for key in free_keys(schema, name)}
    in_requests = {key for name, schema in request_components(plane).items() for key in free_keys(schema, name)}

    assert in_answers <= FREE_IN_ANSWERS
    assert in_requests <= FREE_IN_REQUESTS


def test_shows_receipts_by_examples_that_are_true() -> None:
    components = document("worker")["components"]["schemas"]
    shown = {name: schema["examples"] for name, schema in components.items() if "examples" in schema}

    assert set(shown) == {
        "WorkflowReportNotLeased",
        "WorkflowReportRunClosed",
        "WorkflowTaskCompleted",
        "WorkflowTaskCompletedBefore",
        "ActivityTaskCompleted",
        "ActivityTaskCompletedBefore",
    }
    for name, [example] in shown.items():
        assert matches("worker", components[name], example), name


@pytest.mark.parametrize("plane", PLANES)
def test_alternatives_of_one_status_exclude_each_other(plane: str) -> None:
    """Pairs of closed bodies differ by a fixed value, or by a key that one needs and the other does not have."""
    unclear = []
    for _, _, operation in operations(plane):
        for status, response in operation["responses"].items():
            schema = resolve(plane, response)["content"].get("application/json", {}).get("schema", {})
            parts = [resolve(plane, part) for part in schema.get("oneOf", [])]
            pairs = itertools.combinations(parts, 2)
            unclear += [(operation["operationId"], status) for one, other in pairs if not exclude(one, other)]
    assert unclear == []


def exclude(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if set(one["required"]) - set(other["properties"]) or set(other["required"]) - set(one["properties"]):
        return True
    return any(differ(one["properties"][key], other["properties"][key]) for key in one["required"])


def differ(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether no value fits both: other fixed values, or other types."""
    if "const" in one and "const" in other:
        return bool(one["const"] != other["const"])
    kinds = [{part["type"]} if isinstance(part.get("type"), str) else set() for part in (one, other)]
    return bool(kinds[0] and kinds[1] and kinds[0] != kinds[1]) or (
        "$ref" in one and "$ref" in other and one["$ref"] != other["$ref"]
    )


def test_every_reason_is_described_under_its_status() -> None:
    described: dict[str, set[str]] = {}
    for plane in PLANES:
        for reason, statuses in fixed_reasons(plane).items():
            described.setdefault(reason, set()).update(statuses)

    for reason in set(Reason) - NOT_ANSWERED:
        usual = {str(STATUS_OF_KIND[Refusal(reason, "").kind])}
        assert described.get(reason) == usual | OTHER_STATUSES.get(reason, set()), reason
    assert not NOT_ANSWERED & described.keys()


@pytest.mark.parametrize("reason", sorted({"backend_lock_pressure", "backend_unavailable", "server_error"}))
def test_every_fault_is_described(reason: str) -> None:
    source = (ROOT / "wire" / "errors.py").read_text()

    assert f'"{reason}"' in source
    for plane in PLANES:
        assert fixed_reasons(plane)[reason] == ({"500"} if reason == "server_error" else {"503"})


def test_every_reason_of_the_transport_is_described() -> None:
    described = {reason for plane in PLANES for reason in fixed_reasons(plane)} | {"not_found"}

    assert transport_reasons() <= described
    assert {"unauthorized", "missing_control_plane_version", "not_found"} <= transport_reasons()


def transport_reasons() -> set[str]:
    """The second argument of every `HttpError(…)` in the code, also by way of a variable."""
    found: set[str] = set()
    for package in ("wire", "worker_api", "control_api"):
        for file in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(file.read_text())
            for function in ast.walk(tree):
                if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    found |= set(reasons_in(function))
    return found


def reasons_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    assigned = {
        target.id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "HttpError":
            argument = call.args[1]
            value = assigned[argument.id] if isinstance(argument, ast.Name) else argument
            branches = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            for branch in branches:
                assert isinstance(branch, ast.Constant), ast.dump(call)
                yield str(branch.value)


def test_the_block_has_every_key_that_it_copies() -> None:
    block = set(components("control")["ControlPlaneBlock"]["properties"])
    for operation, _, body in answers("control"):
        if "control_plane" in body["properties"]:
            assert set(body["properties"]) & _PROJECTED <= block, operation


# -- requests ----------------------------------------------------------------------------------------------------------


def test_every_command_that_the_server_takes_is_described() -> None:
    assert sorted(COMMANDS) == sorted(supported_types())
    for name, body in COMMANDS.items():
        assert components("worker")[body.__name__]["properties"]["type"]["const"] == name


@pytest.mark.parametrize("plane", PLANES)
def test_texts_of_requests_say_what_is_refused(plane: str) -> None:
    ids = [
        part
        for schema in request_components(plane).values()
        for part in schema.get("properties", {}).values()
        if "bytes of UTF-8" in part.get("description", "")
    ]

    assert ids
    assert all("Control characters are refused." in part["description"] and part["maxLength"] <= 255 for part in ids)


# -- checking exchanges ------------------------------------------------------------------------------------------------


def started(**changes: Any) -> dict[str, Any]:
    block = {"schema": "durable-workflow.v2.control-plane-response", "version": 1, "operation": "list"}
    legacy = {"query": "query_name", "signal": "signal_name", "update": "update_name", "wait_policy": "wait_for"}
    contract = {
        "schema": "durable-workflow.v2.control-plane-response.contract",
        "version": 1,
        "legacy_field_policy": "reject_non_canonical",
        "legacy_fields": legacy,
        "required_fields": [],
        "success_fields": [],
    }
    names = {"operation_name": None, "operation_name_field": None, "workflow_id": None}
    body = {"workflows": [], "workflow_count": 0, "next_page_token": None}
    return {**body, "control_plane": {**block, **names, "contract": contract}, **changes}


def test_takes_an_exchange_that_is_as_described() -> None:
    check_exchange("GET", "/api/workflows?page_size=1", 200, None, started())


def test_takes_discovery_as_it_is() -> None:
    check_exchange("GET", "/api/cluster/info", 200, None, cluster_info("default"))


def test_refuses_a_key_that_is_not_described() -> None:
    with pytest.raises(AssertionError, match=r"WorkflowList: the body: .*'surprise' was unexpected"):
        check_exchange("GET", "/api/workflows", 200, None, started(surprise=1))


def test_refuses_a_missing_key_and_a_wrong_type() -> None:
    body = started(workflow_count="none")
    del body["next_page_token"]

    with pytest.raises(AssertionError) as failure:
        check_exchange("GET", "/api/workflows", 200, None, body)

    assert "'next_page_token' is a required property" in str(failure.value)
    assert "workflow_count: 'none' is not of type 'integer'" in str(failure.value)


def test_names_the_alternative_that_was_probably_meant() -> None:
    body = {"reason": "not_found", "message": "There is no such route."}
    with pytest.raises(AssertionError, match=r"InstanceNotFound: the body: 'workflow_id' is a required property"):
        check_exchange("GET", "/api/workflows/w", 404, None, {**started(), **body, "reason": "instance_not_found"})


def test_refuses_a_status_a_method_and_a_route_that_are_not_described() -> None:
    with pytest.raises(AssertionError, match="described are 200, 400"):
        check_exchange("GET", "/api/workflows", 418, None, started())
    with pytest.raises(AssertionError, match="no such method"):
        check_exchange("PUT", "/api/workflows", 200, {}, started())
    with pytest.raises(AssertionError, match="no such route"):
        check_exchange("GET", "/api/nowhere", 200, None, {})


def test_takes_the_answer_to_an_unknown_route() -> None:
    check_exchange("GET", "/api/nowhere", 404, None, {"reason": "not_found", "message": "There is no such route."})


def test_refuses_a_request_that_was_taken_but_is_not_described() -> None:
    answer = {"task": None, "poll_status": "empty"}
    with pytest.raises(AssertionError, match="the request was taken, but is not as described"):
        check_exchange(
            "POST",
            "/api/worker/activity-tasks/poll",
            200,
            {"worker_id": "w"},
            {**answer, "protocol_version": "1.20", "server_capabilities": capabilities()},
        )


def capabilities() -> dict[str, Any]:
    found: dict[str, Any] = cluster_info("default")["worker_protocol"]["server_capabilities"]
    return found


def test_knows_worker_ids_with_slashes() -> None:
    body = {"worker_id": "a / b", "outcome": "deregistered", "recovered_workflow_task_count": 0}
    envelope = {"protocol_version": "1.20", "server_capabilities": capabilities()}

    check_exchange("DELETE", "/api/worker/registrations/a / b", 200, None, {**body, **envelope})
