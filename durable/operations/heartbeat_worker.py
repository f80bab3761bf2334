"""A worker's heartbeat (docs/protocol/worker-protocol.md 3.2). Renews no task lease."""

from __future__ import annotations

from typing import Any

from durable.models import WorkerRegistration
from durable.operations.register_worker import clamp_slots
from durable.refusals import Kind, Reason, Refusal
from durable.sql.clock import read_clock
from durable.sql.registering import lock_registration
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
    registration = lock_registration(namespace, worker_id)
    if registration is None:
        # Not found here; a poll calls the same thing a failed precondition.
        raise Refusal(
            Reason.WORKER_NOT_REGISTERED,
            "The worker is not registered in this namespace.",
            worker_id=worker_id,
        ).as_kind(Kind.NOT_FOUND)
    registration.last_heartbeat_at = read_clock()
    if task_slots is not None:
        registration.task_slots = clamp_slots(task_slots, registration)
    if process_metrics is not None:
        registration.process_metrics = process_metrics
    registration.save(update_fields=("last_heartbeat_at", "task_slots", "process_metrics"))
    return registration
