"""Locking a worker's registration: found by its names without a lock, locked by its key (docs/concurrency.md 6)."""

from __future__ import annotations

from durable.ids import is_id
from durable.models import WorkerRegistration


def lock_registration(namespace: str, worker_id: str) -> WorkerRegistration | None:
    """The registration of a worker id, locked until the transaction ends; None if there is none."""
    if not is_id(worker_id):
        return None
    key = (
        WorkerRegistration.objects.filter(namespace=namespace, worker_id=worker_id).values_list("pk", flat=True).first()
    )
    return None if key is None else WorkerRegistration.objects.select_for_update().filter(pk=key).first()
