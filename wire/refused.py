"""Handing refused reports to the count, without making anybody wait for it (docs/design.md, rule 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import structlog
from django.utils.crypto import salted_hmac

from durable import conf, metrics
from durable.operations.count_refused_report import COUNTED, RefusedReportSeen, count_refused_report
from durable.refusals import Refusal
from durable.sql.pool import Work
from wire.process import runtime
from wire.views import Answer, ApiView, Call

log = structlog.get_logger("durable.api")

Handler = Callable[..., Awaitable[Answer]]

_background: set[asyncio.Task[None]] = set()


def counts_refusals(handler: Handler) -> Handler:
    """A report handler whose guard refusals are counted once the answer is on its way."""

    @wraps(handler)
    async def handle(view: ApiView, call: Call, task_id: str) -> Answer:
        try:
            return await handler(view, call, task_id=task_id)
        except Refusal as refusal:
            if refusal.reason in COUNTED and conf.current().count_refused_reports:
                _count_later(_seen(view.route, call, task_id, refusal))
            raise

    return handle


def _seen(route: str, call: Call, task_id: str, refusal: Refusal) -> RefusedReportSeen:
    body = call.request.body
    attempt = call.body.get("activity_attempt_id") or call.body.get("workflow_task_attempt")
    return RefusedReportSeen(
        namespace=call.namespace,
        route=route,
        task_id=task_id,
        lease_owner=str(call.body.get("lease_owner")),
        offered_attempt=str(attempt),
        reason=refusal.reason,
        body_bytes=len(body),
        body_digest=salted_hmac("durable.refused_report", body, algorithm="sha256").hexdigest(),
    )


def _count_later(seen: RefusedReportSeen) -> None:
    if not runtime().pool.has_free_thread():
        metrics.UNCOUNTED_REFUSED_REPORTS.inc()
        return
    task: asyncio.Task[Any] = asyncio.create_task(_count(seen))
    _background.add(task)
    task.add_done_callback(_background.discard)


async def _count(seen: RefusedReportSeen) -> None:
    try:
        kept = await runtime().pool.run(Work.WRITE, count_refused_report, seen)
    except Exception as error:
        # Best effort by contract: the refusal has been answered, and nothing depends on this row.
        log.warning("refused_report_not_counted", error=type(error).__name__)
        kept = False
    if not kept:
        metrics.UNCOUNTED_REFUSED_REPORTS.inc()
