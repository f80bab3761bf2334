"""Registration, heartbeat, deregistration (docs/protocol/worker-protocol.md 3)."""

from __future__ import annotations

from typing import Any

from durable import conf, logs
from durable.ids import new_id
from durable.models import WorkerRegistration
from durable.operations.deregister_worker import WorkerDeregistered, deregister_incarnation, deregister_worker
from durable.operations.heartbeat_worker import heartbeat_worker
from durable.operations.register_worker import MOST_CONCURRENT, WorkerDescription, register_worker
from durable.protocol import AFFINITY_FLOOR
from durable.refusals import invalid
from durable.sql.pool import Work
from wire.errors import ErrorAnswer
from wire.process import runtime
from wire.views import Answer, Call, WorkerView
from worker_api.answers import workers
from worker_api.backend import backend_lost
from worker_api.requests import DeregisterRequest, RegisterRequest, WorkerHeartbeatRequest


def worker_status(worker: WorkerRegistration) -> str:
    return "draining" if worker.is_draining else "active"


class RegisterView(WorkerView):
    """Register a worker

    Makes a new incarnation of the worker id, which replaces the one before it; leases are not touched. Register again
    after every restart of the worker: nothing is inherited.
    """

    route = "worker-register"
    request_serializer = RegisterRequest
    answers = {"post": workers.REGISTER}

    async def post(self, call: Call) -> Answer:
        data = self.validated(call)
        worker_id = data.get("worker_id") or new_id()
        logs.bind(worker_id=worker_id)
        worker = await runtime().pool.run(Work.WRITE, register_worker, _description(call, worker_id, data))
        settings = conf.current()
        return Answer(
            {
                "worker_id": worker.worker_id,
                "registered": True,
                "registration_token": worker.registration_token,
                "namespace": worker.namespace,
                "task_queue": worker.task_queue,
                "runtime": worker.runtime,
                "build_id": worker.build_id or None,
                "capabilities": worker.capabilities,
                "capability_manifest": worker.capability_manifest,
                "status": worker_status(worker),
                "heartbeat_interval_seconds": settings.worker_heartbeat_interval_seconds,
                "stale_after_seconds": settings.worker_stale_after_seconds,
            },
            status=201,
        )

    def unavailable(self, answer: ErrorAnswer, call: Call, path: dict[str, Any]) -> ErrorAnswer:
        named = {name: call.body.get(name) for name in ("worker_id", "task_queue")}
        return backend_lost(answer, "register_worker", **named)


def _description(call: Call, worker_id: str, data: dict[str, Any]) -> WorkerDescription:
    if call.version >= AFFINITY_FLOOR and data.get("capability_manifest") is None:
        raise invalid({"capability_manifest": [f"This field is required from protocol {AFFINITY_FLOOR} on."]})
    return WorkerDescription(
        namespace=call.namespace,
        worker_id=worker_id,
        task_queue=data["task_queue"],
        runtime=data["runtime"],
        protocol_version=call.version,
        sdk_version=data.get("sdk_version") or "",
        build_id=data.get("build_id") or "",
        supported_workflow_types=data.get("supported_workflow_types") or [],
        supported_activity_types=data.get("supported_activity_types") or [],
        workflow_definition_fingerprints=data.get("workflow_definition_fingerprints") or {},
        workflow_command_contracts=data.get("workflow_command_contracts") or {},
        capabilities=data.get("capabilities") or [],
        capability_manifest=data.get("capability_manifest") or {},
        max_concurrent_workflow_tasks=data.get("max_concurrent_workflow_tasks") or MOST_CONCURRENT,
        max_concurrent_activity_tasks=data.get("max_concurrent_activity_tasks") or MOST_CONCURRENT,
        max_concurrent_worker_sessions=data.get("max_concurrent_worker_sessions"),
        task_slots=data.get("task_slots") or {},
        process_metrics=data.get("process_metrics") or {},
    )


class WorkerHeartbeatView(WorkerView):
    """Say that a worker lives

    Keeps the incarnation and renews no task lease. What is not sent stays as it was.
    """

    route = "worker-heartbeat"
    request_serializer = WorkerHeartbeatRequest
    answers = {"post": workers.HEARTBEAT}

    async def post(self, call: Call) -> Answer:
        data = self.validated(call)
        logs.bind(worker_id=data["worker_id"])
        worker = await runtime().pool.run(
            Work.WRITE,
            heartbeat_worker,
            call.namespace,
            data["worker_id"],
            task_slots=data.get("task_slots"),
            process_metrics=data.get("process_metrics"),
        )
        settings = conf.current()
        return Answer(
            {
                "worker_id": worker.worker_id,
                "acknowledged": True,
                "heartbeat_recorded": True,
                "heartbeat_interval_seconds": settings.worker_heartbeat_interval_seconds,
                "stale_after_seconds": settings.worker_stale_after_seconds,
                "status": worker_status(worker),
            }
        )

    def unavailable(self, answer: ErrorAnswer, call: Call, path: dict[str, Any]) -> ErrorAnswer:
        return backend_lost(answer, "heartbeat_worker", worker_id=call.body.get("worker_id"), task_queue=None)


class DeregisterView(WorkerView):
    """Deregister a worker, whichever incarnation of it is registered

    Its workflow task leases end at once; activity leases run out by themselves.
    """

    route = "worker-deregister"
    answers = {"delete": workers.DEREGISTER}

    async def delete(self, call: Call, worker_id: str) -> Answer:
        logs.bind(worker_id=worker_id)
        receipt = await runtime().pool.run(Work.WRITE, deregister_worker, call.namespace, worker_id)
        return Answer(_receipt(receipt))


class FencedDeregisterView(WorkerView):
    """Deregister one incarnation of a worker

    Fenced by its registration token: never touches a later incarnation, and a repeat gets the same receipt.
    """

    route = "worker-deregister-fenced"
    request_serializer = DeregisterRequest
    answers = {"post": workers.DEREGISTER_INCARNATION}

    async def post(self, call: Call, worker_id: str) -> Answer:
        data = self.validated(call)
        logs.bind(worker_id=worker_id)
        receipt = await runtime().pool.run(
            Work.WRITE, deregister_incarnation, call.namespace, worker_id, data["registration_token"]
        )
        return Answer({**_receipt(receipt), "registration_token": receipt.registration_token})

    def unavailable(self, answer: ErrorAnswer, call: Call, path: dict[str, Any]) -> ErrorAnswer:
        fields = {
            "operation": "deregister_worker",
            "outcome": "unknown",
            "worker_id": path["worker_id"],
            "registration_token": call.body.get("registration_token"),
        }
        return ErrorAnswer(answer.status, {**answer.body, **fields}, answer.headers)


def _receipt(receipt: WorkerDeregistered) -> dict[str, Any]:
    return {
        "worker_id": receipt.worker_id,
        "outcome": "deregistered",
        "recovered_workflow_task_count": receipt.recovered_workflow_task_count,
    }
