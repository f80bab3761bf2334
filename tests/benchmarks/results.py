"""Results of runs that never were."""

from __future__ import annotations

from benchmarks.report import RunResult


def make_result(*, wall_seconds: float = 5.0, **fields: object) -> RunResult:
    values: dict[str, object] = {
        "database": "sqlite",
        "workload": "five",
        "worker": "raw",
        "workflow_count": 100,
        "wall_seconds": wall_seconds,
        "observed_wall_seconds": wall_seconds,
        "starting_seconds": 1.0,
        "server_cpu_seconds": 2.0,
        "worker_cpu_seconds": 1.0,
        "database_cpu_seconds": None,
        "starter_cpu_seconds": 0.0,
        "other_cpu_seconds": 0.0,
        "request_count": None,
        "commit_count": None,
        "statement_count": None,
        "locked_poll_count": None,
    }
    return RunResult(**{**values, **fields})
