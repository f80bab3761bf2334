"""Deregister a worker: its workflow leases end at once, its activity leases run out (worker-protocol.md 3.3 and 3.4).

Locks no run: the leases get an expiry of now, in id order, and recovery follows run by run (docs/concurrency.md 20).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from durable import conf
from durable.models import Task, WorkerIncarnation, WorkerRegistration
from durable.refusals import Reason, Refusal
from durable.sql import rows
from durable.sql.clock import read_clock
from durable.sql.registering import lock_registration
from durable.sql.transactions import transactional
from durable.states import IncarnationStatus, TaskKind, TaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeregistered:
    """The receipt. A fenced deregistration answers the same one for as long as it is kept."""

    worker_id: str
    registration_token: str
    recovered_workflow_task_count: int


@transactional
def deregister_worker(namespace: str, worker_id: str) -> WorkerDeregistered:
    """Remove the worker's registration, whichever incarnation it is. Refuses worker_not_found."""
    registration = lock_registration(namespace, worker_id)
    if registration is None:
        raise Refusal(Reason.WORKER_NOT_FOUND, "There is no such worker in this namespace.", worker_id=worker_id)
    return _deregister(registration, read_clock())


@transactional
def deregister_incarnation(namespace: str, worker_id: str, registration_token: str) -> WorkerDeregistered:
    """Remove the registration if it is still this incarnation; a repeat gets the same receipt.

    Refuses worker_registration_token_not_found, worker_registration_lost_authority,
    worker_registration_receipt_expired. Never touches a registration that replaced this one.
    """
    registration = lock_registration(namespace, worker_id)
    now = read_clock()
    identity = {"worker_id": worker_id, "registration_token": registration_token}
    incarnation = WorkerIncarnation.objects.filter(registration_token=registration_token).first()
    if incarnation is None or (incarnation.namespace, incarnation.worker_id) != (namespace, worker_id):
        raise Refusal(
            Reason.WORKER_REGISTRATION_TOKEN_NOT_FOUND,
            "This worker has no registration with this token.",
            **identity,
        )
    if incarnation.status == IncarnationStatus.DEREGISTERED:
        return _kept_receipt(incarnation, now)
    if registration is None or registration.registration_token != registration_token:
        raise Refusal(
            Reason.WORKER_REGISTRATION_LOST_AUTHORITY,
            "A later registration replaced this one.",
            retryable=False,
            **identity,
        )
    return _deregister(registration, now)


def _deregister(registration: WorkerRegistration, now: datetime) -> WorkerDeregistered:
    recovered = _expire_workflow_leases(registration.namespace, registration.worker_id, now)
    WorkerIncarnation.objects.filter(registration_token=registration.registration_token).update(
        # Read again: expiring the leases may have waited for claims.
        status=IncarnationStatus.DEREGISTERED,
        ended_at=read_clock(),
        recovered_workflow_task_count=recovered,
    )
    registration.delete()
    return WorkerDeregistered(
        worker_id=registration.worker_id,
        registration_token=registration.registration_token,
        recovered_workflow_task_count=recovered,
    )


def _expire_workflow_leases(namespace: str, worker_id: str, now: datetime) -> int:
    # Put in order here: asked for it, SQLite at times walks the whole table along its key. Index durable_task_of_owner.
    sql = f"SELECT id FROM {Task._meta.db_table} WHERE namespace = %s AND lease_owner = %s AND kind = %s"
    expired = 0
    for (task_id,) in sorted(rows.fetch_all(sql, (namespace, worker_id, TaskKind.WORKFLOW))):
        expired += rows.update(
            Task,
            {"lease_expires_at": now},
            {"id": task_id, "status": TaskStatus.LEASED, "lease_owner": worker_id},
        )
    return expired


def _kept_receipt(incarnation: WorkerIncarnation, now: datetime) -> WorkerDeregistered:
    kept_since = now - timedelta(seconds=conf.current().deregistration_receipt_seconds)
    if incarnation.ended_at is None or incarnation.ended_at < kept_since:
        raise Refusal(
            Reason.WORKER_REGISTRATION_RECEIPT_EXPIRED,
            "The receipt of this deregistration is not kept any more.",
            worker_id=incarnation.worker_id,
            registration_token=incarnation.registration_token,
        )
    return WorkerDeregistered(
        worker_id=incarnation.worker_id,
        registration_token=incarnation.registration_token,
        recovered_workflow_task_count=incarnation.recovered_workflow_task_count or 0,
    )
