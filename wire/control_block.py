"""The `control_plane` block around workflow operations, errors included (docs/protocol/control-plane.md 1.4)."""

from __future__ import annotations

from typing import Any

SCHEMA = "durable-workflow.v2.control-plane-response"

# Top-level fields of a body that the block repeats.
_PROJECTED = frozenset(
    (
        "run_id", "workflow_type", "namespace", "business_key", "status", "status_bucket", "run_status",
        "is_terminal", "task_queue", "run_number", "run_count", "workflow_count", "is_current_run",
        "compatibility", "started_at", "closed_at", "last_progress_at", "wait_kind", "wait_reason",
        "next_page_token", "command_id", "command_status", "command_source", "target_scope", "query_name",
        "outcome", "reason", "rejection_reason", "rejection_category", "validation_errors", "result",
        "result_envelope", "update_id", "update_status", "principal", "wait_for", "wait_timed_out",
        "wait_timeout_seconds", "blocked_reason", "message", "remediation", "execution_owner", "identity",
        "command_contract_source", "declared_signals", "signal_admission", "diagnostic_status", "retryable",
        "error_id", "exception",
    )
)  # fmt: skip

# What each operation's block must hold, and what its successful body must have.
_CONTRACTS: dict[str, tuple[list[str], list[str]]] = {
    "start": ([], ["workflow_id", "outcome"]),
    "describe": (["workflow_id"], []),
    "list_runs": (["workflow_id"], []),
    "describe_run": (["workflow_id"], ["run_id"]),
    "history": (["workflow_id", "run_id"], ["next_page_token"]),
    "cancel": (["workflow_id"], ["outcome"]),
    "terminate": (["workflow_id"], ["outcome"]),
    "repair": (["workflow_id"], ["outcome"]),
    "list": ([], []),
}


def control_block(operation: str, body: dict[str, Any], path: dict[str, Any]) -> dict[str, Any]:
    """The block for one answer; ids come from the body, else from the path."""
    required, success = _CONTRACTS[operation]
    identity = {
        name: body.get(name) or path.get(name) for name in ("workflow_id", "run_id") if body.get(name) or path.get(name)
    }
    return {
        "schema": SCHEMA,
        "version": 1,
        "operation": operation,
        "operation_name": None,
        "operation_name_field": None,
        "workflow_id": None,
        **identity,
        "contract": {
            "schema": f"{SCHEMA}.contract",
            "version": 1,
            "legacy_field_policy": "reject_non_canonical",
            "legacy_fields": {
                "query": "query_name",
                "signal": "signal_name",
                "update": "update_name",
                "wait_policy": "wait_for",
            },
            "required_fields": required,
            "success_fields": success,
        },
        **{name: value for name, value in body.items() if name in _PROJECTED},
    }
