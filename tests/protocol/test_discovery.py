"""The discovery document has all that a worker demands before it registers (docs/protocol/worker-protocol.md 2)."""

from __future__ import annotations

from typing import Any

import pytest

from durable.commands.registry import supported_types
from tests import factories as make
from tests.client import ApiClient
from tests.protocol.closings import leased_task
from tests.protocol.reports import A_TIME, poll, register, send
from wire.capabilities import server_capabilities
from wire.tokens import create_token


@pytest.fixture
def document(api: ApiClient) -> dict[str, Any]:
    return api.get("/api/cluster/info").body


def at(document: dict[str, Any], path: str) -> Any:
    found: Any = document
    for part in path.split("."):
        found = found[part]
    return found


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("control_plane.version", "2"),
        ("control_plane.header", "X-Durable-Workflow-Control-Plane-Version"),
        ("control_plane.response_contract.schema", "durable-workflow.v2.control-plane-response"),
        ("control_plane.request_contract.schema", "durable-workflow.v2.control-plane-request.contract"),
        ("control_plane.request_contract.version", 1),
        ("worker_protocol.version", "1.20"),
        ("worker_protocol.server_capabilities.query_tasks", False),
        ("worker_protocol.server_capabilities.cooperative_cancellation", False),
        ("worker_protocol.server_capabilities.activity_lease_renewal", True),
        ("worker_protocol.server_capabilities.worker_deregistration_fencing.supported", True),
        (
            "worker_protocol.server_capabilities.worker_deregistration_fencing.schema",
            "durable-workflow.v2.worker-deregistration.v1",
        ),
        (
            "worker_protocol.server_capabilities.worker_deregistration_fencing.endpoint",
            "/worker/registrations/{workerId}/deregister",
        ),
        ("worker_protocol.server_capabilities.worker_deregistration_fencing.receipt_retention_seconds", 600),
        ("worker_protocol.server_capabilities.sticky_execution.supported", False),
        ("worker_protocol.server_capabilities.worker_session_verbs", []),
        ("worker_protocol.server_capabilities.worker_sessions.supported", False),
        ("worker_protocol.server_capabilities.workflow_memo_updates.supported", False),
        ("worker_protocol.server_capabilities.poll_status", True),
        ("worker_protocol.server_capabilities.workflow_task_poll_request_idempotency", True),
        ("worker_protocol.server_capabilities.long_poll_timeout", 30),
        ("worker_protocol.server_capabilities.history_page_size_default", 500),
        ("worker_protocol.server_capabilities.history_page_size_max", 1000),
        (
            "worker_protocol.server_capabilities.history_compression",
            {"supported_encodings": ["gzip", "deflate"], "compression_threshold": 50},
        ),
        ("auth_composition_contract.schema", "durable-workflow.v2.auth-composition.contract"),
        ("auth_composition_contract.version", 1),
        (
            "auth_composition_contract.precedence.connection_values",
            ["flag", "environment", "selected_profile", "default"],
        ),
        (
            "auth_composition_contract.precedence.profile_selection",
            ["flag_env", "DW_ENV", "current_profile", "default_profile"],
        ),
        (
            "auth_composition_contract.canonical_environment",
            {
                "server_url": "DURABLE_WORKFLOW_SERVER_URL",
                "namespace": "DURABLE_WORKFLOW_NAMESPACE",
                "auth_token": "DURABLE_WORKFLOW_AUTH_TOKEN",
                "tls_verify": "DURABLE_WORKFLOW_TLS_VERIFY",
                "profile": "DW_ENV",
            },
        ),
        (
            "auth_composition_contract.auth_material.token",
            {"status": "supported", "effective_config_value": "redacted"},
        ),
        ("auth_composition_contract.auth_material.mtls.status", "reserved"),
        ("auth_composition_contract.auth_material.signed_headers.status", "reserved"),
        ("payload_codec", "avro"),
        ("default_namespace", "default"),
        ("namespace", "default"),
        ("implementation", "durable-django"),
        ("capabilities.not_recorded_receipts", True),
    ],
)  # fmt: skip
def test_says_what_workers_and_clients_compare(document: dict[str, Any], path: str, value: Any) -> None:
    found = at(document, path)

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("path", "members"),
    [
        (
            "auth_composition_contract.effective_config.required_fields",
            {"server_url", "namespace", "profile", "auth", "tls", "identity"},
        ),
        (
            "auth_composition_contract.redaction.never_echo",
            {"bearer_tokens", "private_keys", "raw_authorization_headers"},
        ),
    ],
)
def test_lists_what_clients_look_for(document: dict[str, Any], path: str, members: set[str]) -> None:
    assert members <= set(at(document, path))


@pytest.mark.parametrize(
    "name",
    ["max_payload_bytes", "max_memo_bytes", "max_search_attributes", "max_search_attribute_key_length",
     "max_search_attribute_value_bytes", "max_pending_activities"],
)  # fmt: skip
def test_publishes_its_limits(document: dict[str, Any], name: str) -> None:
    assert document["limits"][name] > 0


def test_publishes_the_limits_in_force(api: ApiClient, override_durable: Any) -> None:
    override_durable(MAX_PAYLOAD_BYTES=7000, PENDING_ACTIVITY_COUNT=5, LONG_POLL_SECONDS=9)

    document = api.get("/api/cluster/info").body

    assert document["limits"]["max_payload_bytes"] == 7000
    assert document["structural_limits"]["pending_activity_count"] == 5
    assert document["worker_protocol"]["server_capabilities"]["long_poll_timeout"] == 9


def test_lists_exactly_the_commands_it_takes(document: dict[str, Any]) -> None:
    commands = document["worker_protocol"]["server_capabilities"]["supported_workflow_task_commands"]

    assert commands == supported_types()
    assert commands[0] == "complete_workflow"
    assert set(commands) == {
        "complete_workflow",
        "fail_workflow",
        "record_local_activity",
        "record_side_effect",
        "record_version_marker",
        "schedule_activity",
        "start_timer",
    }


def test_advertises_no_more_than_it_serves(document: dict[str, Any]) -> None:
    """Absent or false: a client that asks all the same is answered as by a server that never heard of it."""
    capabilities = document["worker_protocol"]["server_capabilities"]

    for name in ("observability_context", "runtime_external_payload_transport", "message_streams",
                 "claimed_task_ready_age",
                 "query_task_poll_request_idempotency"):  # fmt: skip
        assert not capabilities.get(name), name


def test_says_the_same_of_itself_everywhere(api: ApiClient, document: dict[str, Any]) -> None:
    lease = leased_task()
    answers = [
        register(api, worker_id="w-9"),
        api.post("/api/worker/heartbeat", {"worker_id": "w-9"}),
        poll(api, "activity"),
        poll(api, "workflow", worker_id="nobody"),
        send(api, lease, "heartbeat"),
        send(api, lease, "complete", commands=[{"type": "nothing"}]),
        api.post("/api/worker/nothing"),
        api.post("/api/worker/heartbeat", token="wrong"),
    ]

    expected = document["worker_protocol"]["server_capabilities"]
    assert expected == server_capabilities()
    for answer in answers:
        assert answer.body["server_capabilities"] == expected
        assert answer.body["protocol_version"] == document["worker_protocol"]["version"]


@pytest.mark.parametrize("role", ["worker", "operator", "admin"])
def test_answers_every_role(api: ApiClient, role: str) -> None:
    _, secret = create_token("one", roles=[role], namespaces=["default"])

    assert api.get("/api/cluster/info", token=secret).status == 200


@pytest.mark.parametrize("namespace", ["nowhere", "Theirs"])
def test_answers_whatever_namespace_is_named(api: ApiClient, namespace: str) -> None:
    response = api.get("/api/cluster/info", headers={"X-Namespace": namespace})

    assert (response.status, response.body["namespace"]) == (200, namespace.lower())


def test_needs_a_token(api: ApiClient) -> None:
    assert api.get("/api/cluster/info", token=None).status == 401


@pytest.mark.parametrize(("path", "word"), [("/api/health", "serving"), ("/api/ready", "ready")])
def test_says_that_it_serves(api: ApiClient, path: str, word: str) -> None:
    response = api.get(path, token=None)

    assert response.status == 200
    assert (response.body["status"], response.body["timestamp"]) == (word, A_TIME)
    assert response.body["checks"]["database"] == "ok"


def test_shows_metrics_to_operators_alone(api: ApiClient) -> None:
    make.register("w-1")
    poll(api, "workflow")

    response = api.get("/metrics")

    assert response.status == 200
    assert response.headers["content-type"].startswith("text/plain")
    assert b"durable_" in response.raw
    assert api.get("/metrics", token=None).status == 401
