"""Discovery, health, readiness, metrics, and the answer to unknown routes (docs/protocol/control-plane.md 5)."""

from __future__ import annotations

from typing import Any

from django.db import Error, connection
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from control_api.answers import discovery
from control_api.collector import engine_metrics
from control_api.readiness import read_readiness
from durable import __version__, conf
from durable.history.times import stamp
from durable.protocol import SERVED, ProtocolVersion
from durable.sql.gauges import read_gauges
from durable.sql.pool import PoolBusyError, Work
from wire.capabilities import server_capabilities
from wire.errors import HttpError
from wire.process import runtime
from wire.views import Answer, ApiView, Call, ControlView, WorkerView


class ClusterInfoView(ApiView):
    """Discover what this server is and can do

    Needs no version header, and the namespace need not exist.
    """

    route = "cluster-info"
    answers = {"get": discovery.CLUSTER_INFO}

    def check_version(self, request: HttpRequest) -> ProtocolVersion:
        return SERVED

    def needs_namespace(self) -> bool:
        return False

    async def get(self, call: Call) -> Answer:
        return Answer(cluster_info(call.namespace))


def cluster_info(namespace: str) -> dict[str, Any]:
    """The discovery document; workers refuse to start without its fixed parts (worker-protocol.md 2.1)."""
    settings = conf.current()
    return {
        "server_id": "durable",
        "implementation": "durable-django",
        "version": __version__,
        "default_namespace": settings.default_namespace,
        "namespace": namespace,
        "payload_codec": "avro",
        "control_plane": {
            "version": "2",
            "header": "X-Durable-Workflow-Control-Plane-Version",
            "response_contract": {
                "schema": "durable-workflow.v2.control-plane-response",
                "version": 1,
                "contract": {"schema": "durable-workflow.v2.control-plane-response.contract", "version": 1},
            },
            "request_contract": {
                "schema": "durable-workflow.v2.control-plane-request.contract",
                "version": 1,
                "operations": {
                    "start": {
                        "fields": {
                            "duplicate_policy": {
                                "canonical_values": ["fail", "use-existing"],
                                "rejected_aliases": {"use_existing": "use-existing"},
                            }
                        },
                        "unsupported_fields": [
                            "workflow_execution_timeout", "workflow_run_timeout", "workflow_task_timeout",
                            "retry_policy", "idempotency_key", "request_id",
                        ],
                    },
                    "list": {"fields": {"status": {"canonical_values": ["running", "completed", "failed"]}}},
                },
            },
        },
        "worker_protocol": {
            "version": str(SERVED),
            "header": "X-Durable-Workflow-Protocol-Version",
            "server_capabilities": server_capabilities(),
        },
        "auth_composition_contract": _AUTH_CONTRACT,
        "capabilities": {
            "workflow_tasks": True,
            "activity_tasks": True,
            "activity_retry_policy": True,
            "activity_timeouts": True,
            "non_retryable_failures": True,
            "payload_codecs": ["avro"],
            "response_compression": [],
            "completion_receipts": True,
            "not_recorded_receipts": True,
        },
        "limits": {
            "max_payload_bytes": settings.max_payload_bytes,
            "max_body_bytes": settings.max_body_bytes,
            "payload_size_bytes": settings.payload_size_bytes,
            "max_memo_bytes": settings.max_memo_bytes,
            "max_search_attributes": 100,
            "max_search_attribute_key_length": 128,
            "max_search_attribute_value_bytes": 2048,
            "max_pending_activities": settings.pending_activity_count,
            "command_batch_size": settings.command_batch_size,
            "history_page_size": settings.history_page_size_max,
            "history_page_bytes": settings.history_page_bytes,
            "max_poll_seconds": settings.long_poll_max_seconds,
            "inline_task_bytes": settings.inline_task_bytes,
        },
        "structural_limits": {
            "pending_activity_count": settings.pending_activity_count,
            "pending_timer_count": settings.pending_timer_count,
            "command_batch_size": settings.command_batch_size,
            "payload_size_bytes": settings.payload_size_bytes,
            "history_transaction_size": settings.history_transaction_size,
        },
        "client_compatibility": {"authority": "protocol_manifests"},
    }  # fmt: skip


_AUTH_CONTRACT: dict[str, Any] = {
    "schema": "durable-workflow.v2.auth-composition.contract",
    "version": 1,
    "precedence": {
        "connection_values": ["flag", "environment", "selected_profile", "default"],
        "profile_selection": ["flag_env", "DW_ENV", "current_profile", "default_profile"],
    },
    "canonical_environment": {
        "server_url": "DURABLE_WORKFLOW_SERVER_URL",
        "namespace": "DURABLE_WORKFLOW_NAMESPACE",
        "auth_token": "DURABLE_WORKFLOW_AUTH_TOKEN",
        "tls_verify": "DURABLE_WORKFLOW_TLS_VERIFY",
        "profile": "DW_ENV",
    },
    "auth_material": {
        "token": {"status": "supported", "effective_config_value": "redacted"},
        "mtls": {"status": "reserved"},
        "signed_headers": {"status": "reserved"},
    },
    "effective_config": {"required_fields": ["server_url", "namespace", "profile", "auth", "tls", "identity"]},
    "redaction": {"never_echo": ["bearer_tokens", "private_keys", "raw_authorization_headers"]},
}


class HealthView(ApiView):
    """Ask whether this process reaches its database"""

    route = "health"
    answers = {"get": discovery.HEALTH}

    async def get(self, call: Call) -> Answer:
        try:
            await runtime().pool.run(Work.READ, _ping)
        except (Error, PoolBusyError):
            return _health("degraded", {"database": "unavailable"}, status=503)
        return _health("serving", {"database": "ok"}, status=200)


class ReadyView(ApiView):
    """Ask whether this process should be sent work"""

    route = "ready"
    answers = {"get": discovery.READY}

    async def get(self, call: Call) -> Answer:
        try:
            readiness = await runtime().pool.run(Work.READ, read_readiness, runtime().remote)
        except (Error, PoolBusyError):
            return _health("not_ready", {"database": "unavailable"}, status=503)
        return _health(
            "ready" if readiness.is_ready else "not_ready", readiness.checks, status=200 if readiness.is_ready else 503
        )


def _ping() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _health(word: str, checks: dict[str, Any], *, status: int) -> Answer:
    return Answer({"status": word, "timestamp": stamp(timezone.now()), "checks": checks}, status)


class MetricsView(ApiView):
    """Read Prometheus metrics of this process and of the engine

    The namespace need not exist. The token goes into the scraper's configuration.
    """

    route = "metrics"
    answers = {"get": discovery.METRICS}

    def needs_namespace(self) -> bool:
        return False

    async def get(self, call: Call) -> Answer:
        try:
            gauges = await runtime().pool.run(Work.READ, read_gauges)
        except (Error, PoolBusyError):
            # What the process counts is needed most while the database is away.
            gauges = None
        return Answer({"text": generate_latest(REGISTRY).decode() + engine_metrics(gauges)})

    def _respond(self, answer: Answer, call: Call | None, path: dict[str, Any]) -> HttpResponse:
        if "text" not in answer.body:
            return super()._respond(answer, call, path)
        return HttpResponse(answer.body["text"], content_type=CONTENT_TYPE_LATEST)


class _NoRoute(ApiView):
    """JSON for every path below `/api` that is no route; the plane it would belong to puts its envelope around it."""

    route = "unknown-route"

    def _handler(self, request: HttpRequest) -> Any:
        raise HttpError(404, "not_found", "There is no such route.")


class UnknownRouteView(_NoRoute, ControlView):
    """On the control plane."""


class UnknownWorkerRouteView(_NoRoute, WorkerView):
    """On the worker plane."""
