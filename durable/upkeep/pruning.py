"""Pruning: what only grows is removed in small batches, by age, each batch a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from django.db.models import Q

from durable import conf
from durable.models import PollReceipt, RefusedReport, Task, WorkerIncarnation, WorkerRegistration
from durable.sql.clock import read_clock
from durable.sql.transactions import transactional
from durable.states import IncarnationStatus, TaskStatus
from durable.upkeep.items import Pass, count

BATCHES_PER_PASS = 20


def _in_batches(duty: str, prune_batch: Callable[[], int]) -> Pass:
    removed = 0
    for _ in range(BATCHES_PER_PASS):
        batch = prune_batch()
        removed += batch
        if batch < conf.current().prune_batch_size:
            break
    count(duty, handled=removed)
    return Pass(handled=removed)


def prune_poll_receipts() -> Pass:
    """Receipts past their time, except those of a lease that still lives (it may have been renewed)."""
    return _in_batches("prune_poll_receipts", _prune_poll_receipts)


@transactional
def _prune_poll_receipts() -> int:
    now, size = read_clock(), conf.current().prune_batch_size
    old = list(
        PollReceipt.objects.filter(expires_at__lte=now).order_by("expires_at").values_list(
            "id", "task_id", "worker_id", "attempt_number"
        )[:size]
    )  # fmt: skip
    live = {
        (task_id, owner, attempt)
        for task_id, owner, attempt in Task.objects.filter(
            id__in={row[1] for row in old}, status=TaskStatus.LEASED
        ).values_list("id", "lease_owner", "attempt_count")
    }
    kept = [row[0] for row in old if row[1:] in live]
    if kept:
        # Look at them again later, so that they do not stand in the way of the others.
        PollReceipt.objects.filter(id__in=kept).update(
            expires_at=now + timedelta(seconds=conf.current().poll_receipt_seconds)
        )
    PollReceipt.objects.filter(id__in=[row[0] for row in old if row[1:] not in live]).delete()
    return len(old)


def prune_deregistration_receipts() -> Pass:
    """Incarnations that ended longer ago than receipts are kept; an expired one is answered 410 until it is gone."""
    return _in_batches("prune_deregistration_receipts", _prune_incarnations)


@transactional
def _prune_incarnations() -> int:
    settings = conf.current()
    # Twice the retention, so that "expired" can still be told from "unknown" for a while.
    ended_before = read_clock() - timedelta(seconds=2 * settings.deregistration_receipt_seconds)
    tokens = list(
        WorkerIncarnation.objects.filter(ended_at__lt=ended_before)
        .exclude(status=IncarnationStatus.ACTIVE)
        .order_by("ended_at")
        .values_list("registration_token", flat=True)[: settings.prune_batch_size]
    )
    WorkerIncarnation.objects.filter(registration_token__in=tokens).delete()
    return len(tokens)


def forget_workers() -> Pass:
    """Registrations of workers that crashed long ago; their leases ended by themselves."""
    return _in_batches("forget_workers", _forget_workers)


@transactional
def _forget_workers() -> int:
    now, settings = read_clock(), conf.current()
    is_silent = Q(last_heartbeat_at__lt=now - timedelta(seconds=settings.worker_forgotten_after_seconds))
    silent = list(
        WorkerRegistration.objects.filter(is_silent)
        .order_by("last_heartbeat_at")
        .values_list("pk", "registration_token")[: settings.prune_batch_size]
    )
    # Asked again by the delete: a worker may come back between the two.
    WorkerRegistration.objects.filter(is_silent, pk__in=[key for key, _ in silent]).delete()
    WorkerIncarnation.objects.filter(
        registration_token__in=[token for _, token in silent], status=IncarnationStatus.ACTIVE
    ).update(status=IncarnationStatus.SUPERSEDED, ended_at=now)
    return len(silent)


def prune_refused_reports() -> Pass:
    """Refused reports past their retention."""
    return _in_batches("prune_refused_reports", _prune_refused_reports)


@transactional
def _prune_refused_reports() -> int:
    settings = conf.current()
    refused_before = read_clock() - timedelta(seconds=settings.refused_report_retention_seconds)
    ids = list(
        RefusedReport.objects.filter(last_refused_at__lt=refused_before)
        .order_by("last_refused_at")
        .values_list("id", flat=True)[: settings.prune_batch_size]
    )
    RefusedReport.objects.filter(id__in=ids).delete()
    return len(ids)
