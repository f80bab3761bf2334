"""Describe, list, runs and history on the control plane (docs/protocol/control-plane.md 7.2 to 7.5)."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest

from durable.models import Namespace, Run
from tests import factories as make
from tests.client import ApiClient, Response
from tests.protocol.cases.control import earlier_run
from tests.protocol.closings import leased_task
from tests.protocol.reports import A_TIME, send
from tests.snapshot import nothing_recorded


def body_of(response: Response) -> dict[str, Any]:
    return {key: value for key, value in response.body.items() if key != "control_plane"}


# -- describe ----------------------------------------------------------------------------------------------------------


def test_describes_an_open_run(api: ApiClient) -> None:
    run = make.start(
        "order-1", arguments=make.envelope([7]), business_key="b-1", memo={"a": 1}, run_timeout_seconds=60
    ).run

    with nothing_recorded():
        response = api.get("/api/workflows/order-1")

    assert response.status == 200
    assert body_of(response) == {
        "workflow_id": "order-1",
        "run_id": run.id,
        "run_number": 1,
        "run_count": 1,
        "is_current_run": True,
        "namespace": "default",
        "workflow_type": "five",
        "business_key": "b-1",
        "status": "pending",
        "status_bucket": "running",
        "is_terminal": False,
        "closed_reason": None,
        "task_queue": make.QUEUE,
        "compatibility": None,
        "payload_codec": "avro",
        "execution_timeout_seconds": None,
        "run_timeout_seconds": 60,
        "execution_deadline_at": None,
        "run_deadline_at": A_TIME,
        "input": [7],
        "output": None,
        "input_envelope": make.envelope([7]),
        "output_envelope": None,
        "started_at": A_TIME,
        "closed_at": None,
        "last_progress_at": A_TIME,
        "wait_kind": None,
        "wait_reason": f"A workflow task waits for a worker on {make.QUEUE}.",
        "blocked_reason": None,
        "memo": {"a": 1},
        "search_attributes": {},
        "actions": {
            "can_signal": False,
            "can_query": False,
            "can_update": False,
            "can_cancel": True,
            "can_terminate": True,
            "can_repair": True,
            "can_archive": False,
        },
    }
    assert response.body["control_plane"]["operation"] == "describe"


def test_describes_a_completed_run_with_its_output(api: ApiClient) -> None:
    lease = leased_task()
    send(api, lease, "complete", commands=[make.finish({"total": 3})])

    body = api.get("/api/workflows/order-1").body

    assert (body["status"], body["status_bucket"], body["is_terminal"]) == ("completed", "completed", True)
    assert (body["closed_reason"], body["closed_at"]) == ("completed", A_TIME)
    assert (body["output"], body["output_envelope"]) == ({"total": 3}, make.envelope({"total": 3}))
    assert not any(body["actions"].values())
    assert (body["wait_kind"], body["wait_reason"]) == (None, None)


@pytest.mark.parametrize(
    ("how", "status", "closed_reason"),
    [
        ("cancel", "cancelled", "cancelled"),
        ("terminate", "terminated", "terminated"),
        ("fail", "failed", "failed"),
    ],
)
def test_describes_how_a_run_closed(api: ApiClient, how: str, status: str, closed_reason: str) -> None:
    lease = leased_task()
    if how == "fail":
        send(api, lease, "complete", commands=[{"type": "fail_workflow", "message": "no"}])
    else:
        api.post(f"/api/workflows/order-1/{how}")

    body = api.get("/api/workflows/order-1").body

    assert (body["status"], body["status_bucket"], body["closed_reason"]) == (status, "failed", closed_reason)
    assert (body["output"], body["output_envelope"]) == (None, None)


def test_says_what_a_run_waits_for(api: ApiClient) -> None:
    lease = leased_task()
    leased_now = api.get("/api/workflows/order-1").body
    make.complete(lease, make.schedule(), make.schedule())

    body = api.get("/api/workflows/order-1").body

    assert (leased_now["wait_kind"], leased_now["wait_reason"]) == (None, None)
    assert (body["wait_kind"], body["wait_reason"]) == ("activity", "Waiting for 2 activities.")


def test_shows_no_preview_of_a_payload_it_cannot_read(api: ApiClient) -> None:
    make.start("order-1", arguments={"codec": "avro", "blob": "not avro"})

    body = api.get("/api/workflows/order-1").body

    assert (body["input"], body["input_envelope"]) == (None, {"codec": "avro", "blob": "not avro"})


def test_describes_a_run_by_its_id(api: ApiClient) -> None:
    run_id = make.start("order-1").run.id

    response = api.get(f"/api/workflows/order-1/runs/{run_id}")

    assert (response.status, body_of(response)) == (200, body_of(api.get("/api/workflows/order-1")))
    assert response.body["control_plane"]["operation"] == "describe_run"


def test_describes_an_earlier_run_that_nobody_may_stop(api: ApiClient) -> None:
    make.start("order-1")
    old = earlier_run("order-1")

    body = api.get(f"/api/workflows/order-1/runs/{old.id}").body

    assert (body["run_id"], body["is_current_run"]) == (old.id, False)
    assert not any(body["actions"].values())


@pytest.mark.parametrize(
    ("route", "reason"),
    [
        ("nobody", "instance_not_found"), ("nobody/runs", "instance_not_found"),
        ("nobody/runs/01RUN", "instance_not_found"), ("nobody/runs/01RUN/history", "instance_not_found"),
        ("order-1/runs/01RUN", "run_not_found"), ("order-1/runs/01RUN/history", "run_not_found"),
        ("order-1/runs/{other}", "run_not_found"), ("order-1/runs/{other}/history", "run_not_found"),
        ("ORDER-1", "instance_not_found"),
    ],
)  # fmt: skip
def test_finds_no_run_that_is_not_there(api: ApiClient, route: str, reason: str) -> None:
    make.start("order-1")
    other = make.start("order-2").run.id

    response = api.get(f"/api/workflows/{route.format(other=other)}")

    assert (response.status, response.body["reason"]) == (404, reason)
    assert response.body["control_plane"]["workflow_id"] == response.body["workflow_id"]


# -- list --------------------------------------------------------------------------------------------------------------


def listed(api: ApiClient, query: str = "") -> list[str]:
    response = api.get(f"/api/workflows{query}")
    assert response.status == 200, response.body
    assert response.body["workflow_count"] == len(response.body["workflows"])
    return [run["workflow_id"] for run in response.body["workflows"]]


@pytest.fixture
def twelve(api: ApiClient) -> list[str]:
    """Twelve runs, newest first; three of them were started at the same moment."""
    ids = [f"order-{number:02}" for number in range(12)]
    for workflow_id in ids:
        make.start(workflow_id)
    moment = Run.objects.get(workflow_id="order-05").created_at
    Run.objects.filter(workflow_id__in=("order-04", "order-05", "order-06")).update(created_at=moment)
    return [run.workflow_id for run in Run.objects.order_by("-created_at", "-id")]


def test_lists_runs_newest_first(api: ApiClient, twelve: list[str]) -> None:
    assert listed(api) == twelve


@pytest.mark.parametrize("size", [1, 2, 3, 5, 11, 12, 200])
def test_pages_through_all_runs_once(api: ApiClient, twelve: list[str], size: int) -> None:
    seen: list[str] = []
    token = None
    while True:
        query = f"?page_size={size}" + (f"&next_page_token={quote(token)}" if token else "")
        body = api.get(f"/api/workflows{query}").body
        seen += [run["workflow_id"] for run in body["workflows"]]
        token = body["next_page_token"]
        if token is None:
            break

    assert seen == twelve


def test_keeps_its_place_while_runs_are_started(api: ApiClient, twelve: list[str]) -> None:
    first = api.get("/api/workflows?page_size=5").body
    make.start("order-99")

    second = api.get(f"/api/workflows?page_size=50&next_page_token={quote(first['next_page_token'])}").body

    assert [run["workflow_id"] for run in second["workflows"]] == twelve[5:]


def test_shows_no_payload_and_no_memo_in_a_list(api: ApiClient) -> None:
    make.start("order-1", memo={"secret": "marker-memo"}, arguments={"codec": "avro", "blob": "marker-input"},
               search_attributes={"Region": "eu"})  # fmt: skip

    response = api.get("/api/workflows")

    assert b"marker" not in response.raw
    assert response.body["workflows"][0]["search_attributes"] == {"Region": "eu"}


def test_filters_by_status_bucket(api: ApiClient) -> None:
    for number, how in enumerate(("open", "cancel", "terminate")):
        make.start(f"order-{number}")
        if how != "open":
            api.post(f"/api/workflows/order-{number}/{how}")
    make.register("w-1")
    make.complete(make.lease_workflow(), make.finish())
    make.start("order-3")

    assert listed(api, "?status=running") == ["order-3"]
    assert listed(api, "?status=completed") == ["order-0"]
    assert listed(api, "?status=failed") == ["order-2", "order-1"]
    assert listed(api, "?status=") == ["order-3", "order-2", "order-1", "order-0"]


@pytest.mark.parametrize("status", ["pending", "Running", "cancelled", "all", "running,failed"])
def test_refuses_a_status_that_is_no_bucket(api: ApiClient, status: str) -> None:
    response = api.get(f"/api/workflows?status={status}")

    assert response.status == 422
    assert response.body["errors"] == {"status": ["This must be one of: running, completed, failed."]}
    assert response.body["control_plane"]["operation"] == "list"


def test_filters_by_type_and_by_the_beginning_of_an_id(api: ApiClient) -> None:
    make.start("order-1")
    make.start("order-2", workflow_type="six")
    make.start("return-1")

    assert listed(api, "?workflow_type=five") == ["return-1", "order-1"]
    assert listed(api, "?query=order") == ["order-2", "order-1"]
    assert listed(api, "?query=order&workflow_type=six") == ["order-2"]
    assert listed(api, "?query=ORDER") == []
    assert listed(api, "?query=_rder") == listed(api, "?query=%25") == []


@pytest.mark.parametrize(("field", "value"), [("page_size", value) for value in ("0", "201", "-1", "x", "1.5", "")])
def test_refuses_a_page_size_that_is_none(api: ApiClient, field: str, value: str) -> None:
    response = api.get(f"/api/workflows?{field}={value}")

    assert (response.status, list(response.body["errors"])) == (422, [field])


def _token(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "token",
    ["x", "MA==", "....", _token([]), _token({}), _token(["2026-11-30T00:00:00.000000Z"]), _token(["x", "y"]),
     _token([1, 2]), _token(["2026-11-30T00:00:00.000000Z", 7]), _token(["2026-11-30T00:00:00.000000Z", "a", "b"]),
     _token([None, None]), _token("[" * 5000), _token("9" * 5000), _token(["9999999-01-01", "a"]),
     _token(["", "a"]), _token(["0001-01-01T00:00:00+23:59", "a"])],
)  # fmt: skip
def test_refuses_a_page_token_that_is_not_of_this_list(api: ApiClient, token: str) -> None:
    make.start("order-1")

    response = api.get(f"/api/workflows?next_page_token={quote(token)}")

    assert (response.status, list(response.body["errors"])) == (422, ["next_page_token"])


# -- runs --------------------------------------------------------------------------------------------------------------


def test_lists_the_runs_of_a_workflow_oldest_first(api: ApiClient) -> None:
    run = make.start("order-1").run
    old = earlier_run("order-1")

    response = api.get("/api/workflows/order-1/runs")

    assert response.status == 200
    assert [(item["run_id"], item["run_number"], item["is_current_run"]) for item in response.body["runs"]] == [
        (old.id, 1, False),
        (run.id, 2, True),
    ]
    assert (response.body["workflow_id"], response.body["run_count"]) == ("order-1", 1)
    assert response.body["control_plane"]["operation"] == "list_runs"


# -- no trace --------------------------------------------------------------------------------------------------


def test_reads_without_a_trace(api: ApiClient) -> None:
    Namespace.objects.create(name="other")
    run = make.start("order-1").run
    Run.objects.filter(id=run.id).update(created_at=run.created_at - timedelta(days=1))

    with nothing_recorded():
        for route in ("", "/order-1", "/order-1/runs", f"/order-1/runs/{run.id}", f"/order-1/runs/{run.id}/history"):
            assert api.get(f"/api/workflows{route}").status == 200
