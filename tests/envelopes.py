"""What every answer of the API has (docs/protocol/worker-protocol.md 1.6, docs/protocol/control-plane.md 1.3 and 1.4).

`tests/conftest.py` has every exchange of every test checked by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.client import Response

WORKER_HEADER = "x-durable-workflow-protocol-version"
CONTROL_HEADER = "x-durable-workflow-control-plane-version"
# Answered without a version: they are asked before a client knows one.
UNVERSIONED = ("/api/health", "/api/ready", "/api/cluster/info")


def check_envelope(method: str, path: str, response: Response) -> None:
    """Raise AssertionError if an answer lacks what its plane promises."""
    if f"{path}/".startswith("/api/worker/"):
        check_worker_envelope(response)
    elif f"{path}/".startswith("/api/") and path not in UNVERSIONED:
        check_control_envelope(response, is_workflow_route=path.startswith("/api/workflows"))


def check_worker_envelope(response: Response) -> None:
    from wire.capabilities import server_capabilities

    assert response.headers["content-type"] == "application/json", response.headers
    assert response.headers[WORKER_HEADER] == "1.20"
    assert CONTROL_HEADER not in response.headers
    assert response.body["protocol_version"] == "1.20"
    assert response.body["server_capabilities"] == server_capabilities()
    assert "control_plane" not in response.body


def check_control_envelope(response: Response, *, is_workflow_route: bool) -> None:
    assert response.headers["content-type"] == "application/json", response.headers
    assert response.headers[CONTROL_HEADER] == "2"
    assert WORKER_HEADER not in response.headers
    assert not {"protocol_version", "server_capabilities"} & response.body.keys()
    assert not {"query", "signal", "update", "wait_policy"} & response.body.keys()
    if response.status >= 400:
        assert isinstance(response.body["message"], str)
        assert isinstance(response.body["reason"], str)
    if is_workflow_route and response.body.get("reason") != "not_found":
        check_control_block(response)


def check_control_block(response: Response) -> None:
    """The block's contract holds for this very answer, as strict clients check it."""
    body, block = response.body, response.body["control_plane"]
    assert (block["schema"], block["version"]) == ("durable-workflow.v2.control-plane-response", 1)
    assert isinstance(block["operation"], str)
    contract = block["contract"]
    assert contract["schema"] == "durable-workflow.v2.control-plane-response.contract"
    assert contract["version"] == 1
    assert contract["legacy_field_policy"] == "reject_non_canonical"
    for name in contract["required_fields"]:
        assert isinstance(block[name], str), name
        assert block[name], name
    if response.status < 300:
        for name in contract["success_fields"]:
            assert name in block, name
    for name in ("workflow_id", "run_id", "update_id"):
        if block.get(name) and body.get(name):
            assert block[name] == body[name], name
