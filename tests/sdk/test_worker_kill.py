"""It gives the task of a killed worker to another one, and does not do so for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from django.utils import timezone

from durable.models import ActivityAttempt, ActivityExecution, Task
from durable.states import AttemptStatus, TaskKind, TaskStatus
from tests import factories as make
from tests.invariants import check_invariants
from tests.sdk.session import QUEUE, SdkSession, wait_until
from tests.sdk.workflows import FIVE_RESULTS, Five, OneOrWhyNot, step
from tests.server import ROOT, ServerProcess

LOST_LEASES = 3
SERVER_SETTINGS = {
    "DURABLE_ACTIVITY_LEASE_SECONDS": "1",
    "DURABLE_WORKFLOW_LEASE_SECONDS": "1",
    "DURABLE_MAX_LOST_LEASES": str(LOST_LEASES),
}
# How long after its expiry a lease may still stand; upkeep looks every half second.
RECOVERY = timedelta(seconds=1.5)


@contextmanager
def worker_process(server: ServerProcess, *worker_ids: str, role: str) -> Iterator[subprocess.Popen[bytes]]:
    """Workers of this role in processes of their own; whatever is left of them is killed at the end."""
    command = [sys.executable, "-m", "tests.sdk.worker_process", server.url, QUEUE, role, *worker_ids]
    process = subprocess.Popen(
        command, cwd=ROOT, env=server.environment(), stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_completes_a_run_whose_worker_was_killed_in_an_activity(sdk: SdkSession, shared_server: ServerProcess) -> None:
    handle = sdk.start("five")
    with sdk.worker(workflows=[Five]), worker_process(shared_server, "w-1", role="hangs") as w1:
        wait_until(ActivityAttempt.objects.filter(lease_owner="w-1").exists)
        with sdk.worker(activities=[step], worker_id="w-2"):
            w1.send_signal(signal.SIGKILL)
            result = sdk.result(handle)

    lost, retried = ActivityAttempt.objects.filter(task_id=first_activity_task().id).order_by("attempt_number")[:2]
    assert result == FIVE_RESULTS
    assert (lost.status, lost.lease_owner, retried.lease_owner) == (AttemptStatus.EXPIRED, "w-1", "w-2")
    assert timedelta(0) <= retried.started_at - lost.lease_expires_at <= RECOVERY
    assert make.event_types(handle.run_id)[2:6] == [
        "ActivityScheduled", "ActivityStarted", "ActivityStarted", "ActivityCompleted",
    ]  # fmt: skip
    check_invariants()


def first_activity_task() -> Task:
    return Task.objects.filter(kind=TaskKind.ACTIVITY).order_by("id")[0]


def test_keeps_the_lease_of_a_live_worker_however_long_its_activity_takes(
    sdk: SdkSession, shared_server: ServerProcess
) -> None:
    sdk.start("five")
    with sdk.worker(workflows=[Five]), worker_process(shared_server, "w-1", role="hangs"):
        attempt = wait_until(ActivityAttempt.objects.filter(lease_owner="w-1").first)
        with sdk.worker(activities=[step], worker_id="w-2"):
            several_leases = attempt.started_at + timedelta(seconds=3)
            extended = ActivityAttempt.objects.filter(id=attempt.id, lease_expires_at__gt=several_leases)
            renewed = wait_until(extended.first)

    assert renewed.status == AttemptStatus.RUNNING
    assert ActivityAttempt.objects.filter(task_id=attempt.task_id).count() == 1


def test_completes_a_run_whose_worker_was_killed_in_a_workflow_task(
    sdk: SdkSession, shared_server: ServerProcess
) -> None:
    handle = sdk.start("five")
    with worker_process(shared_server, "w-1", role="dies-in-workflow") as doomed:
        doomed.wait(30)
    held = Task.objects.get(run_id=handle.run_id)

    wait_until(Task.objects.filter(id=held.id, status=TaskStatus.READY).exists)
    waited = timezone.now() - held.lease_expires_at
    with sdk.worker(workflows=[Five], activities=[step]):
        result = sdk.result(handle)

    assert doomed.returncode == -signal.SIGKILL
    assert (held.status, held.lease_owner, held.attempt_count) == (TaskStatus.LEASED, "w-1", 1)
    assert waited <= RECOVERY
    assert result == FIVE_RESULTS
    assert Task.objects.get(id=held.id).attempt_count == 2
    check_invariants()


def test_fails_an_activity_that_kills_every_worker(sdk: SdkSession, shared_server: ServerProcess) -> None:
    handle = sdk.start("one-or-why-not", "step", [1], {})
    doomed = [f"w-{number}" for number in range(LOST_LEASES)]
    with sdk.worker(workflows=[OneOrWhyNot]), worker_process(shared_server, *doomed, role="dies-in-activity"):
        told = sdk.result(handle)

    assert (told["type"], told["category"], told["non_retryable"]) == ("lease_lost", "internal", True)
    assert ActivityExecution.objects.get().lost_lease_count == LOST_LEASES
    assert make.event_types(handle.run_id)[2:] == [
        "ActivityScheduled", *["ActivityStarted"] * LOST_LEASES, "ActivityFailed", "WorkflowCompleted",
    ]  # fmt: skip
    check_invariants()
