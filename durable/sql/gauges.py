"""What operators watch of the whole engine: how long work waits, which leases ran out, how upkeep keeps up.

Read at each scrape of `/metrics`, so nothing here may cost more as tables grow: every number is a few seeks in an
index, a count ends at its cap, and so does the number of queues.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from durable.models import Namespace, Task, UpkeepPass
from durable.sql.clock import read_clock
from durable.sql.rows import aware, fetch_all, fetch_one
from durable.states import TaskKind, TaskStatus

# Each queue is two series; what is beyond is left out, and the gauges say so.
MOST_QUEUES = 100
MOST_COUNTED = 1000

_TASKS, _PASSES, _NAMESPACES = Task._meta.db_table, UpkeepPass._meta.db_table, Namespace._meta.db_table

# The smallest key of an index behind a given one: one seek, whatever lies between.
_NEXT_QUEUE = f"SELECT MIN(t.task_queue) FROM {_TASKS} t WHERE t.namespace = %s AND t.task_queue > %s"
# In durable_task_claim_any the oldest task of each priority is its first one: twenty seeks.
_PLACES = " UNION ALL ".join(
    f"SELECT '{kind.value}' AS kind, {priority} AS priority" for kind in TaskKind for priority in range(10)
)
_OLDEST_READY = (
    "SELECT o.kind, MIN(o.oldest) FROM (SELECT y.kind AS kind,"
    f" (SELECT t.available_at FROM {_TASKS} t WHERE t.namespace = %s AND t.task_queue = %s AND t.kind = y.kind"
    " AND t.status = %s AND t.due = %s AND t.priority = y.priority ORDER BY t.available_at, t.id LIMIT 1) AS oldest"
    f" FROM ({_PLACES}) y) o GROUP BY o.kind"
)
# Both along durable_task_lease_expiry.
_OLDEST_LEASE = f"SELECT MIN(lease_expires_at) FROM {_TASKS} WHERE lease_expires_at <= %s"
_EXPIRED_LEASES = f"SELECT COUNT(*) FROM (SELECT 1 AS one FROM {_TASKS} WHERE lease_expires_at <= %s LIMIT %s) e"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAge:
    """How long the oldest ready task of a queue has waited; 0 when none does."""

    namespace: str
    task_queue: str
    kind: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The numbers of one moment. `expired_lease_count` ends at MOST_COUNTED."""

    queues: list[QueueAge]
    has_more_queues: bool
    expired_lease_count: int
    oldest_expired_lease_seconds: float
    # Seconds since each duty last succeeded in some process; None if it never did.
    upkeep_lag_seconds: dict[str, float | None]


def read_gauges() -> Gauges:
    """A bounded number of reads by index."""
    now = read_clock()
    queues = _queues()
    oldest = aware(fetch_one(_OLDEST_LEASE, (now,))[0])
    return Gauges(
        queues=[age for queue in queues[:MOST_QUEUES] for age in _ages(*queue, now)],
        has_more_queues=len(queues) > MOST_QUEUES,
        expired_lease_count=fetch_one(_EXPIRED_LEASES, (now, MOST_COUNTED))[0],
        oldest_expired_lease_seconds=_since(oldest, now) or 0.0,
        upkeep_lag_seconds={
            duty: _since(aware(succeeded_at), now)
            for duty, succeeded_at in fetch_all(f"SELECT duty, last_success_at FROM {_PASSES} ORDER BY duty", ())
        },
    )


def _queues() -> list[tuple[str, str]]:
    """Queues that have or had tasks, by name, and one more than are shown if there are so many."""
    found: list[tuple[str, str]] = []
    for (namespace,) in fetch_all(f"SELECT name FROM {_NAMESPACES} ORDER BY name LIMIT %s", (MOST_QUEUES + 1,)):
        last = ""
        while len(found) <= MOST_QUEUES and (following := fetch_one(_NEXT_QUEUE, (namespace, last))[0]) is not None:
            found.append((namespace, following))
            last = following
    return found


def _ages(namespace: str, task_queue: str, now: datetime) -> list[QueueAge]:
    oldest = fetch_all(_OLDEST_READY, (namespace, task_queue, TaskStatus.READY, True))
    return [
        QueueAge(namespace=namespace, task_queue=task_queue, kind=kind, seconds=_since(aware(available_at), now) or 0.0)
        for kind, available_at in oldest
    ]


def _since(moment: datetime | None, now: datetime) -> float | None:
    return None if moment is None else max(0.0, (now - moment).total_seconds())
