"""Register a worker: a new incarnation of its id (docs/protocol/worker-protocol.md 3.1)."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from durable import conf
from durable.models import WorkerIncarnation, WorkerRegistration
from durable.protocol import (
    AFFINITY_FLOOR,
    COOPERATIVE_FLOOR,
    MEMO_FLOOR,
    TYPED_SEARCH_ATTRIBUTES_FLOOR,
    ProtocolVersion,
    parse_version,
)
from durable.refusals import Reason, Refusal
from durable.sql import rows
from durable.sql.clock import read_clock
from durable.sql.registering import lock_registration
from durable.sql.transactions import transactional
from durable.states import IncarnationStatus

MOST_CONCURRENT = 100
# Capabilities that a worker states twice, flat and with a manifest entry, which must agree.
AFFINITY_CAPABILITIES = ("local_activities", "worker_sessions", "sticky_execution")
_FLOORS = {"memo_upserts": MEMO_FLOOR, "typed_search_attributes": TYPED_SEARCH_ATTRIBUTES_FLOOR}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDescription:
    """What a worker says of itself; validated in form."""

    namespace: str
    worker_id: str
    task_queue: str
    runtime: str
    protocol_version: ProtocolVersion
    sdk_version: str = ""
    build_id: str = ""
    supported_workflow_types: list[str] = field(default_factory=list)
    supported_activity_types: list[str] = field(default_factory=list)
    workflow_definition_fingerprints: dict[str, str] = field(default_factory=dict)
    workflow_command_contracts: dict[str, Any] = field(default_factory=dict)
    capabilities: list[str] = field(default_factory=list)
    capability_manifest: dict[str, Any] = field(default_factory=dict)
    max_concurrent_workflow_tasks: int = MOST_CONCURRENT
    max_concurrent_activity_tasks: int = MOST_CONCURRENT
    max_concurrent_worker_sessions: int | None = None
    task_slots: dict[str, int] = field(default_factory=dict)
    process_metrics: dict[str, Any] = field(default_factory=dict)


def clamp_slots(slots: dict[str, int], worker: WorkerDescription | WorkerRegistration) -> dict[str, int]:
    """Free slots can be neither negative nor more than the worker has."""
    most = {
        "workflow_available": worker.max_concurrent_workflow_tasks,
        "activity_available": worker.max_concurrent_activity_tasks,
        "session_available": worker.max_concurrent_worker_sessions or 0,
    }
    return {name: max(0, min(number, most[name])) for name, number in slots.items()}


@transactional
def register_worker(description: WorkerDescription) -> WorkerRegistration:
    """Insert or replace the registration of (namespace, worker id) and make its new incarnation the active one.

    Existing leases are not touched. Refuses workflow_definition_changed,
    workflow_metadata_capability_protocol_mismatch, worker_capability_manifest_mismatch,
    worker_capability_protocol_floor_mismatch, prepared_local_activity_capability_mismatch; changes nothing then.
    """
    check_capabilities(description)
    registration = _insert_or_replace(description, secrets.token_hex(16))
    token, now = registration.registration_token, registration.registered_at
    WorkerIncarnation.objects.filter(
        namespace=description.namespace, worker_id=description.worker_id, status=IncarnationStatus.ACTIVE
    ).update(status=IncarnationStatus.SUPERSEDED, ended_at=now)
    WorkerIncarnation.objects.create(
        registration_token=token,
        namespace=description.namespace,
        worker_id=description.worker_id,
        created_at=now,
    )
    return registration


def _insert_or_replace(description: WorkerDescription, token: str) -> WorkerRegistration:
    """The registration, written. Two first ones of an id at the same moment: one inserts, the other replaces it."""
    for _ in range(3):
        existing = lock_registration(description.namespace, description.worker_id)
        now = read_clock()
        registration = _registration(description, existing, token, now)
        if existing is not None:
            _check_fingerprints(existing, description, now)
            registration.save()
            return registration
        if rows.insert([registration], or_ignore=True):
            return registration
    raise AssertionError(f"worker {description.worker_id} is neither registered nor can it be")


def _registration(
    description: WorkerDescription, existing: WorkerRegistration | None, token: str, now: datetime
) -> WorkerRegistration:
    return WorkerRegistration(
        pk=existing.pk if existing else None,
        namespace=description.namespace,
        worker_id=description.worker_id,
        task_queue=description.task_queue,
        runtime=description.runtime,
        sdk_version=description.sdk_version,
        build_id=description.build_id,
        registration_token=token,
        protocol_version=str(description.protocol_version),
        supported_workflow_types=description.supported_workflow_types,
        supported_activity_types=description.supported_activity_types,
        workflow_definition_fingerprints=description.workflow_definition_fingerprints,
        workflow_command_contracts=description.workflow_command_contracts,
        capabilities=description.capabilities,
        capability_manifest=description.capability_manifest,
        max_concurrent_workflow_tasks=description.max_concurrent_workflow_tasks,
        max_concurrent_activity_tasks=description.max_concurrent_activity_tasks,
        max_concurrent_worker_sessions=description.max_concurrent_worker_sessions,
        task_slots=clamp_slots(description.task_slots, description),
        process_metrics=description.process_metrics,
        is_draining=existing.is_draining if existing else False,
        drain_reason=existing.drain_reason if existing else None,
        registered_at=now,
        last_heartbeat_at=now,
    )


def _check_fingerprints(existing: WorkerRegistration, description: WorkerDescription, now: datetime) -> None:
    """An active registration of this id says the code differs: two builds would replay each other's runs."""
    if existing.last_heartbeat_at < now - timedelta(seconds=conf.current().worker_stale_after_seconds):
        return
    for workflow_type, fingerprint in description.workflow_definition_fingerprints.items():
        known = existing.workflow_definition_fingerprints.get(workflow_type)
        if known is not None and known != fingerprint:
            raise Refusal(
                Reason.WORKFLOW_DEFINITION_CHANGED,
                "An active registration of this worker id has another definition of the workflow type.",
                workflow_type=workflow_type,
                remediation="Register under a new worker id, or deregister the old worker first.",
            )


# -- capabilities ------------------------------------------------------------------------------------------------------


def check_capabilities(description: WorkerDescription) -> None:
    """Capabilities must be spoken in a version that has them, and the manifest must say the same as the flat list."""
    version, capabilities = description.protocol_version, set(description.capabilities)
    for capability, floor in _FLOORS.items():
        if capability in capabilities and version < floor:
            raise _capability_refusal(Reason.WORKFLOW_METADATA_CAPABILITY_PROTOCOL_MISMATCH, capability, version, floor)
    for capability in AFFINITY_CAPABILITIES:
        _check_affinity(capability, capability in capabilities, description)
    if "prepared_local_activities" in capabilities and (
        "cooperative_cancellation" not in capabilities or version < COOPERATIVE_FLOOR
    ):
        raise Refusal(
            Reason.PREPARED_LOCAL_ACTIVITY_CAPABILITY_MISMATCH,
            "prepared_local_activities needs cooperative_cancellation and protocol 1.20.",
            registered=False,
        )


def _check_affinity(capability: str, is_flat: bool, description: WorkerDescription) -> None:
    entry = description.capability_manifest.get(capability)
    is_supported = isinstance(entry, dict) and entry.get("supported") is True
    if is_supported and description.protocol_version < AFFINITY_FLOOR:
        raise _capability_refusal(
            Reason.WORKER_CAPABILITY_PROTOCOL_FLOOR_MISMATCH, capability, description.protocol_version, AFFINITY_FLOOR
        )
    floor = parse_version(str(entry.get("minimum_protocol_version", ""))) if isinstance(entry, dict) else None
    if is_supported != is_flat or (is_supported and (floor is None or floor > description.protocol_version)):
        raise _capability_refusal(
            Reason.WORKER_CAPABILITY_MANIFEST_MISMATCH, capability, description.protocol_version, AFFINITY_FLOOR
        )


def _capability_refusal(reason: Reason, capability: str, version: ProtocolVersion, floor: ProtocolVersion) -> Refusal:
    return Refusal(
        reason,
        f"The capability {capability} does not fit the manifest or the protocol version of this request.",
        registered=False,
        capability=capability,
        requested_version=str(version),
        minimum_protocol_version=str(floor),
    )
