"""What `/api/ready` looks at (docs/protocol/control-plane.md 5.2)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from durable.models import Namespace, Task, UpkeepPass
from durable.sql.clock import read_clock
from durable.wakeups.remote import RemoteHints

# A lease that is this long past its end, or a sweep that did not succeed for this long, means upkeep is not working.
MOST_OVERDUE = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether the process should get work, and each check's word."""

    is_ready: bool
    checks: dict[str, Any]


_migrated: list[bool] = []


def read_readiness(remote: RemoteHints | None) -> Readiness:
    """A handful of reads by key. Degraded wake-ups do not make a process unready: work goes on by probing."""
    checks: dict[str, Any] = {"database": "ok", "migrations": "ok" if _is_migrated() else "pending"}
    if checks["migrations"] != "ok":
        return Readiness(is_ready=False, checks=checks)
    now = read_clock()
    oldest = Task.objects.filter(lease_expires_at__lt=now).order_by("lease_expires_at").values("lease_expires_at")[:1]
    overdue = max((now - row["lease_expires_at"] for row in oldest), default=timedelta())
    checks["oldest_expired_lease_seconds"] = round(overdue.total_seconds(), 3)
    swept = UpkeepPass.objects.filter(duty="recover_leases").first()
    age = now - swept.last_success_at if swept and swept.last_success_at else None
    checks["sweep_last_success_age_seconds"] = None if age is None else round(age.total_seconds(), 3)
    # Every process sweeps, so an old last success is this process's trouble too; none at all means it just began.
    is_late = overdue > MOST_OVERDUE or (age is not None and age > MOST_OVERDUE)
    checks["upkeep"] = "late" if is_late else "ok"
    checks["namespaces"] = "ok" if Namespace.objects.exists() else "none"
    checks["wakeups"] = "local" if remote is None else "ok" if remote.is_connected else "degraded"
    return Readiness(is_ready=checks["upkeep"] == "ok" and checks["namespaces"] == "ok", checks=checks)


def _is_migrated() -> bool:
    """Asked until it is true, then remembered: migrations do not go backwards under a running server."""
    if not _migrated:
        executor = MigrationExecutor(connection)
        if executor.migration_plan(executor.loader.graph.leaf_nodes()):
            return False
        _migrated.append(True)
    return True
