"""It loses nothing when its process is killed at any moment, again and again, under load."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from durable.models import ActivityAttempt, CompletionReceipt, Run
from durable.states import OPEN_RUN, AttemptStatus, TaskKind
from tests import factories as make
from tests.concurrency.tools import eventually
from tests.crash.killable_server import KillableServer
from tests.crash.raw_worker import STEPS, RawWorker, Traffic, start_over_http
from tests.invariants import check_invariants
from tests.sdk.session import SdkSession
from tests.sdk.workflows import FIVE_RESULTS, Five, step

WORKERS = 4
WORKFLOWS = 30
KILLS = 10
PATIENCE = 60.0

HISTORY = [
    "StartAccepted", "WorkflowStarted",
    *["ActivityScheduled", "ActivityStarted", "ActivityCompleted"] * STEPS,
    "WorkflowCompleted",
]  # fmt: skip


@contextmanager
def serving(**settings: str) -> Iterator[KillableServer]:
    """A server that may be killed and started again inside the block."""
    server = KillableServer(**settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def open_runs() -> bool:
    return Run.objects.filter(status__in=OPEN_RUN).exists()


def kill_after(server: KillableServer, progress: Callable[[], int], more: int) -> None:
    """Kill the server once it has done so much more, in the middle of further work, and start it again at once."""
    wanted = progress() + more
    eventually(lambda: progress() >= wanted, f"{more} more answers", within=PATIENCE)
    assert open_runs(), "the work was over before the kill"
    server.kill()
    server.start()


@contextmanager
def load(server: KillableServer) -> Iterator[Traffic]:
    """Workers that run workflows which are started meanwhile; ends when all runs are closed."""
    traffic = Traffic(server)
    workers = [f"w-{number}" for number in range(WORKERS)]
    for worker_id in workers:
        make.register(worker_id)
    ids = [f"order-{number}" for number in range(WORKFLOWS)]
    starter = threading.Thread(target=start_over_http, args=(traffic, ids))
    with ExitStack() as working:
        for worker_id in workers:
            working.enter_context(RawWorker(traffic, worker_id))
        starter.start()
        yield traffic
        starter.join(PATIENCE)
        eventually(lambda: not open_runs(), "all runs are closed", every=0.02, within=PATIENCE)


@pytest.mark.usefixtures("database")
def test_records_each_step_once_however_often_it_dies_at_a_commit() -> None:
    """Leases outlast the server's absence: only receipts can tell what was done, and no work may be done twice."""
    moments = random.Random(1)
    with serving() as server, load(server) as traffic:
        server.kill()
        for number in range(KILLS):
            moment = ("before", "after")[number % 2]
            server.live_until(f"{moment}:{moments.randint(20, 60)}")
            assert open_runs(), "the work was over before the kill"
        server.start()

    assert traffic.unexpected == []
    assert not traffic.reasons, "with leases this long nobody is late"
    assert [make.event_types(run.id) for run in Run.objects.all()] == [HISTORY] * WORKFLOWS
    assert ActivityAttempt.objects.count() == WORKFLOWS * STEPS
    assert not ActivityAttempt.objects.exclude(status=AttemptStatus.COMPLETED).exists()
    check_invariants()


@pytest.mark.usefixtures("database")
def test_ends_every_run_when_leases_expire_while_the_server_is_away() -> None:
    settings = {"DURABLE_ACTIVITY_LEASE_SECONDS": "1", "DURABLE_WORKFLOW_LEASE_SECONDS": "1"}
    moments = random.Random(2)
    with serving(**settings) as server, load(server) as traffic:
        for _ in range(KILLS):
            kill_after(server, lambda: traffic.answered, moments.randint(5, 50))

    assert traffic.unexpected == []
    assert Run.objects.filter(status="completed").count() == WORKFLOWS
    assert CompletionReceipt.objects.filter(kind=TaskKind.ACTIVITY).count() == WORKFLOWS * STEPS
    check_invariants()


@pytest.mark.usefixtures("database")
def test_ends_every_run_of_the_published_sdk_s_workers() -> None:
    kills, workflows, moments = 3, 12, random.Random(3)
    settings = {"DURABLE_ACTIVITY_LEASE_SECONDS": "2", "DURABLE_WORKFLOW_LEASE_SECONDS": "2"}
    with serving(**settings) as server, SdkSession(server.url, server.token) as sdk:
        handles = [sdk.start("five") for _ in range(workflows)]
        with (
            sdk.worker(workflows=[Five], activities=[step]),
            sdk.worker(workflows=[Five], activities=[step]),
        ):
            for _ in range(kills):
                kill_after(server, CompletionReceipt.objects.count, moments.randint(1, 20))
            eventually(lambda: not open_runs(), "all runs are closed", every=0.02, within=PATIENCE)
            results = [sdk.result(handle) for handle in handles]

    assert results == [FIVE_RESULTS] * workflows
    check_invariants()
