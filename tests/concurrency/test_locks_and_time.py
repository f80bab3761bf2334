"""Lock waits: the clock after them, what is left of an operation that gave one up, and who else feels them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.apps import apps
from django.db import OperationalError, connection

from durable.models import ActivityAttempt, CompletionReceipt, HistoryEvent, Task
from durable.operations import complete_activity
from durable.refusals import Reason, Refusal
from durable.sql import claiming, locking
from durable.sql.clock import read_clock
from durable.sql.transactions import is_lock_pressure
from tests import factories as make
from tests.client import ApiClient
from tests.concurrency.scenes import run_with_leased_steps, run_with_ready_task_and_leased_step
from tests.concurrency.tools import (
    Gate,
    eventually,
    gate_after,
    has_row_locks,
    held_run,
    in_thread,
    wait_until_blocked,
)
from tests.factories import Lease
from tests.invariants import check_invariants
from tests.snapshot import changed_tables, take_snapshot


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_now_after_wait_refuses_a_completion_whose_lease_ran_out_while_it_waited(kind: str) -> None:
    make.register()
    started, (lease,) = run_with_leased_steps(1)
    if kind == "workflow":
        started = make.start()
        lease = make.lease_workflow()
    report = make.complete_step if kind == "activity" else make.report_waiting
    # On SQLite nothing can be written while the one writer holds the file.
    expiry = None if has_row_locks() else shorten(lease)

    with held_run(started.run.id) as gate:
        expiry = expiry or shorten(lease)
        late = in_thread(report, lease)
        wait_until_blocked()
        eventually(lambda: read_clock() > expiry, "the lease has run out")
        gate.open()
        with pytest.raises(Refusal) as caught:
            late.result(20)

    assert caught.value.reason == Reason.LEASE_EXPIRED
    assert not CompletionReceipt.objects.filter(task_id=lease.task_id).exists()


def shorten(lease: Lease) -> datetime:
    """The lease ends a moment from now."""
    expiry = read_clock() + timedelta(milliseconds=150)
    Task.objects.filter(id=lease.task_id).update(lease_expires_at=expiry)
    return expiry


@pytest.mark.usefixtures("database")
def test_now_after_wait_keeps_recorded_times_monotonic_within_a_run() -> None:
    make.register()
    started, (first, second) = run_with_leased_steps(2)

    with gate_after(locking, "lock_run") as gate:
        # The first report has the run, but has not yet asked for the time; the second waits for the run meanwhile.
        one = in_thread(make.complete_step, first)
        gate.wait_until_reached()
        other = in_thread(make.complete_step, second)
        wait_until_blocked()
        waited_until = read_clock()
        gate.open()
        one.result(20)
        other.result(20)

    times = list(
        HistoryEvent.objects.filter(run_id=started.run.id).order_by("sequence").values_list("recorded_at", flat=True)
    )
    assert times == sorted(times)
    assert times[-1] > waited_until
    check_invariants()


@pytest.mark.usefixtures("database")
def test_lock_timeout_midway_leaves_no_half_completion() -> None:
    make.register()
    started, step = run_with_ready_task_and_leased_step()

    with touch_of_open_task_times_out() as gate:
        before = take_snapshot()
        completion = in_thread(complete_without_patience, step)
        with pytest.raises(OperationalError) as caught:
            completion.result(30)
        after = take_snapshot()
        gate.open()

    assert is_lock_pressure(caught.value)
    assert changed_tables(before, after) == []
    assert make.complete_step(step).is_duplicate is False
    assert make.event_types(started.run.id).count("ActivityCompleted") == 2
    check_invariants()


def complete_without_patience(step: Lease) -> object:
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET lock_timeout = '50ms'")
        elif connection.vendor == "mysql":
            cursor.execute("SET innodb_lock_wait_timeout = 0")
    if has_row_locks():
        return make.complete_step(step)
    with connection.execute_wrapper(busy_after_the_first_write):
        return make.complete_step(step)


def busy_after_the_first_write(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    """SQLite says BUSY at the beginning of a transaction; here it says so in the middle."""
    if sql.startswith(f"UPDATE {Task._meta.db_table}"):
        import sqlite3

        cause = sqlite3.OperationalError("database is locked")
        cause.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise OperationalError("database is locked") from cause
    return execute(sql, params, many, context)


@contextmanager
def touch_of_open_task_times_out() -> Iterator[Gate]:
    """A claim holds the row of the run's ready workflow task, which every append touches after its first writes."""
    if not has_row_locks():
        yield Gate()
        return
    with gate_after(claiming, "lock_candidate") as gate:
        claim = in_thread(make.lease_workflow)
        gate.wait_until_reached()
        try:
            yield gate
        finally:
            gate.open()
            claim.result(20)


QUICK_SECONDS = 0.2


def test_held_run_lock_starves_nobody_else(api: ApiClient) -> None:
    make.register()
    held, (own, *steps) = run_with_leased_steps(11)
    other, (lease,) = run_with_leased_steps(1)

    with blocked_run(api, held.run.id, steps[0]) as gate:
        reports = [api.begin("POST", f"/api/worker/activity-tasks/{s.task_id}/complete", body_of(s)) for s in steps]
        if has_row_locks():
            wait_until_blocked()
        # Even the held run's own workers stay alive: a heartbeat touches the task alone.
        beats = [
            timed(api, f"/api/worker/activity-tasks/{one.task_id}/{beat}", body_of(one))
            for beat in BEATS
            for one in (lease, own)
        ]
        poll = {"worker_id": "w-1", "task_queue": make.QUEUE, "timeout_seconds": 0}
        polls = [timed(api, "/api/worker/workflow-tasks/poll", poll) for _ in range(4)]
        assert not any(report.done() for report in reports)
        gate.open()

    assert [report.result(20).status for report in reports] == [200] * 10
    seconds = sorted(taken for taken, _ in beats + polls)
    assert {status for _, status in beats + polls} == {200}
    assert seconds[len(seconds) // 2] < QUICK_SECONDS
    assert make.run_of(other).status == "waiting"


# On SQLite the one writing thread is the one that is held up: what it would write waits, what only reads does not.
BEATS = ("heartbeat", "renew-lease", "status") if has_row_locks() else ("status",)


@contextmanager
def blocked_run(api: ApiClient, run_id: str, step: Lease) -> Iterator[Gate]:
    """The run's lock is held: by another connection, or, where there is one writer, by that writer's own operation."""
    if has_row_locks():
        with held_run(run_id) as gate:
            yield gate
        return
    with gate_after(complete_activity, "lock_activity_task") as gate:
        begun = api.begin("POST", f"/api/worker/activity-tasks/{step.task_id}/complete", body_of(step))
        gate.wait_until_reached()
        yield gate
        assert begun.result(20).status == 200


def body_of(lease: Lease) -> dict[str, Any]:
    report = lease.report
    return {
        "activity_attempt_id": report.activity_attempt_id,
        "lease_owner": report.lease_owner,
        "result": make.envelope(None),
    }


def timed(api: ApiClient, path: str, body: dict[str, Any]) -> tuple[float, int]:
    began = time.monotonic()
    answer = api.post(path, body)
    return time.monotonic() - began, answer.status


@pytest.mark.usefixtures("database")
def test_fk_inventory_is_the_attempts_task_and_nothing_else() -> None:
    found = set()
    with connection.cursor() as cursor:
        for model in apps.get_app_config("durable").get_models():
            table = model._meta.db_table
            for constraint in connection.introspection.get_constraints(cursor, table).values():
                if constraint["foreign_key"]:
                    found.add((table, tuple(constraint["columns"]), constraint["foreign_key"]))

    attempts, tasks = ActivityAttempt._meta.db_table, Task._meta.db_table
    assert found == {(attempts, ("task_id",), (tasks, "id"))}
