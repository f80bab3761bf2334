"""The reads of a start and of commands by workflow id."""

from __future__ import annotations

import json
from typing import Any

from durable.ids import is_id
from durable.models import Run, WorkerRegistration, Workflow
from durable.sql.locking import RUN
from durable.sql.rows import fetch_all, fetch_one

_CURRENT_RUN = (
    f"SELECT {RUN.sql} FROM {Workflow._meta.db_table} f JOIN {Run._meta.db_table} r ON r.id = f.current_run_id"
    " WHERE f.id = %s"
)
# Served by durable_worker_by_queue: the newest of the queue's registrations that knows the type speaks for it.
_CONTRACTS = (
    f"SELECT workflow_command_contracts FROM {WorkerRegistration._meta.db_table}"
    " WHERE namespace = %s AND task_queue = %s ORDER BY last_heartbeat_at DESC LIMIT 20"
)
_DECLARED = {
    "signals": "declared_signals",
    "signal_contracts": "declared_signal_contracts",
    "queries": "declared_queries",
    "query_contracts": "declared_query_contracts",
    "updates": "declared_updates",
    "update_contracts": "declared_update_contracts",
    "update_validators": "declared_update_validators",
}


def find_current_run(workflow_id: str) -> Run | None:
    """The newest run of a workflow id, in whatever namespace."""
    row = fetch_one(_CURRENT_RUN, (workflow_id,)) if is_id(workflow_id) else None
    return None if row is None else RUN.decode(row)


def find_command_contract(namespace: str, task_queue: str, workflow_type: str) -> dict[str, Any] | None:
    """What workers of the queue declared for this type, under the names `WorkflowStarted` uses; None if nobody did."""
    declared = (json.loads(row[0]) for row in fetch_all(_CONTRACTS, (namespace, task_queue)) if row[0])
    contract = next((found for one in declared if isinstance(found := one.get(workflow_type), dict)), None)
    if contract is None:
        return None
    return {name: contract[key] for key, name in _DECLARED.items() if key in contract}
