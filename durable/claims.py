"""The claim: how a ready task becomes a worker's lease. The one routine behind every poll (concurrency.md 3, 8-13).

A claim reads the task table, takes one row nobody else holds, and writes that row, an attempt and a poll receipt. It
never locks or writes a run and never waits, so that it can run inside any other transaction. What it cannot write, the
`ActivityStarted` event, is held back until the attempt ends.

A poll looks first, which writes nothing, and claims what it saw: in a transaction of its own (operations/poll.py) or
in the completion that carries it (carried_polls.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from durable import conf
from durable.ids import new_id
from durable.models import ActivityAttempt, PollReceipt, Task, WorkerRegistration
from durable.protocol import ProtocolVersion
from durable.refusals import PollRefusal, PollRefusalReason
from durable.sql import claiming, reporting, rows
from durable.sql.claiming import Candidate, PollFacts, TaskFacts, Wanted
from durable.sql.clock import ClockReading, after, earliest
from durable.states import AttemptStatus, TaskKind, TaskStatus
from durable.task_bodies import task_body
from durable.wakeups.hints import QueueKey, hint_unless_committed


@dataclass(frozen=True, slots=True, kw_only=True)
class PollRequest:
    """A validated poll. `poll_request_id` makes it repeatable; without one every poll is a new claim."""

    namespace: str
    kind: TaskKind
    worker_id: str
    task_queue: str
    build_id: str | None
    poll_request_id: str | None
    # Sorted; `("workflow",)` unless the worker multiplexes. Empty for activity polls.
    task_kinds: tuple[str, ...] = ()
    protocol_version: ProtocolVersion

    @property
    def receipt_id(self) -> str | None:
        if self.poll_request_id is None:
            return None
        return claiming.receipt_id(self.namespace, self.kind, self.worker_id, self.poll_request_id)

    @property
    def queue_key(self) -> QueueKey:
        return QueueKey(self.namespace, self.task_queue, self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A leased task: the rows it was read from, and its body as the worker gets it (history apart)."""

    facts: TaskFacts
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Something to lock was seen."""

    worker: WorkerRegistration
    # Best first, one per type.
    candidates: list[Candidate]
    clock: ClockReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """Nothing for this worker now. `was_busy`: another request with this poll id is being served, look again soon."""

    worker: WorkerRegistration
    clock: ClockReading
    was_busy: bool = False


class NothingReadyError(Exception):
    """The probe saw a task but the lock found none: somebody else has it. Rolls the reservation back."""


# -- look --------------------------------------------------------------------------------------------------------------


def look(request: PollRequest) -> Claimed | Ready | Nothing:
    """Admit the poll, replay the lease of its id, or see whether something is ready. Two reads when empty; no writes.

    Refuses what `admit` and `replay` refuse, and worker_draining.
    """
    facts = claiming.look_up_poll(request.namespace, request.worker_id, request.receipt_id)
    worker = admit(request, facts.worker, facts.clock.moment)
    if (found := replay(request, facts)) is not None:
        return found
    refuse_draining(worker)
    return look_again(request, Nothing(worker=worker, clock=facts.clock))


def look_again(request: PollRequest, before: Nothing) -> Ready | Nothing:
    """Probe for an admitted poll: one read. The claim itself admits again."""
    if request.kind == TaskKind.WORKFLOW and "workflow" not in request.task_kinds:
        # There are no update validation tasks yet, so a poll for nothing else finds nothing.
        return before
    candidates = claiming.probe(wanted_by(request, before.worker), before.clock.now())
    if not candidates:
        return Nothing(worker=before.worker, clock=before.clock)
    return Ready(worker=before.worker, candidates=candidates, clock=before.clock)


# -- admission ---------------------------------------------------------------------------------------------------------


def admit(request: PollRequest, worker: WorkerRegistration | None, now: datetime) -> WorkerRegistration:
    """The registration a poll may act under, or the refusal. Pure; asked again inside the claim's transaction.

    Refuses worker_not_registered, task_queue_mismatch, build_id_mismatch, stale_worker_registration,
    update_validation_capability_not_advertised.
    """
    if worker is None:
        raise PollRefusal(
            PollRefusalReason.WORKER_NOT_REGISTERED,
            "The worker is not registered in this namespace.",
            worker_id=request.worker_id,
        )
    if worker.task_queue != request.task_queue:
        raise PollRefusal(
            PollRefusalReason.TASK_QUEUE_MISMATCH,
            "The worker is registered for another task queue.",
            worker_id=request.worker_id,
            registered_task_queue=worker.task_queue,
            requested_task_queue=request.task_queue,
        )
    if request.build_id and worker.build_id and request.build_id != worker.build_id:
        raise PollRefusal(
            PollRefusalReason.BUILD_ID_MISMATCH,
            "The worker is registered with another build id.",
            worker_id=request.worker_id,
            registered_build_id=worker.build_id,
            requested_build_id=request.build_id,
        )
    if worker.last_heartbeat_at < now - timedelta(seconds=conf.current().worker_stale_after_seconds):
        raise PollRefusal(
            PollRefusalReason.STALE_WORKER_REGISTRATION,
            "The worker's registration is stale: it has not been heard of for too long.",
            worker_id=request.worker_id,
        )
    if "update_validation" in request.task_kinds and "update_validation_tasks" not in worker.capabilities:
        raise PollRefusal(
            PollRefusalReason.UPDATE_VALIDATION_CAPABILITY_NOT_ADVERTISED,
            "The worker is registered without the capability update_validation_tasks.",
            task=None,
            poll_status="unsupported",
        )
    return worker


def refuse_draining(worker: WorkerRegistration) -> None:
    """A draining worker gets no new lease, though it may still fetch one that it holds."""
    if worker.is_draining:
        raise PollRefusal(
            PollRefusalReason.WORKER_DRAINING, "The worker is draining.", drain_reason=worker.drain_reason
        )


def wanted_by(request: PollRequest, worker: WorkerRegistration) -> Wanted:
    """What this worker can be given. No workflow types means any; no activity types means any too."""
    types = worker.supported_workflow_types if request.kind == TaskKind.WORKFLOW else worker.supported_activity_types
    return Wanted(
        namespace=request.namespace,
        task_queue=request.task_queue,
        kind=request.kind,
        types=tuple(sorted(set(types))),
        build_id=worker.build_id,
    )


# -- replay ------------------------------------------------------------------------------------------------------------


def replay(request: PollRequest, facts: PollFacts) -> Claimed | None:
    """The live lease that this poll id was granted before, if any: one read, nothing written, nothing extended.

    Refuses poll_request_task_kinds_conflict and poll_cached_task_expired (worker-protocol.md 6.1).
    """
    receipt = facts.receipt
    if receipt is None:
        return None
    bound = tuple(receipt.task_kinds or ())
    if bound != request.task_kinds:
        raise PollRefusal(
            PollRefusalReason.POLL_REQUEST_TASK_KINDS_CONFLICT,
            "This poll request id was used for other task kinds.",
            task=None,
            poll_status="conflict",
            poll_request_id=request.poll_request_id,
            requested_task_kinds=list(request.task_kinds),
            bound_task_kinds=list(bound),
        )
    found = claiming.read_task_facts(
        receipt.task_id,
        kind=request.kind,
        worker_id=request.worker_id,
        attempt_id=receipt.activity_attempt_id,
    )
    if found is None or not _is_live(found, receipt):
        raise PollRefusal(
            PollRefusalReason.POLL_CACHED_TASK_EXPIRED,
            "The task that this poll request id leased is not leased by it any more.",
            task=None,
            poll_status="conflict",
            poll_request_id=request.poll_request_id,
        )
    return Claimed(facts=found, body=task_body(found))


def _is_live(found: TaskFacts, receipt: PollReceipt) -> bool:
    task = found.task
    return (
        task.status == TaskStatus.LEASED
        and task.lease_owner == receipt.worker_id
        and task.attempt_count == receipt.attempt_number
        and task.lease_expires_at is not None
        and task.lease_expires_at > found.now
    )


# -- the claim ---------------------------------------------------------------------------------------------------------


def claim(request: PollRequest, seen: Ready) -> Claimed:
    """Lease one of the ready tasks that were seen, inside the caller's transaction or savepoint.

    Raises NothingReadyError when others have taken them all; refuses poll_request_busy when another request with this
    poll id is being served, and whatever admission refuses if the registration changed meanwhile. The caller rolls
    back to where the claim began for each of them; the task's queue is hinted at if it was locked by then.
    """
    worker, candidates, clock = seen.worker, seen.candidates, seen.clock
    wanted = wanted_by(request, worker)
    attempt_id = new_id() if request.kind == TaskKind.ACTIVITY else None
    # The clock of the look is good enough for what is decided before the lock.
    receipt = _reserve(request, candidates[0], attempt_id, clock.now())
    locked = _lock_best(wanted, candidates, clock.now())
    if locked is None:
        raise NothingReadyError
    hint_unless_committed(request.queue_key)
    task_id, attempt_count = locked
    facts = claiming.read_task_facts(task_id, kind=request.kind, worker_id=request.worker_id)
    if facts is None:
        raise AssertionError(f"task {task_id} is locked but its run cannot be read")
    _check_registration(request, worker, facts)
    _lease(request, worker, facts)
    reporting.note_place(facts.task)
    attempt = _begin_attempt(facts, request, attempt_id) if attempt_id else None
    if receipt is not None and (receipt.task_id, receipt.attempt_number) != (task_id, attempt_count + 1):
        rows.update(PollReceipt, {"task_id": task_id, "attempt_number": attempt_count + 1}, {"id": receipt.id})
    leased = replace(facts, attempt=attempt)
    # Built here, inside the transaction: a stored row that cannot be read is a fault and leases nothing.
    return Claimed(facts=leased, body=task_body(leased))


def _reserve(request: PollRequest, candidate: Candidate, attempt_id: str | None, now: datetime) -> PollReceipt | None:
    """Hold the poll id before any task is locked, filled in with the likely task, so that it need not be updated."""
    if request.receipt_id is None or request.poll_request_id is None:
        return None
    settings = conf.current()
    lease = _lease_seconds(request.kind)
    receipt = PollReceipt(
        id=request.receipt_id,
        namespace=request.namespace,
        kind=request.kind,
        worker_id=request.worker_id,
        poll_request_id=request.poll_request_id,
        task_kinds=list(request.task_kinds),
        task_id=candidate.task_id,
        attempt_number=candidate.attempt_count + 1,
        activity_attempt_id=attempt_id,
        created_at=now,
        expires_at=now + timedelta(seconds=max(lease, settings.poll_receipt_seconds)),
    )
    if not claiming.reserve_receipt(receipt):
        raise PollRefusal(
            PollRefusalReason.POLL_REQUEST_BUSY, "Another request with this poll request id is being served."
        )
    return receipt


def _lock_best(wanted: Wanted, candidates: Sequence[Candidate], now: datetime) -> tuple[str, int] | None:
    if not wanted.types:
        return claiming.lock_candidate(wanted, now, None)
    for candidate in candidates:
        locked = claiming.lock_candidate(wanted, now, candidate.type)
        if locked is not None:
            return locked
    return None


def _check_registration(request: PollRequest, admitted: WorkerRegistration, facts: TaskFacts) -> None:
    """Between admission and the lock the worker may have gone, moved or been told to drain."""
    worker = admit(request, facts.worker, facts.now)
    refuse_draining(worker)
    if worker.registration_token != admitted.registration_token:
        raise PollRefusal(
            PollRefusalReason.STALE_WORKER_REGISTRATION,
            "The worker registered anew while this poll was waiting.",
            worker_id=request.worker_id,
        )


def _lease_seconds(kind: str) -> int:
    settings = conf.current()
    return settings.workflow_lease_seconds if kind == TaskKind.WORKFLOW else settings.activity_lease_seconds


def _lease(request: PollRequest, worker: WorkerRegistration, facts: TaskFacts) -> None:
    """Write the lease on the locked row; `facts.task` shows it afterwards."""
    task = facts.task
    columns = {
        "status": TaskStatus.LEASED,
        "lease_owner": request.worker_id,
        "leased_at": facts.now,
        "lease_expires_at": facts.now + timedelta(seconds=_lease_seconds(task.kind)),
        "renewal_count": 0,
        "attempt_count": task.attempt_count + 1,
        "claim_snapshot": {
            "registration_token": worker.registration_token,
            "protocol_version": str(request.protocol_version),
            "capabilities": worker.capabilities,
        },
        "poll_request_id": request.poll_request_id,
        **_columns_of_kind(task, facts.now),
    }
    leased = rows.update(
        Task, columns, {"id": task.id, "status": TaskStatus.READY, "attempt_count": task.attempt_count}
    )
    if leased != 1:
        raise AssertionError(f"task {task.id} changed under its lock")
    for name, value in columns.items():
        setattr(task, name, value)


def _columns_of_kind(task: Task, now: datetime) -> dict[str, Any]:
    """A workflow claim fixes what it is shown; an activity claim starts the attempt's clocks."""
    if task.kind == TaskKind.WORKFLOW:
        return {"claimed_history_sequence": task.visible_sequence}
    start_to_close_at = after(now, task.start_to_close_seconds)
    heartbeat_at = after(now, task.heartbeat_seconds)
    return {
        "start_to_close_at": start_to_close_at,
        "heartbeat_at": heartbeat_at,
        "schedule_to_start_at": None,
        "deadline_at": earliest(start_to_close_at, heartbeat_at, task.schedule_to_close_at),
    }


def _begin_attempt(facts: TaskFacts, request: PollRequest, attempt_id: str) -> ActivityAttempt:
    """The attempt of a leased activity; its `ActivityStarted` follows with its outcome."""
    task = facts.task
    attempt = ActivityAttempt(
        id=attempt_id,
        namespace=task.namespace,
        task_id=task.id,
        activity_execution_id=task.activity_execution_id or "",
        run_id=task.run_id,
        attempt_number=task.attempt_count,
        status=AttemptStatus.RUNNING,
        lease_owner=request.worker_id,
        started_at=facts.now,
        lease_expires_at=task.lease_expires_at,
    )
    rows.insert([attempt])
    return attempt
