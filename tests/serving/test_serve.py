"""`manage.py serve`: what it refuses to start, and how it stops (docs/design.md 8)."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest import mock
from urllib.request import Request, urlopen

import pytest
import uvicorn
from django.conf import settings
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.db import connection

from durable.models import UpkeepLeader
from tests import factories as make
from tests.parking import wait_until
from tests.server import ServerProcess
from tests.serving.counts import connection_count

STOP_SECONDS = 5
PARKED = 20


@pytest.fixture
def _own_signals() -> Iterator[None]:
    """The command takes over SIGTERM; it is given back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("database", "_own_signals")
def test_refuses_several_processes_on_sqlite() -> None:
    # Elsewhere several processes are the ordinary way to run, so the same command starts them.
    with mock.patch.object(uvicorn, "run") as run:
        try:
            call_command("serve", "--processes", "2", skip_checks=True)
            refusal = None
        except CommandError as error:
            refusal = str(error)

    if connection.vendor == "sqlite":
        assert refusal == "SQLite has one writer: --processes above 1 needs PostgreSQL or MariaDB."
        run.assert_not_called()
    else:
        assert refusal is None
        assert run.call_args.kwargs["workers"] == 2


@pytest.mark.parametrize("processes", [0, -1])
def test_refuses_less_than_one_process(processes: int) -> None:
    with mock.patch.object(uvicorn, "run") as run, pytest.raises(CommandError, match="at least 1"):
        call_command("serve", f"--processes={processes}", skip_checks=True)

    run.assert_not_called()


def test_checks_its_settings_before_it_starts() -> None:
    unfit = mock.patch.dict(settings.DATABASES["default"], CONN_MAX_AGE=60)

    with unfit, mock.patch.object(uvicorn, "run") as run, pytest.raises(SystemCheckError, match="CONN_MAX_AGE"):
        call_command("serve", skip_checks=False)

    run.assert_not_called()


# -- stopping ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def serving(database: None) -> Iterator[ServerProcess]:
    process = ServerProcess()
    process.start()
    yield process
    process.stop()


def stop_with(process: ServerProcess, number: signal.Signals) -> tuple[int, float]:
    """Send a signal; the exit code, and how long it took to end."""
    assert process.process is not None
    began = time.monotonic()
    process.process.send_signal(number)
    code = process.process.wait(30)
    return code, time.monotonic() - began


def parked_polls(process: ServerProcess) -> int:
    """What the process itself says."""
    request = Request(f"{process.url}/metrics", headers={"Authorization": f"Bearer {process.token}"})
    with urlopen(request, timeout=10) as response:
        lines = response.read().decode().splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("durable_parked_polls "))))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stops_within_five_seconds_and_answers_parked_polls(serving: ServerProcess, number: signal.Signals) -> None:
    make.register()
    body = {"worker_id": "w-1", "task_queue": make.QUEUE, "timeout_seconds": 60}
    with ThreadPoolExecutor(PARKED) as clients:
        polls = [
            clients.submit(serving.call, "POST", f"/api/worker/{kind}-tasks/poll", body)
            for kind in ("workflow", "activity")
            for _ in range(PARKED // 2)
        ]
        wait_until(lambda: parked_polls(serving) == PARKED)

        code, seconds = stop_with(serving, number)
        answers = [one.result(10) for one in polls]

    print(f"stopped after {seconds:.2f} s")
    assert [(status, body["poll_status"]) for status, body in answers] == [(200, "empty")] * PARKED
    assert (code, seconds < STOP_SECONDS) == (0, True), serving.log.read_text()[-2000:]


def test_hands_upkeep_over_when_it_stops(serving: ServerProcess) -> None:
    wait_until(lambda: UpkeepLeader.objects.exists())

    code, _ = stop_with(serving, signal.SIGTERM)

    assert code == 0
    assert not UpkeepLeader.objects.exists()


def test_leaves_no_connection_behind_when_it_stops(serving: ServerProcess) -> None:
    make.register()
    body = {"worker_id": "w-1", "task_queue": make.QUEUE, "timeout_seconds": 0}
    for _ in range(10):
        serving.call("POST", "/api/worker/workflow-tasks/poll", body)

    stop_with(serving, signal.SIGTERM)

    wait_until(lambda: connection_count() == 0)


def test_serves_with_several_processes_and_stops_them_all(database: None) -> None:
    # SQLite refuses this (above).
    if connection.vendor == "sqlite":
        return
    process = ServerProcess()
    process.arguments = ["--processes", "2"]
    process.start()
    make.register()
    started = process.call("POST", "/api/workflows", {"workflow_type": "five", "task_queue": make.QUEUE})
    leased = process.call("POST", "/api/worker/workflow-tasks/poll", {"worker_id": "w-1", "task_queue": make.QUEUE})

    code, seconds = stop_with(process, signal.SIGTERM)

    assert (started[0], leased[1]["poll_status"]) == (201, "leased")
    assert (code, seconds < STOP_SECONDS) == (0, True), process.log.read_text()[-2000:]
    wait_until(lambda: connection_count() == 0)
