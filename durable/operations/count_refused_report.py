"""Count a refused report: best effort, after the refusal's rollback, off the answer's path (docs/design.md, rule 8)."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

from django.db.models import F

from durable import conf
from durable.models import RefusedReport, Task
from durable.refusals import Reason
from durable.sql import rows
from durable.sql.clock import read_clock
from durable.sql.transactions import transactional

# Refusals of a guard about a task that exists. Not counted: what is wrong with the request itself, or with the caller.
COUNTED = frozenset(
    {
        Reason.CONFLICTING_COMPLETION,
        Reason.CHECKPOINT_SEQUENCE_MISMATCH,
        Reason.TASK_NOT_LEASED,
        Reason.LEASE_EXPIRED,
        Reason.LEASE_OWNER_MISMATCH,
        Reason.WORKFLOW_TASK_ATTEMPT_MISMATCH,
        Reason.RUN_CLOSED,
        Reason.ATTEMPT_NOT_FOUND,
        Reason.TASK_MISMATCH,
        Reason.STALE_ATTEMPT,
        Reason.RUN_CANCELLED,
        Reason.RUN_TERMINATED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedReportSeen:
    """A refused report as an access log would note it: no content, only its size and a keyed digest."""

    namespace: str
    route: str
    task_id: str
    lease_owner: str
    # Epoch or attempt id, as the report named it.
    offered_attempt: str
    reason: Reason
    body_bytes: int
    body_digest: str

    @property
    def key(self) -> str:
        parts = (self.namespace, self.route, self.task_id, self.lease_owner, self.offered_attempt, self.reason)
        return hashlib.sha256("\x00".join(parts).encode()).hexdigest()


@transactional
def count_refused_report(seen: RefusedReportSeen) -> bool:
    """Add one to the row of this report's identity, or make it; False when a cap leaves it to the metrics."""
    now = read_clock()
    counted = RefusedReport.objects.filter(id=seen.key).update(
        count=F("count") + 1,
        last_refused_at=now,
        body_bytes=seen.body_bytes,
        body_digest=seen.body_digest,
    )
    if counted:
        return True
    task = Task.objects.filter(id=seen.task_id, namespace=seen.namespace).only("run_id", "attempt_count").first()
    if task is None or not _has_room(seen):
        return False
    row = RefusedReport(
        id=seen.key,
        namespace=seen.namespace,
        route=seen.route,
        task_id=seen.task_id,
        run_id=task.run_id,
        lease_owner=seen.lease_owner,
        offered_attempt=seen.offered_attempt,
        current_attempt=task.attempt_count,
        reason=seen.reason,
        first_refused_at=now,
        last_refused_at=now,
        body_bytes=seen.body_bytes,
        body_digest=seen.body_digest,
    )
    return rows.insert([row], or_ignore=True) == 1


def _has_room(seen: RefusedReportSeen) -> bool:
    settings = conf.current()
    of_task = RefusedReport.objects.filter(task_id=seen.task_id)[: settings.refused_report_rows_per_task]
    if of_task.count() >= settings.refused_report_rows_per_task:
        return False
    return _rows_of(seen.namespace) < settings.refused_report_rows_per_namespace


# Namespace -> (rows, monotonic time until which that number is good enough); the cap is soft.
_counted: dict[str, tuple[int, float]] = {}
_COUNT_SECONDS = 60.0


def _rows_of(namespace: str) -> int:
    """About how many rows a namespace has: counted once a minute, and by this process's own rows in between."""
    rows_now, until = _counted.get(namespace, (0, 0.0))
    if until < time.monotonic():
        most = conf.current().refused_report_rows_per_namespace
        rows_now = RefusedReport.objects.filter(namespace=namespace)[:most].count()
        until = time.monotonic() + _COUNT_SECONDS
    _counted[namespace] = (rows_now + 1, until)
    return rows_now


def forget_counts() -> None:
    """Count again at the next refusal."""
    _counted.clear()
