"""Every route of the URL map: its roles, its plane's envelope, its methods, and what is no route (wire/roles.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from django.urls import URLPattern, URLResolver

import control_api.urls
import server.urls
import worker_api.urls
from tests.client import ApiClient, undocumented
from tests.protocol.reports import register
from wire.roles import ANY_ROLE, OPEN, OPERATOR, ROUTE_ROLES, WORKER
from wire.tokens import create_token
from wire.views import ApiView, ControlView, WorkerView

EXAMPLES = {
    "worker_id": "w-1", "task_id": "01TASK", "workflow_id": "order-1", "run_id": "01RUN",
}  # fmt: skip
# Pages that describe the API, served by the stock handler to anybody (docs/operations.md).
PAGES = {"docs", "docs-worker", "docs-control", "schema-worker", "schema-control"}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE")


def walk(patterns: Any, prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    for entry in patterns:
        path = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from walk(entry.url_patterns, path)
        else:
            yield path, entry


def views() -> list[tuple[str, type[ApiView]]]:
    """(path, view class) of every API route, fallback routes apart."""
    found = []
    for path, entry in walk(server.urls.urlpatterns):
        view = getattr(entry.callback, "view_class", None) or getattr(entry.callback, "cls", None)
        if isinstance(view, type) and issubclass(view, ApiView) and view.route != "unknown-route":
            found.append(("/" + path, view))
    return found


def concrete(path: str) -> str:
    """The path with something in every place."""
    for name, value in EXAMPLES.items():
        path = path.replace(f"<str:{name}>", value).replace(f"<path:{name}>", value)
    assert "<" not in path, path
    return path


def methods(view: type[ApiView]) -> list[str]:
    taken = [method for method in METHODS if hasattr(view, method.lower()) and method != "OPTIONS"]
    return [*taken, "HEAD"] if "GET" in taken else taken


ROUTES = views()
CALLS = [(method, concrete(path), view) for path, view in ROUTES for method in methods(view)]
IDS = [f"{method} {path}" for method, path, _ in CALLS]


def test_walks_all_three_url_maps() -> None:
    named = {view.route for _, view in ROUTES}

    assert len(named) >= 27
    assert {name for _, entry in walk(worker_api.urls.urlpatterns) if (name := route_of(entry))} <= named
    assert {name for _, entry in walk(control_api.urls.urlpatterns) if (name := route_of(entry))} <= named


def route_of(entry: URLPattern) -> str | None:
    view = getattr(entry.callback, "view_class", None) or getattr(entry.callback, "cls", None)
    return None if view is None or view.route == "unknown-route" else view.route


def test_gives_every_route_a_row_and_every_row_a_route() -> None:
    assert {view.route for _, view in ROUTES} == set(ROUTE_ROLES) - {"unknown-route"}


def test_serves_nothing_below_api_but_views_of_its_own_and_its_documents() -> None:
    strangers = {
        entry.name
        for path, entry in walk(server.urls.urlpatterns)
        if path.startswith("api") and getattr(entry.callback, "cls", None) not in {view for _, view in ROUTES}
        and not issubclass(getattr(entry.callback, "cls", object), ApiView)
    }  # fmt: skip

    assert strangers == PAGES


def test_opens_the_worker_plane_to_workers_alone() -> None:
    for path, view in ROUTES:
        expected = {
            "/api/worker/": WORKER,
            "/api/workflows": OPERATOR,
            "/api/cluster": ANY_ROLE,
            "/api/health": OPEN,
            "/api/ready": OPEN,
            "/metrics": OPERATOR,
        }
        roles = next(roles for prefix, roles in expected.items() if path.startswith(prefix))
        assert ROUTE_ROLES[view.route] == roles, path


@pytest.fixture
def secrets(api: ApiClient) -> dict[str, str]:
    return {role: create_token(role, roles=[role], namespaces=["*"])[1] for role in ("worker", "operator", "admin")}


def test_refuses_every_route_to_a_token_of_the_wrong_role(api: ApiClient, secrets: dict[str, str]) -> None:
    for method, path, view in CALLS:
        allowed = ROUTE_ROLES[view.route]
        for role, secret in secrets.items():
            body = {} if method == "POST" else None
            answer = api.request(method, path, body, token=secret)
            is_refused = answer.status == 403
            assert is_refused == (bool(allowed) and role not in allowed), f"{role}: {method} {path} {answer.status}"
            if is_refused:
                assert answer.body["allowed_roles"] == sorted(allowed)
                assert answer.body["role"] == role


@pytest.mark.parametrize("token", [None, "wrong"])
def test_refuses_every_route_without_a_token(api: ApiClient, token: str | None) -> None:
    for method, path, view in CALLS:
        answer = api.request(method, path, {} if method == "POST" else None, token=token)
        assert (answer.status == 401) == bool(ROUTE_ROLES[view.route]), f"{method} {path}: {answer.status}"


# Both planes' envelopes and headers are checked for every exchange of every test (tests/envelopes.py); here each route
# is called, whatever it says.
@pytest.mark.parametrize(("method", "path", "view"), CALLS, ids=IDS)
def test_answers_without_a_fault(api: ApiClient, method: str, path: str, view: type[ApiView]) -> None:
    response = api.request(method, path, {} if method == "POST" else None)

    assert response.status < 500
    expected = WorkerView if path.startswith("/api/worker/") else ControlView if "workflows" in path else ApiView
    assert issubclass(view, expected)


@pytest.mark.parametrize("method", METHODS)
def test_refuses_other_methods_in_the_planes_envelope(api: ApiClient, method: str) -> None:
    for path, view in ROUTES:
        if method not in methods(view):
            response = api.request(method, concrete(path))
            assert (response.status, response.body["reason"]) == (405, "method_not_allowed"), path
            assert isinstance(response.body["message"], str)


@pytest.mark.parametrize(
    "path",
    [
        "/api", "/api/", "/api/nothing", "/api/workflows/", "/api/workflows/order-1/", "/api/workflows/order-1/nothing",
        "/api/workflows/order-1/runs/01RUN/nothing", "/api/workflows/order-1/signal/go", "/api/cluster", "/api/health/",
        "/api/worker", "/api/worker/", "/api/worker/nothing", "/api/worker/workflow-tasks/01TASK",
        "/api/worker/workflow-tasks/01TASK/nothing", "/api/worker/query-tasks/poll", "/api/worker/register/",
        "/api/worker/workflow-tasks//complete", "/api/worker/workflow-tasks/a/b/complete", "/api/workerx",
        "/api/worker/registrations/", "/api/%00", "/api/workflows/a/b/c/d/e",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT"])
def test_answers_json_where_there_is_no_route(api: ApiClient, method: str, path: str) -> None:
    with undocumented():
        response = api.request(method, path, token=None)

    assert response.status == 404
    assert response.plain == {"reason": "not_found", "message": "There is no such route."}
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("worker_id", ["worker / one", "a/b", "a/deregister/b", "é", "w-1?x=1", "100%"])
def test_takes_any_character_in_a_workers_id(api: ApiClient, worker_id: str) -> None:
    token = register(api, worker_id=worker_id).body["registration_token"]

    answer = api.post(
        f"/api/worker/registrations/{quote(worker_id, safe='')}/deregister", {"registration_token": token}
    )

    assert (answer.status, answer.body["worker_id"]) == (200, worker_id)
