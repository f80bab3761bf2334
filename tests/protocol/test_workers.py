"""A worker's life on the wire: register, heartbeat, deregister (docs/protocol/worker-protocol.md 3)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durable.models import Task, WorkerIncarnation, WorkerRegistration
from tests import factories as make
from tests.client import ApiClient
from tests.protocol.closings import leased_task
from tests.protocol.reports import ABSENT, AN_ID, Like, register, send
from tests.snapshot import nothing_recorded

A_TOKEN = Like(r"[0-9a-f]{32}")
MANIFEST = {
    name: {"supported": True, "minimum_protocol_version": "1.18", "implementation": "sdk", "more": [1]}
    for name in ("local_activities", "worker_sessions", "sticky_execution")
}
FULL: dict[str, Any] = {
    "sdk_version": "durable-workflow-python/2.12.0",
    "build_id": "build-1",
    "supported_workflow_types": ["five", "six"],
    "supported_activity_types": ["step"],
    "workflow_definition_fingerprints": {"five": "sha256:5"},
    "workflow_command_contracts": {"five": {"signals": ["go"], "signal_contracts": [{"name": "go", "parameters": []}]}},
    "capabilities": [*MANIFEST, "memo_upserts", "typed_search_attributes", "something_new"],
    "capability_manifest": {**MANIFEST, "something_new": {"supported": False, "reason": "why not"}},
    "max_concurrent_workflow_tasks": 7,
    "max_concurrent_activity_tasks": 5,
    "max_concurrent_worker_sessions": 2,
    "task_slots": {"workflow_available": 9, "activity_available": -3, "session_available": 1, "other": 4},
    "process_metrics": {"cpu_percent": 1.5, "host": "a"},
    "heartbeat_interval_seconds": 60,
}


# -- register ----------------------------------------------------------------------------------------------------------


def test_registers_a_worker_and_echoes_it(api: ApiClient) -> None:
    response = register(api, **FULL)

    assert response.status == 201
    assert response.plain == {
        "worker_id": "w-1",
        "registered": True,
        "registration_token": A_TOKEN,
        "namespace": "default",
        "task_queue": make.QUEUE,
        "runtime": "python",
        "build_id": "build-1",
        "capabilities": FULL["capabilities"],
        "capability_manifest": FULL["capability_manifest"],
        "status": "active",
        "heartbeat_interval_seconds": 10,
        "stale_after_seconds": 60,
    }


def test_stores_what_a_worker_says_of_itself(api: ApiClient) -> None:
    register(api, **FULL)

    row = WorkerRegistration.objects.get()
    for name in (
        "sdk_version", "build_id", "supported_workflow_types", "supported_activity_types", "capabilities",
        "workflow_definition_fingerprints", "workflow_command_contracts", "capability_manifest", "process_metrics",
        "max_concurrent_workflow_tasks", "max_concurrent_activity_tasks", "max_concurrent_worker_sessions",
    ):  # fmt: skip
        assert getattr(row, name) == FULL[name], name
    assert row.task_slots == {"workflow_available": 7, "activity_available": 0, "session_available": 1}
    assert row.protocol_version == "1.20"


@pytest.mark.parametrize("blank", [ABSENT, None])
def test_makes_an_id_for_a_worker_without_one(api: ApiClient, blank: Any) -> None:
    response = register(api, worker_id=blank)

    assert (response.status, response.body["worker_id"]) == (201, AN_ID)


def test_needs_little_to_register(api: ApiClient) -> None:
    response = register(api, build_id=ABSENT)

    assert (response.body["build_id"], response.body["capabilities"]) == (None, [])
    row = WorkerRegistration.objects.get()
    assert (row.max_concurrent_workflow_tasks, row.max_concurrent_activity_tasks) == (100, 100)
    assert (row.supported_workflow_types, row.supported_activity_types) == ([], [])


@pytest.mark.parametrize("runtime", ["php", "python", "rust", "typescript", "go", "java", "external"])
def test_takes_every_runtime(api: ApiClient, runtime: str) -> None:
    assert register(api, runtime=runtime).status == 201


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("task_queue", value) for value in (ABSENT, None, "", 7)],
        *[("runtime", value) for value in (ABSENT, None, "", "perl", 7, "Python")],
        ("sdk_version", "x" * 65),
        *[("build_id", value) for value in (7, "x" * 256)],
        *[("supported_workflow_types", value) for value in ("five", {}, [7], [""], ["x"] * 1001, [None])],
        *[("supported_activity_types", value) for value in ("five", {}, [7], [""], ["x"] * 1001)],
        *[("workflow_definition_fingerprints", value) for value in ("x", [], {"five": 7}, {"five": "x" * 256})],
        *[("workflow_command_contracts", value) for value in ("x", [], 7)],
        *[("capabilities", value) for value in ("x", {}, [7], ["a", "a"], [""])],
        *[("capability_manifest", value) for value in ("x", [], {"a": True}, {"a": {}}, {"a": {"supported": "yes"}})],
        *[
            (f"max_concurrent_{what}", value)
            for what in ("workflow_tasks", "activity_tasks", "worker_sessions")
            for value in (0, -1, "x", 1.5, True)
        ],
        *[("task_slots", value) for value in ("x", [], {"workflow_available": "x"}, {"workflow_available": True})],
        *[("process_metrics", value) for value in ("x", [], 7)],
        *[("heartbeat_interval_seconds", value) for value in (0, -1, "x", 1.5)],
    ],
)
def test_refuses_a_registration_whose_field_is_wrong(api: ApiClient, field: str, value: Any) -> None:
    with nothing_recorded():
        response = register(api, **{field: value})

    assert (response.status, response.body["reason"]) == (422, "validation_failed")
    assert {path.split(".")[0] for path in response.body["errors"]} == {field}


def test_needs_a_manifest_from_the_version_that_has_one(api: ApiClient) -> None:
    with nothing_recorded():
        response = register(api, capability_manifest=ABSENT)

    assert (response.status, list(response.body["errors"])) == (422, ["capability_manifest"])
    assert register(api, version="1.17", capability_manifest=ABSENT).status == 201


# -- capabilities and versions -----------------------------------------------------------------------------------------


def manifest(**entry: Any) -> dict[str, Any]:
    return {"local_activities": {"supported": True, "minimum_protocol_version": "1.18", **entry}}


@pytest.mark.parametrize(
    ("version", "capabilities", "entries", "reason"),
    [
        ("1.13", ["memo_upserts"], {}, "workflow_metadata_capability_protocol_mismatch"),
        ("1.15", ["typed_search_attributes"], {}, "workflow_metadata_capability_protocol_mismatch"),
        ("1.20", ["local_activities"], {}, "worker_capability_manifest_mismatch"),
        ("1.20", [], manifest(), "worker_capability_manifest_mismatch"),
        ("1.20", ["local_activities"], manifest(supported=False), "worker_capability_manifest_mismatch"),
        ("1.20", ["local_activities"], manifest(minimum_protocol_version="x"), "worker_capability_manifest_mismatch"),
        (
            "1.20", ["local_activities"], manifest(minimum_protocol_version="1.21"),
            "worker_capability_manifest_mismatch",
        ),
        ("1.17", ["local_activities"], manifest(), "worker_capability_protocol_floor_mismatch"),
        ("1.20", ["prepared_local_activities"], {}, "prepared_local_activity_capability_mismatch"),
        (
            "1.19", ["prepared_local_activities", "cooperative_cancellation"], {},
            "prepared_local_activity_capability_mismatch",
        ),
    ],
)  # fmt: skip
def test_refuses_a_capability_that_does_not_fit(
    api: ApiClient, version: str, capabilities: list[str], entries: dict[str, Any], reason: str
) -> None:
    with nothing_recorded():
        response = register(api, version=version, capabilities=capabilities, capability_manifest=entries)

    assert (response.status, response.body["reason"], response.body["registered"]) == (409, reason, False)


@pytest.mark.parametrize(
    ("version", "capabilities", "entries"),
    [
        ("1.14", ["memo_upserts"], {}),
        ("1.16", ["typed_search_attributes"], {}),
        ("1.18", ["local_activities"], manifest()),
        ("1.20", ["local_activities"], manifest(minimum_protocol_version="1.0")),
        ("1.20", [], manifest(supported=False)),
        ("1.20", ["prepared_local_activities", "cooperative_cancellation"], {}),
        ("1.0", ["something_of_tomorrow"], {}),
    ],
)
def test_takes_a_capability_that_fits(
    api: ApiClient, version: str, capabilities: list[str], entries: dict[str, Any]
) -> None:
    response = register(api, version=version, capabilities=capabilities, capability_manifest=entries)

    assert response.status == 201


def test_refuses_another_definition_while_the_old_worker_lives(api: ApiClient) -> None:
    register(api, workflow_definition_fingerprints={"five": "sha256:1"})

    with nothing_recorded():
        response = register(api, workflow_definition_fingerprints={"five": "sha256:2"})

    assert (response.status, response.body["reason"]) == (409, "workflow_definition_changed")


def test_takes_another_definition_once_the_old_worker_is_stale(api: ApiClient) -> None:
    register(api, workflow_definition_fingerprints={"five": "sha256:1"})
    row = WorkerRegistration.objects.get()
    WorkerRegistration.objects.update(last_heartbeat_at=row.last_heartbeat_at - timedelta(seconds=61))

    assert register(api, workflow_definition_fingerprints={"five": "sha256:2"}).status == 201


@pytest.mark.parametrize(
    "fingerprints", [{"five": "sha256:1"}, {"six": "sha256:2"}, {}, {"five": "sha256:1", "six": "x"}]
)
def test_takes_a_definition_that_did_not_change(api: ApiClient, fingerprints: dict[str, str]) -> None:
    register(api, workflow_definition_fingerprints={"five": "sha256:1"})

    assert register(api, workflow_definition_fingerprints=fingerprints).status == 201


# -- incarnations ------------------------------------------------------------------------------------------------------


def test_makes_a_new_incarnation_with_every_registration(api: ApiClient) -> None:
    first, second = (register(api).body["registration_token"] for _ in range(2))

    assert first != second
    statuses = dict(WorkerIncarnation.objects.values_list("registration_token", "status"))
    assert statuses == {first: "superseded", second: "active"}
    assert WorkerRegistration.objects.get().registration_token == second


def test_leaves_leases_alone_when_a_worker_registers_again(api: ApiClient) -> None:
    lease = leased_task()
    before = Task.objects.filter(id=lease.task_id).values().get()

    register(api)

    assert Task.objects.filter(id=lease.task_id).values().get() == before
    assert send(api, lease, "complete", commands=[make.finish()]).status == 200


# -- heartbeat ---------------------------------------------------------------------------------------------------------


def test_notes_a_heartbeat_and_what_it_reports(api: ApiClient) -> None:
    token = register(api, **FULL).body["registration_token"]
    WorkerRegistration.objects.update(last_heartbeat_at=WorkerRegistration.objects.get().registered_at - timedelta(60))
    body = {"worker_id": "w-1", "task_slots": {"workflow_available": 3}, "process_metrics": {"memory_bytes": 5}}

    response = api.post("/api/worker/heartbeat", {**body, "heartbeat_interval_seconds": 5})

    assert response.status == 200
    assert response.plain == {
        "worker_id": "w-1",
        "acknowledged": True,
        "heartbeat_recorded": True,
        "heartbeat_interval_seconds": 10,
        "stale_after_seconds": 60,
        "status": "active",
    }
    row = WorkerRegistration.objects.get()
    assert row.last_heartbeat_at >= row.registered_at
    assert (row.task_slots, row.process_metrics) == ({"workflow_available": 3}, {"memory_bytes": 5})
    assert row.registration_token == token


def test_keeps_what_a_heartbeat_does_not_mention(api: ApiClient) -> None:
    register(api, **FULL)
    before = WorkerRegistration.objects.values("task_slots", "process_metrics").get()

    api.post("/api/worker/heartbeat", {"worker_id": "w-1", "task_slots": None})

    assert WorkerRegistration.objects.values("task_slots", "process_metrics").get() == before


def test_renews_no_lease_with_a_workers_heartbeat(api: ApiClient) -> None:
    lease = leased_task()
    before = Task.objects.filter(id=lease.task_id).values().get()

    api.post("/api/worker/heartbeat", {"worker_id": "w-1"})

    assert Task.objects.filter(id=lease.task_id).values().get() == before


def test_tells_a_draining_worker_so(api: ApiClient) -> None:
    register(api)
    WorkerRegistration.objects.update(is_draining=True)

    assert api.post("/api/worker/heartbeat", {"worker_id": "w-1"}).body["status"] == "draining"
    assert register(api).body["status"] == "draining"


def test_does_not_know_a_worker_that_never_registered(api: ApiClient) -> None:
    with nothing_recorded():
        response = api.post("/api/worker/heartbeat", {"worker_id": "w-9"})

    assert response.status == 404
    assert (response.body["reason"], response.body["worker_id"]) == ("worker_not_registered", "w-9")
