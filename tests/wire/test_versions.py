"""Version headers of both planes (docs/protocol/worker-protocol.md 1.3, docs/protocol/control-plane.md 1.2)."""

from __future__ import annotations

import pytest

from durable.models import WorkerRegistration
from tests import factories as make
from tests.client import ApiClient, Response
from tests.protocol.reports import register

WORKER = "X-Durable-Workflow-Protocol-Version"
CONTROL = "X-Durable-Workflow-Control-Plane-Version"


def heartbeat(api: ApiClient, version: str) -> Response:
    make.register("w-1")
    return api.post("/api/worker/heartbeat", {"worker_id": "w-1"}, headers={WORKER: version})


@pytest.mark.parametrize("version", ["1.20", "1.19", "1.0", "1.1", " 1.20 ", "1.020", "01.20", "1.19\t"])
def test_serves_every_minor_version_up_to_its_own(api: ApiClient, version: str) -> None:
    response = heartbeat(api, version)

    assert response.status == 200
    assert response.body["protocol_version"] == "1.20"
    assert response.headers[WORKER.lower()] == "1.20"


@pytest.mark.parametrize("version", ["", "  ", "\t"])
def test_refuses_a_worker_that_names_no_version(api: ApiClient, version: str) -> None:
    response = heartbeat(api, version)

    assert response.status == 400
    assert response.plain == {
        "reason": "missing_protocol_version",
        "error": "The protocol version header is missing.",
        "message": "The protocol version header is missing.",
        "supported_version": "1.20",
        "requested_version": None,
        "remediation": "Send X-Durable-Workflow-Protocol-Version: 1.20.",
    }


@pytest.mark.parametrize(
    "version",
    ["1.21", "2.0", "0.20", "2.20", "1", "1.", ".20", "1.20.0", "v1.20", "1,20", "1.x", "-1.20", "1.-1", "1. 20",
     "1.20\n1.19", "1.9999999", "9" * 400 + ".1", "1.\u00b2", "\u0661.\u0662"],
)  # fmt: skip
def test_refuses_a_version_it_does_not_serve(api: ApiClient, version: str) -> None:
    make.register("w-1")
    sent = version.encode().decode("latin1")

    response = api.post("/api/worker/heartbeat", {"worker_id": "w-1"}, headers={WORKER: sent})

    assert response.status == 400
    assert response.plain == {
        "reason": "unsupported_protocol_version",
        "error": "This protocol version is not served.",
        "message": "This protocol version is not served.",
        "supported_version": "1.20",
        "requested_version": sent[:255],
        "remediation": "Use a worker that speaks protocol 1.x up to 1.20.",
    }


def test_looks_at_the_version_before_the_body(api: ApiClient) -> None:
    response = api.post("/api/worker/register", {"worker_id": 7}, headers={WORKER: "3.0"})

    assert response.body["reason"] == "unsupported_protocol_version"
    assert not WorkerRegistration.objects.exists()


def test_remembers_the_version_a_worker_registered_with(api: ApiClient) -> None:
    assert register(api, version="1.19").status == 201

    assert WorkerRegistration.objects.get().protocol_version == "1.19"


@pytest.mark.parametrize("version", ["2", " 2 ", "2\t"])
def test_serves_the_control_plane_in_version_two(api: ApiClient, version: str) -> None:
    assert api.get("/api/workflows", headers={CONTROL: version}).status == 200


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("", "missing_control_plane_version"),
        (" ", "missing_control_plane_version"),
        *[(version, "unsupported_control_plane_version") for version in ("1", "3", "2.0", "02", "two", "1.20")],
    ],
)
def test_refuses_any_other_version_of_the_control_plane(api: ApiClient, version: str, reason: str) -> None:
    response = api.get("/api/workflows", headers={CONTROL: version})

    assert response.status == 400
    assert (response.body["reason"], response.body["supported_version"]) == (reason, "2")


def test_takes_no_other_planes_version(api: ApiClient) -> None:
    assert api.get("/api/workflows", headers={CONTROL: "", WORKER: "1.20"}).status == 400
    assert api.post("/api/worker/register", headers={WORKER: "", CONTROL: "2"}).status == 400


@pytest.mark.parametrize(
    "headers", [{}, {CONTROL: ""}, {CONTROL: "99"}, {WORKER: "99.0"}, {CONTROL: "", WORKER: "1.20"}]
)
def test_asks_no_version_for_discovery(api: ApiClient, headers: dict[str, str]) -> None:
    assert api.get("/api/cluster/info", headers=headers).status == 200


@pytest.mark.parametrize("path", ["/api/health", "/api/ready"])
def test_asks_no_version_and_no_token_for_health(api: ApiClient, path: str) -> None:
    assert api.get(path, token=None, headers={CONTROL: "", "X-Namespace": "nowhere"}).status == 200
