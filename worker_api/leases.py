"""The wire's form of a lease: what a poll answers, and what a completion answers for a poll it carried."""

from __future__ import annotations

from typing import Any

from durable.history.times import stamp
from durable.leases import Leased
from durable.task_bodies import history_fields
from wire.compression import compress_history


def lease_fields(leased: Leased, *, history_encoding: str | None) -> dict[str, Any]:
    """The task, with the first page of its history if it is a workflow task, and the time to measure its lease by."""
    task = leased.claimed.body
    if leased.page is not None:
        task = {**task, **compress_history(history_fields(leased.page), history_encoding)}
    return {"task": task, "poll_status": "leased", "server_time": stamp(leased.server_time)}
