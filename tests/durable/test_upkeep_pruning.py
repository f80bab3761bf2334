"""Pruning removes what has served its time, in batches, and nothing that still lives (docs/design.md, rule 10)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from durable.leases import Leased
from durable.models import PollReceipt, RefusedReport, WorkerIncarnation
from durable.operations.deregister_worker import deregister_incarnation, deregister_worker
from durable.operations.heartbeat_workflow_task import heartbeat_workflow_task
from durable.refusals import Reason, Refusal
from durable.sql import rows
from durable.states import IncarnationStatus, TaskKind
from durable.upkeep import pruning
from tests import factories as make
from tests.clock import MICROSECOND, EngineClock

RECEIPT_SECONDS = 120


def test_poll_receipt_is_kept_for_its_time_after_the_lease_ended(clock: EngineClock) -> None:
    make.register()
    make.start()
    make.report_waiting(make.lease_workflow())
    expires_at = PollReceipt.objects.get().expires_at

    clock.turn_to(expires_at - MICROSECOND)
    early = pruning.prune_poll_receipts().handled
    clock.turn_to(expires_at)
    in_time = pruning.prune_poll_receipts().handled

    assert (early, in_time) == (0, 1)
    assert not PollReceipt.objects.exists()


def test_poll_receipt_lives_at_least_120_seconds_after_the_claim(clock: EngineClock) -> None:
    make.register()
    make.start()
    claimed_at = clock.now
    make.lease_workflow()

    kept = PollReceipt.objects.get().expires_at - claimed_at
    assert timedelta(seconds=RECEIPT_SECONDS) <= kept < timedelta(seconds=RECEIPT_SECONDS + 1)


@pytest.mark.parametrize("kind", [TaskKind.WORKFLOW, TaskKind.ACTIVITY])
def test_poll_receipt_of_a_live_lease_is_never_removed(
    clock: EngineClock, override_durable: Callable[..., Any], kind: TaskKind
) -> None:
    override_durable(WORKER_STALE_AFTER_SECONDS=10**8, WORKFLOW_LEASE_SECONDS=1000, ACTIVITY_LEASE_SECONDS=1000)
    make.register()
    make.start()
    if kind == TaskKind.ACTIVITY:
        make.complete(make.lease_workflow(), make.schedule())
    request = make.poll_request(kind)
    leased = make.try_poll(request)
    # As if the receipt had been due long before the lease ends, which a renewal can bring about.
    PollReceipt.objects.update(expires_at=clock.now)

    for _ in range(3):
        clock.advance(RECEIPT_SECONDS)
        pruning.prune_poll_receipts()

    replayed = make.try_poll(request)
    assert isinstance(leased, Leased)
    assert isinstance(replayed, Leased)
    assert replayed.is_replay
    assert replayed.claimed.facts.task.id == leased.claimed.facts.task.id


def test_poll_receipt_of_a_renewed_lease_goes_once_the_lease_is_over(clock: EngineClock) -> None:
    make.register()
    make.start()
    lease = make.lease_workflow()
    for _ in range(5):
        clock.advance(50)
        heartbeat_workflow_task(lease.report)
        pruning.prune_poll_receipts()
    assert PollReceipt.objects.count() == 1

    make.complete(lease, make.finish())
    clock.advance(RECEIPT_SECONDS)
    pruning.prune_poll_receipts()

    assert not PollReceipt.objects.exists()


def test_poll_receipts_go_in_batches_and_live_ones_do_not_stand_in_the_way(
    clock: EngineClock, override_durable: Callable[..., Any]
) -> None:
    override_durable(WORKER_STALE_AFTER_SECONDS=10**8, PRUNE_BATCH_SIZE=5, WORKFLOW_LEASE_SECONDS=10_000)
    make.register()
    for _ in range(6):
        make.start()
    live = [make.lease_workflow() for _ in range(6)]
    PollReceipt.objects.update(expires_at=clock.now)
    rows.insert([old_receipt(number, clock) for number in range(18)])
    clock.advance(1)

    first = pruning.prune_poll_receipts()
    second = pruning.prune_poll_receipts()

    assert set(PollReceipt.objects.values_list("task_id", flat=True)) == {lease.task_id for lease in live}
    assert first.handled >= 18
    assert second.handled == 0


def old_receipt(number: int, clock: EngineClock) -> PollReceipt:
    return PollReceipt(
        id=f"{number:064}",
        namespace="default",
        kind=TaskKind.WORKFLOW,
        worker_id="w-1",
        poll_request_id=f"old-{number}",
        task_kinds=["workflow"],
        task_id=f"T{number:025}",
        attempt_number=1,
        created_at=clock.now,
        expires_at=clock.now,
    )


def test_one_pass_of_pruning_is_bounded(clock: EngineClock, override_durable: Callable[..., Any]) -> None:
    override_durable(WORKER_STALE_AFTER_SECONDS=10**8, PRUNE_BATCH_SIZE=2)
    rows.insert([old_receipt(number, clock) for number in range(50)])

    done = pruning.prune_poll_receipts()

    assert done.handled == 2 * pruning.BATCHES_PER_PASS
    assert PollReceipt.objects.count() == 50 - done.handled


def test_deregistration_receipt_is_answered_then_refused_as_expired_then_unknown(clock: EngineClock) -> None:
    token = make.register().registration_token
    deregister_worker("default", "w-1")

    def asked_again() -> str:
        pruning.prune_deregistration_receipts()
        try:
            deregister_incarnation("default", "w-1", token)
        except Refusal as refusal:
            return refusal.reason
        return "receipt"

    answers = [asked_again()]
    clock.advance(601)
    answers.append(asked_again())
    clock.advance(600)
    answers.append(asked_again())

    assert answers == [
        "receipt",
        Reason.WORKER_REGISTRATION_RECEIPT_EXPIRED,
        Reason.WORKER_REGISTRATION_TOKEN_NOT_FOUND,
    ]


def test_active_incarnations_are_never_pruned(clock: EngineClock) -> None:
    make.register()
    clock.advance(timedelta(days=365))

    pruning.prune_deregistration_receipts()

    assert WorkerIncarnation.objects.get().status == IncarnationStatus.ACTIVE


def test_superseded_incarnations_are_pruned(clock: EngineClock) -> None:
    make.register()
    current = make.register().registration_token
    clock.advance(1201)

    pruning.prune_deregistration_receipts()

    assert WorkerIncarnation.objects.get().registration_token == current


def test_refused_reports_are_pruned_by_their_last_time(clock: EngineClock) -> None:
    for name, age in (("old", 15), ("young", 13)):
        RefusedReport.objects.create(
            id=name,
            namespace="default",
            route="complete",
            task_id="T",
            run_id="R",
            lease_owner="w-1",
            offered_attempt="1",
            current_attempt=1,
            reason="lease_expired",
            first_refused_at=clock.now - timedelta(days=30),
            last_refused_at=clock.now - timedelta(days=age),
            body_bytes=1,
            body_digest="",
        )

    done = pruning.prune_refused_reports()

    assert done.handled == 1
    assert RefusedReport.objects.get().id == "young"
