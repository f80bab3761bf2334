"""The engine's settings: one typed object read from Django's `DURABLE = {…}`, every key with unit and default."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableSettings:
    """What a site may set. Keys of `DURABLE` are these names in upper case."""

    default_namespace: str = "default"
    # Lease lengths; a workflow lease is renewed by the task heartbeat, an activity lease by its heartbeat or renewal.
    workflow_lease_seconds: int = 60
    activity_lease_seconds: int = 300
    # A poll without `timeout_seconds` waits this long; nobody waits longer than the maximum.
    long_poll_seconds: int = 30
    long_poll_max_seconds: int = 60
    # Polls parked at once in one process; one more is answered 429.
    long_poll_capacity: int = 10_000
    # How often a process looks for work that nobody hinted at; one statement for all parked polls together.
    probe_interval_seconds: float = 0.5
    # Threads that run operations, each with one connection. On SQLite one of them is the only writer.
    db_threads: int = 4
    # How long a request waits for a thread before it is answered 503.
    db_wait_seconds: float = 5.0
    # Carried polls: which completions may carry which poll, and whether its answer may hold the task (docs/protocol/
    # carried-polls.md). What is off is not advertised, and the field is ignored like any unknown one.
    carry_activity_on_workflow: bool = True
    carry_workflow_on_activity: bool = True
    carry_workflow_on_workflow: bool = True
    carry_inline_task: bool = True
    # A larger task is left to the poll.
    inline_task_bytes: int = 256 * KIB
    worker_heartbeat_interval_seconds: int = 10
    worker_stale_after_seconds: int = 60
    # A poll counts as a sign of life, written at most this often per worker.
    worker_seen_interval_seconds: float = 10.0
    poll_receipt_seconds: int = 120
    deregistration_receipt_seconds: int = 600
    # Leases one activity may lose before it fails with `lease_lost`.
    max_lost_leases: int = 10
    count_refused_reports: bool = True
    refused_report_rows_per_task: int = 20
    refused_report_rows_per_namespace: int = 10_000
    # Registrations of workers that were not heard of for this long are removed.
    worker_forgotten_after_seconds: int = 7 * 86_400
    refused_report_retention_seconds: int = 14 * 86_400
    upkeep_interval_seconds: float = 0.5
    upkeep_leader_seconds: int = 5
    # Rows one pass of a sweep takes; on SQLite it holds the only writer for as long.
    upkeep_batch_size: int = 25
    prune_batch_size: int = 500
    # Back-off of a failing workflow task: min(maximum, 2^(n-1)) seconds from the second failure on.
    workflow_task_backoff_max_seconds: int = 60
    # Limits that clients see (docs/protocol/worker-protocol.md 14).
    max_payload_bytes: int = 2 * MIB
    body_slack_bytes: int = 1 * MIB
    payload_size_bytes: int = 1536 * KIB
    max_memo_bytes: int = 256 * KIB
    command_batch_size: int = 1000
    pending_activity_count: int = 2000
    pending_timer_count: int = 2000
    history_transaction_size: int = 5000
    history_page_size: int = 500
    history_page_size_max: int = 1000
    history_page_bytes: int = 4 * MIB

    @property
    def max_body_bytes(self) -> int:
        """The largest request body that is read at all."""
        return self.max_payload_bytes + self.body_slack_bytes


@lru_cache(maxsize=1)
def _read() -> DurableSettings:
    given: dict[str, Any] = {key.lower(): value for key, value in getattr(django_settings, "DURABLE", {}).items()}
    known = {field.name for field in fields(DurableSettings)}
    if unknown := sorted(set(given) - known):
        raise ImproperlyConfigured(f"DURABLE has unknown keys: {', '.join(key.upper() for key in unknown)}.")
    for key, value in given.items():
        wanted = type(getattr(DurableSettings(), key))
        if not (isinstance(value, wanted) or (wanted is float and isinstance(value, int))) or (
            isinstance(value, bool) and wanted is not bool
        ):
            raise ImproperlyConfigured(f"DURABLE[{key.upper()!r}] must be of type {wanted.__name__}, not {value!r}.")
    return DurableSettings(**given)


def current() -> DurableSettings:
    """The settings in force."""
    return _read()


def _forget(*, setting: str, **_: object) -> None:
    if setting == "DURABLE":
        _read.cache_clear()


setting_changed.connect(_forget)
