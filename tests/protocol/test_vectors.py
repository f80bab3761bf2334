"""Every vector against a real server, one test a case (docs/protocol/vectors.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import clean_database
from tests.protocol.run_vectors import VECTORS, Server, run_case
from tests.protocol.vector_format import Case, read_cases
from tests.server import ServerProcess

pytestmark = pytest.mark.database

LEASE_SECONDS = 2
# The capabilities that a setting switches off.
SWITCHES = {
    "workflow_task_completion_activity_poll": "CARRY_ACTIVITY_ON_WORKFLOW",
    "workflow_task_completion_workflow_poll": "CARRY_WORKFLOW_ON_WORKFLOW",
    "activity_completion_workflow_poll": "CARRY_WORKFLOW_ON_ACTIVITY",
    "carried_poll_inline_task": "CARRY_INLINE_TASK",
}

# Servers that meet every need between them: what each lacks of the capabilities, and how long its leases are.
SERVERS: dict[str, dict[str, Any]] = {
    "as it comes": {"off": []},
    "short leases": {"off": [], "lease_seconds": LEASE_SECONDS},
    "no activity polls": {"off": ["workflow_task_completion_activity_poll"]},
    "activity polls alone": {"off": [name for name in SWITCHES if name != "workflow_task_completion_activity_poll"]},
}


def meets(name: str, need: str) -> bool:
    kind = SERVERS[name]
    if need == "short_lease":
        return "lease_seconds" in kind
    if need == "checkpoints":
        return True
    return (need.removeprefix("not ") in kind["off"]) is need.startswith("not ")


def placed() -> list[Any]:
    """Each case with the first server that has what it needs; a case that none has would be tested nowhere."""
    found = []
    for path in sorted(VECTORS.glob("*.json")):
        for case in read_cases(path):
            able = [name for name in SERVERS if all(meets(name, need) for need in case.needs)]
            assert able, f"no server here has what {case.id} needs: {case.needs}"
            # One process runs a server's cases, one after the other, so that each server starts once.
            found.append(pytest.param(able[0], case, id=case.id, marks=pytest.mark.xdist_group(f"vectors: {able[0]}")))
    return sorted(found, key=lambda param: list(SERVERS).index(param.values[0]))


class Servers:
    """One server at a time, of the kind that was asked for last."""

    def __init__(self) -> None:
        self.name = ""
        self.process: ServerProcess | None = None
        self.server: Server

    def get(self, name: str) -> Server:
        if self.name != name:
            self.stop()
            self._start(name)
        return self.server

    def _start(self, name: str) -> None:
        lease_seconds = SERVERS[name].get("lease_seconds")
        settings = {f"DURABLE_{SWITCHES[capability]}": "0" for capability in SERVERS[name]["off"]}
        if lease_seconds:
            settings |= {f"DURABLE_{kind}_LEASE_SECONDS": str(lease_seconds) for kind in ("WORKFLOW", "ACTIVITY")}
        self.name, self.process = name, ServerProcess(**settings)
        self.process.start()
        self.server = Server(self.process.url, self.process.token, lease_seconds=lease_seconds)
        self.server.discover()

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()


@pytest.fixture(scope="module")
def servers(django_db_setup: None, django_db_blocker: Any) -> Iterator[Servers]:
    """Servers of this test's database. None outlives the module: its upkeep would work on the rows of other tests."""
    with django_db_blocker.unblock():
        clean_database()
        started = Servers()
        yield started
        started.stop()


@pytest.mark.parametrize(("name", "case"), placed())
def test_vector(servers: Servers, name: str, case: Case) -> None:
    result = run_case(case, servers.get(name))

    assert result.verdict == "PASS", "\n".join([f"{case.id}: {result.verdict}", *result.lines])
