"""The upkeep loop: one per process, a handful of duties, each a module (docs/design.md, "Upkeep").

Every process takes back expired leases; everything else is done by the one process that holds the leadership.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from durable import conf, metrics
from durable.models import UpkeepPass
from durable.sql.clock import read_clock
from durable.sql.pool import DatabasePool, Work
from durable.sql.transactions import transactional
from durable.upkeep import leader, pruning, sweeps
from durable.upkeep.items import Pass

log = structlog.get_logger("durable.upkeep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """One duty: how often it runs, and whether every process runs it or only the leader."""

    name: str
    run: Callable[[], Pass]
    every_seconds: float
    leader_only: bool = True


def all_duties() -> list[Duty]:
    """Every duty there is, in the order of a round."""
    tick = conf.current().upkeep_interval_seconds
    return [
        Duty(name="recover_leases", run=sweeps.recover_leases, every_seconds=tick, leader_only=False),
        Duty(name="make_tasks_due", run=sweeps.make_tasks_due, every_seconds=tick / 2),
        Duty(name="fire_timers", run=sweeps.fire_timers, every_seconds=tick / 2),
        Duty(name="time_out_activities", run=sweeps.time_out_activities, every_seconds=tick),
        Duty(name="time_out_runs", run=sweeps.time_out_runs, every_seconds=tick),
        Duty(name="prune_poll_receipts", run=pruning.prune_poll_receipts, every_seconds=10),
        Duty(name="forget_workers", run=pruning.forget_workers, every_seconds=60),
        Duty(name="prune_deregistration_receipts", run=pruning.prune_deregistration_receipts, every_seconds=30),
        Duty(name="prune_refused_reports", run=pruning.prune_refused_reports, every_seconds=30),
    ]


class UpkeepLoop:
    """Runs the duties in the process's pool, one after the other."""

    # How often the last pass of a duty is written down for operators.
    REPORT_SECONDS = 5.0

    def __init__(self, pool: DatabasePool, *, may_lead: bool) -> None:
        self._pool = pool
        self._may_lead = may_lead
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"[:128]
        self._next_run: dict[str, float] = {}
        self._reported: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_leader = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._run_for_ever())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._is_leader:
            await self._pool.run(Work.WRITE, leader.give_up_leadership, self._holder)

    async def _run_for_ever(self) -> None:
        while True:
            try:
                await self._run_round()
            except Exception as error:
                # The database is away, or a duty is broken as a whole: the loop itself must live on.
                metrics.FAULTS.inc()
                log.error("upkeep_round_failed", error=type(error).__name__)
            await asyncio.sleep(conf.current().upkeep_interval_seconds / 2)

    async def _run_round(self) -> None:
        self._is_leader = self._may_lead and await self._lead()
        for duty in all_duties():
            if duty.leader_only and not self._is_leader:
                continue
            now = time.monotonic()
            if self._next_run.get(duty.name, 0) > now:
                continue
            self._next_run[duty.name] = now + duty.every_seconds
            await self._run_duty(duty)

    async def _lead(self) -> bool:
        now = time.monotonic()
        if self._next_run.get("leader", 0) > now:
            return self._is_leader
        self._next_run["leader"] = now + conf.current().upkeep_leader_seconds / 3
        return await self._pool.run(Work.WRITE, leader.take_leadership, self._holder)

    async def _run_duty(self, duty: Duty) -> None:
        try:
            done = await self._pool.run(Work.LOCK_RUN, duty.run)
        except Exception as error:
            done = Pass(failed=1, error=type(error).__name__, is_broken=True)
            log.error("upkeep_duty_failed", duty=duty.name, error=done.error)
        metrics.UPKEEP_LAST_PASS.labels(duty=duty.name).set_to_current_time()
        now = time.monotonic()
        if done.was_full:
            self._next_run[duty.name] = 0
        if done.failed or now - self._reported.get(duty.name, -1e9) > self.REPORT_SECONDS:
            self._reported[duty.name] = now
            await self._pool.run(Work.WRITE, report_pass, duty.name, done)


@transactional
def report_pass(duty: str, done: Pass) -> None:
    """Write down how a duty's last pass went."""
    now = read_clock()
    fields = {
        "last_run_at": now,
        "handled_count": done.handled,
        "failed_count": done.failed,
        "last_error": done.error,
        # One row that cannot be handled does not make the pass a failure; it is counted apart.
        **({} if done.is_broken else {"last_success_at": now}),
    }
    UpkeepPass.objects.update_or_create(duty=duty, defaults=fields)
