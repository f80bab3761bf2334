"""Workers: their registrations, and the incarnations that fence deregistration."""

from __future__ import annotations

from django.db import models

from durable.models.fields import ExactCharField, JSONTextField
from durable.states import IncarnationStatus


class WorkerRegistration(models.Model):
    """What a worker said of itself when it registered. One row per (namespace, worker id)."""

    namespace = ExactCharField(max_length=128)
    worker_id = ExactCharField(max_length=255)
    task_queue = ExactCharField(max_length=255)
    runtime = models.CharField(max_length=16)
    sdk_version = models.CharField(max_length=64, blank=True, default="")
    build_id = ExactCharField(max_length=255, blank=True, default="")
    # The token of the current incarnation; names it in claim snapshots.
    registration_token = models.CharField(max_length=32)
    protocol_version = models.CharField(max_length=16)
    supported_workflow_types = JSONTextField(default=list)
    supported_activity_types = JSONTextField(default=list)
    workflow_definition_fingerprints = JSONTextField(default=dict)
    workflow_command_contracts = JSONTextField(default=dict)
    capabilities = JSONTextField(default=list)
    capability_manifest = JSONTextField(default=dict)
    max_concurrent_workflow_tasks = models.PositiveIntegerField(default=100)
    max_concurrent_activity_tasks = models.PositiveIntegerField(default=100)
    max_concurrent_worker_sessions = models.PositiveIntegerField(null=True)
    task_slots = JSONTextField(default=dict)
    process_metrics = JSONTextField(default=dict)
    # True once an operator drains the worker: it is answered `draining` and leases nothing more.
    is_draining = models.BooleanField(default=False)
    drain_reason = models.CharField(max_length=1000, null=True, blank=True)  # noqa: DJ001 the wire says null
    registered_at = models.DateTimeField()
    # Sign of life: registration, heartbeat, or a poll (written at most every ten seconds, outside any claim).
    last_heartbeat_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.UniqueConstraint(name="durable_worker_registered_once", fields=("namespace", "worker_id")),
            models.CheckConstraint(name="durable_worker_id_not_blank", condition=models.Q(worker_id__regex=r"\S")),
        )
        indexes = (
            models.Index(name="durable_worker_silent", fields=("last_heartbeat_at",)),
            models.Index(name="durable_worker_by_queue", fields=("namespace", "task_queue", "last_heartbeat_at")),
        )

    def __str__(self) -> str:
        return str(self.worker_id)


class WorkerIncarnation(models.Model):
    """One registration of a worker id, and the receipt of its deregistration (worker-protocol.md 3.4)."""

    registration_token = models.CharField(max_length=32, primary_key=True)
    namespace = ExactCharField(max_length=128)
    worker_id = ExactCharField(max_length=255)
    status = models.CharField(max_length=16, choices=IncarnationStatus, default=IncarnationStatus.ACTIVE)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    # The receipt: workflow tasks made available again by the deregistration. Null unless deregistered.
    recovered_workflow_task_count = models.PositiveIntegerField(null=True)

    class Meta:
        indexes = (
            models.Index(name="durable_incarnation_of_worker", fields=("namespace", "worker_id", "status")),
            models.Index(name="durable_incarnation_ended", fields=("ended_at",)),
        )

    def __str__(self) -> str:
        return str(self.registration_token)
