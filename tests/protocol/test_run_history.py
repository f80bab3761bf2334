"""A run's history for clients, in pages (docs/protocol/control-plane.md 7.5)."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

import pytest

from tests import factories as make
from tests.client import ApiClient
from tests.protocol.closings import leased_task
from tests.protocol.reports import A_TIME
from tests.protocol.test_workflow_reads import body_of


def pages(api: ApiClient, run_id: str, size: int) -> list[list[dict[str, Any]]]:
    found = []
    token = None
    while True:
        query = f"?page_size={size}" + (f"&next_page_token={quote(token)}" if token else "")
        body = api.get(f"/api/workflows/order-1/runs/{run_id}/history{query}").body
        found.append(body["events"])
        token = body["next_page_token"]
        if token is None:
            return found


@pytest.fixture
def finished(api: ApiClient) -> str:
    """A run with six events."""
    lease = leased_task()
    make.complete(lease, make.schedule())
    make.complete_step(make.lease_activity())
    make.complete(make.lease_workflow(), make.finish("done"))
    return str(lease.body["run_id"])


@pytest.mark.parametrize("size", [1, 2, 5, 6, 1000])
def test_pages_through_a_history_once(api: ApiClient, finished: str, size: int) -> None:
    events = [event for page in pages(api, finished, size) for event in page]

    assert [event["sequence"] for event in events] == [1, 2, 3, 4, 5, 6]
    assert [event["event_type"] for event in events] == make.event_types(finished)


def test_shows_an_event_with_its_time_and_principal(api: ApiClient, finished: str) -> None:
    first, *_, last = pages(api, finished, 100)[0]

    assert {key: value for key, value in first.items() if key != "payload"} == {
        "sequence": 1,
        "event_type": "StartAccepted",
        "timestamp": A_TIME,
        "principal": {"type": "token", "id": "tests", "label": "tests"},
    }
    assert last == {
        "sequence": 6,
        "event_type": "WorkflowCompleted",
        "timestamp": A_TIME,
        "principal": None,
        "payload": {"output": make.envelope("done"), "payload_codec": "avro"},
    }


def test_answers_a_history_in_its_block(api: ApiClient, finished: str) -> None:
    response = api.get(f"/api/workflows/order-1/runs/{finished}/history")

    assert set(body_of(response)) == {"workflow_id", "run_id", "compatibility", "events", "next_page_token"}
    block = response.body["control_plane"]
    assert (block["operation"], block["workflow_id"], block["run_id"]) == ("history", "order-1", finished)
    assert block["next_page_token"] is None


def test_gives_a_hundred_events_unless_it_is_said(api: ApiClient) -> None:
    lease = leased_task()
    make.complete(lease, *make.schedule_list(120))

    found = api.get(f"/api/workflows/order-1/runs/{lease.body['run_id']}/history").body

    assert len(found["events"]) == 100
    assert found["next_page_token"] == base64.b64encode(b"100").decode()


def test_shows_what_came_after_the_last_page(api: ApiClient) -> None:
    lease = leased_task()
    run_id = lease.body["run_id"]
    token = base64.b64encode(b"2").decode()
    assert api.get(f"/api/workflows/order-1/runs/{run_id}/history?next_page_token={token}").body["events"] == []
    make.complete(lease, make.schedule())

    later = api.get(f"/api/workflows/order-1/runs/{run_id}/history?next_page_token={token}").body

    assert [event["sequence"] for event in later["events"]] == [3]


@pytest.mark.parametrize("size", ["0", "1001", "-1", "x", "1.5"])
def test_refuses_a_history_page_size_that_is_none(api: ApiClient, finished: str, size: str) -> None:
    response = api.get(f"/api/workflows/order-1/runs/{finished}/history?page_size={size}")

    assert (response.status, list(response.body["errors"])) == (422, ["page_size"])


@pytest.mark.parametrize("token", ["x", "LTE=", "eA==", "W10="])
def test_refuses_a_history_token_that_is_none(api: ApiClient, finished: str, token: str) -> None:
    response = api.get(f"/api/workflows/order-1/runs/{finished}/history?next_page_token={token}")

    assert (response.status, response.body["reason"]) == (400, "invalid_page_token")


def test_ends_a_page_at_its_bytes(api: ApiClient, finished: str, override_durable: Any) -> None:
    override_durable(HISTORY_PAGE_BYTES=1)

    assert [len(page) for page in pages(api, finished, 1000)] == [1] * 6
