"""What this server advertises: one object, in discovery and in every worker-plane answer (worker-protocol.md 15).

A client decides from both places, so they must be the same. Only what works is listed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from durable import conf
from durable.commands.registry import supported_types
from durable.jsontext import JSONText, dump_json

# Carried polls: the capability, and the setting that switches it.
CARRY_SETTINGS = {
    "workflow_task_completion_activity_poll": "carry_activity_on_workflow",
    "activity_completion_workflow_poll": "carry_workflow_on_activity",
    "workflow_task_completion_workflow_poll": "carry_workflow_on_workflow",
}


def _carried_polls(settings: conf.DurableSettings) -> dict[str, bool]:
    """Only what is on: a client that does not find the key carries nothing."""
    on = {capability: True for capability, setting in CARRY_SETTINGS.items() if getattr(settings, setting)}
    return {**on, "carried_poll_inline_task": True} if on and settings.carry_inline_task else on


@lru_cache(maxsize=1)
def _built(settings: conf.DurableSettings) -> dict[str, Any]:
    return {
        "long_poll_timeout": settings.long_poll_seconds,
        "poll_status": True,
        "workflow_task_poll_request_idempotency": True,
        "supported_workflow_task_commands": supported_types(),
        "history_page_size_default": settings.history_page_size,
        "history_page_size_max": settings.history_page_size_max,
        "history_compression": {"supported_encodings": ["gzip", "deflate"], "compression_threshold": 50},
        "response_compression": [],
        "worker_status": {
            "supported": True,
            "heartbeat_interval_seconds": settings.worker_heartbeat_interval_seconds,
            "stale_after_seconds": settings.worker_stale_after_seconds,
            "fields": ["task_slots", "process_metrics"],
        },
        "activity_retry_policy": True,
        "activity_timeouts": True,
        "non_retryable_failures": True,
        "child_workflow_retry_policy": False,
        "child_workflow_timeouts": False,
        "parent_close_policy": False,
        "activity_lease_renewal": True,
        "activity_cancellation_acknowledgement": False,
        "cooperative_cancellation": False,
        "query_tasks": False,
        "query_task_authority": False,
        "update_validation_tasks": False,
        "workflow_updates": False,
        "prepared_local_activities": False,
        "prepared_local_activity_groups": False,
        "prepared_local_activity_cancellation_policies": [],
        "worker_deregistration_fencing": {
            "supported": True,
            "schema": "durable-workflow.v2.worker-deregistration.v1",
            "endpoint": "/worker/registrations/{workerId}/deregister",
            "receipt_retention_seconds": settings.deregistration_receipt_seconds,
        },
        "workflow_memo_updates": {"supported": False},
        "local_activities": {
            "feature": "local_activities",
            "contract_version": "1.0",
            "supported": True,
            "minimum_protocol_version": "1.18",
        },
        "worker_sessions": {
            "feature": "worker_sessions",
            "contract_version": "1.0",
            "supported": False,
            "minimum_protocol_version": "1.18",
        },
        "worker_session_verbs": [],
        "sticky_execution": {
            "feature": "sticky_execution",
            "contract_version": "1.0",
            "supported": False,
            "minimum_protocol_version": "1.18",
        },
        **_carried_polls(settings),
    }


@lru_cache(maxsize=1)
def _encoded(settings: conf.DurableSettings) -> JSONText:
    return JSONText(dump_json(_built(settings)))


def capabilities_text() -> JSONText:
    """The object as JSON text, encoded once: every worker-plane answer carries it."""
    return _encoded(conf.current())


def server_capabilities() -> dict[str, Any]:
    """The `server_capabilities` object; the same one everywhere."""
    return _built(conf.current())
