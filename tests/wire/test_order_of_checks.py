"""The fixed order of checks: nobody learns what a later check knows (worker-protocol.md 1.5, control-plane.md 1.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from durable.models import Namespace
from tests import factories as make
from tests.client import TOKEN, ApiClient, Response
from tests.snapshot import nothing_recorded
from wire.tokens import create_token

WORKER = "/api/worker/workflow-tasks/01UNKNOWN/complete"
CONTROL = "/api/workflows/nobody/cancel"


@dataclass
class Request:
    """A request with everything wrong that can be; each step of a test puts one thing right."""

    path: str
    raw: bytes = b"x" * 2000
    token: str | None = "wrong"
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "text/plain", "X-Namespace": "nowhere"})

    def send(self, api: ApiClient) -> Response:
        return api.post(self.path, raw=self.raw, token=self.token, headers=self.headers)


Fix = Callable[[Request], None]


def _body(raw: bytes) -> Fix:
    return lambda request: setattr(request, "raw", raw)


def _token(token: str | None) -> Fix:
    return lambda request: setattr(request, "token", token)


def _header(**headers: str) -> Fix:
    return lambda request: request.headers.update({name.replace("_", "-"): text for name, text in headers.items()})


VERSION = {WORKER: "X-Durable-Workflow-Protocol-Version", CONTROL: "X-Durable-Workflow-Control-Plane-Version"}
MISSING = {WORKER: "missing_protocol_version", CONTROL: "missing_control_plane_version"}
SERVED = {WORKER: "1.20", CONTROL: "2"}
WRONG_ROLE = {WORKER: "operator", CONTROL: "worker"}
BAD_FIELDS = {WORKER: b'{"lease_owner": 7}', CONTROL: b'{"reason": 7}'}
GOOD_FIELDS = {
    WORKER: b'{"lease_owner": "w-1", "workflow_task_attempt": 1, "commands": []}',
    CONTROL: b'{"reason": "because"}',
}
GUARD = {WORKER: "task_not_found", CONTROL: "instance_not_found"}


@pytest.mark.parametrize("path", [WORKER, CONTROL])
def test_checks_in_the_documented_order(api: ApiClient, override_durable: Any, path: str) -> None:
    override_durable(MAX_PAYLOAD_BYTES=1000, BODY_SLACK_BYTES=0)
    _, wrong_role = create_token("wrong role", roles=[WRONG_ROLE[path]], namespaces=["*"])
    request = Request(path)
    request.headers[VERSION[path]] = ""
    steps: list[tuple[str, Fix]] = [
        ("payload_too_large", _body(b"{")),
        ("unsupported_media_type", _header(Content_Type="application/json")),
        ("malformed_json", _body(BAD_FIELDS[path])),
        ("unauthorized", _token(wrong_role)),
        ("forbidden", _token(TOKEN)),
        (MISSING[path], lambda request: request.headers.update({VERSION[path]: SERVED[path]})),
        ("namespace_not_found", _header(X_Namespace="default")),
        ("validation_failed", _body(GOOD_FIELDS[path])),
        (GUARD[path], lambda request: None),
    ]

    found = []
    for _, fix in steps:
        found.append(request.send(api).body["reason"])
        fix(request)

    assert found == [reason for reason, _ in steps]


@pytest.mark.parametrize("token", [None, "wrong", "dw_unknown_secret"])
@pytest.mark.parametrize("path", [WORKER, CONTROL])
@pytest.mark.parametrize("namespace", ["default", "nowhere"])
@pytest.mark.parametrize("version", ["", "0", "1.20", "2"])
def test_tells_a_stranger_nothing(api: ApiClient, path: str, token: str | None, namespace: str, version: str) -> None:
    headers = {VERSION[path]: version, "X-Namespace": namespace}

    response = api.post(path, {"reason": 7}, token=token, headers=headers)

    body = {key: value for key, value in response.plain.items() if key != "control_plane"}
    assert response.status == 401
    assert body == {"reason": "unauthorized", "message": "Invalid or missing authentication token."}


@pytest.mark.parametrize("path", [WORKER, CONTROL])
@pytest.mark.parametrize("namespace", ["default", "nowhere"])
def test_tells_a_wrong_role_nothing_about_namespaces(api: ApiClient, path: str, namespace: str) -> None:
    _, secret = create_token("wrong role", roles=[WRONG_ROLE[path]], namespaces=["default"])

    response = api.post(path, token=secret, headers={"X-Namespace": namespace, VERSION[path]: ""})

    assert (response.status, response.body["reason"]) == (403, "forbidden")


@pytest.mark.parametrize("path", [WORKER, CONTROL])
def test_answers_a_namespace_it_may_not_use_like_one_that_is_not_there(api: ApiClient, path: str) -> None:
    Namespace.objects.create(name="theirs")
    role = "worker" if path == WORKER else "operator"
    _, secret = create_token("ours", roles=[role], namespaces=["default"])

    theirs, nobodys = (api.post(path, token=secret, headers={"X-Namespace": name}) for name in ("theirs", "nobodys"))

    assert theirs.status == nobodys.status == 404
    assert theirs.raw.replace(b"theirs", b"nobodys") == nobodys.raw


def test_refuses_a_wrong_method_only_to_who_may_call(api: ApiClient) -> None:
    assert api.delete("/api/workflows", token="wrong").status == 401
    assert api.delete("/api/workflows").body["reason"] == "method_not_allowed"


def test_does_nothing_of_what_it_refuses(populated: ApiClient) -> None:
    lease_body = {"lease_owner": "w-1", "workflow_task_attempt": 1, "commands": [make.finish()]}
    make.register("w-1")
    make.start("order-1")
    path = f"/api/worker/workflow-tasks/{make.lease_workflow().task_id}/complete"

    with nothing_recorded():
        assert populated.post(path, lease_body, token="wrong").status == 401
        assert populated.post(path, lease_body, headers={"X-Namespace": "nowhere"}).status == 404
        assert populated.post(path, lease_body, headers={VERSION[WORKER]: "2.0"}).status == 400
        assert populated.post(path, lease_body, headers={"Content-Type": "text/plain"}).status == 415
