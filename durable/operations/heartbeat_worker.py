"""A worker's heartbeat (docs/protocol/worker-protocol.md 3.2). Renews no task lease."""

from __future__ import annotations

from typing import Any

from durable.models import WorkerRegistration
from durable.refusals import Reason, Refusal
from durable.sql.clock import read_clock
from durable.sql.transactions import transactional


@transactional
def heartbeat_worker(
    namespace: str,
    worker_id: str,
    *,
    task_slots: dict[str, int] | None = None,
    process_metrics: dict[str, Any] | None = None,
) -> WorkerRegistration:
    """Note that the worker lives, and what it reports; keeps the incarnation. Refuses worker_not_registered."""
    registration = (
        WorkerRegistration.objects.select_for_update().filter(namespace=namespace, worker_id=worker_id).first()
    )
    if registration is None:
        raise Refusal(
            Reason.WORKER_NOT_REGISTERED, "The worker is not registered in this namespace.", worker_id=worker_id
        )
    registration.last_heartbeat_at = read_clock()
    if task_slots is not None:
        registration.task_slots = task_slots
    if process_metrics is not None:
        registration.process_metrics = process_metrics
    registration.save(update_fields=("last_heartbeat_at", "task_slots", "process_metrics"))
    return registration
