"""Note that workers were heard of because they polled: in batches, apart from any claim (worker-protocol.md 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby

from durable import conf
from durable.models import WorkerRegistration
from durable.sql.clock import read_clock
from durable.sql.transactions import transactional

_BATCH = 200


@transactional
def note_workers_seen(workers: Sequence[tuple[str, str]]) -> int:
    """Refresh registrations, given as sorted (namespace, worker id), that were not refreshed for the interval."""
    now = read_clock()
    seen_before = now - timedelta(seconds=conf.current().worker_seen_interval_seconds)
    refreshed = 0
    for namespace, members in groupby(workers, key=lambda worker: worker[0]):
        ids = [worker_id for _, worker_id in members]
        for start in range(0, len(ids), _BATCH):
            refreshed += WorkerRegistration.objects.filter(
                namespace=namespace, worker_id__in=ids[start : start + _BATCH], last_heartbeat_at__lt=seen_before
            ).update(last_heartbeat_at=now)
    return refreshed
