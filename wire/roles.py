"""Every route's roles, in one table. A route without a row does not exist: a test walks the URL map."""

from __future__ import annotations

WORKER = frozenset({"worker"})
OPERATOR = frozenset({"operator", "admin"})
ANY_ROLE = frozenset({"worker", "operator", "admin"})
# No token at all.
OPEN: frozenset[str] = frozenset()

ROUTE_ROLES: dict[str, frozenset[str]] = {
    "health": OPEN,
    "ready": OPEN,
    "unknown-route": OPEN,
    "cluster-info": ANY_ROLE,
    "metrics": OPERATOR,
    # Worker plane
    "worker-register": WORKER,
    "worker-heartbeat": WORKER,
    "worker-deregister": WORKER,
    "worker-deregister-fenced": WORKER,
    "workflow-task-poll": WORKER,
    "workflow-task-complete": WORKER,
    "workflow-task-checkpoint": WORKER,
    "workflow-task-fail": WORKER,
    "workflow-task-heartbeat": WORKER,
    "workflow-task-history": WORKER,
    "activity-task-poll": WORKER,
    "activity-task-complete": WORKER,
    "activity-task-fail": WORKER,
    "activity-task-heartbeat": WORKER,
    "activity-task-renew-lease": WORKER,
    "activity-task-status": WORKER,
    # Control plane
    "workflows": OPERATOR,
    "workflow": OPERATOR,
    "workflow-runs": OPERATOR,
    "workflow-run": OPERATOR,
    "workflow-history": OPERATOR,
    "workflow-cancel": OPERATOR,
    "workflow-run-cancel": OPERATOR,
    "workflow-terminate": OPERATOR,
    "workflow-run-terminate": OPERATOR,
    "workflow-repair": OPERATOR,
}
