"""Side effects and version markers are steps that are over as soon as they are recorded (history.md 5.9 and 5.10)."""

from __future__ import annotations

from typing import Any

import pytest

from durable.models import HistoryEvent
from tests import factories as make
from tests.client import ApiClient
from tests.invariants import check_invariants
from tests.protocol.closings import leased_task
from tests.protocol.reports import ABSENT, send, without
from tests.snapshot import nothing_recorded

EFFECT = {"type": "record_side_effect", "result": "wwHioz3/VYAiNwQC"}
MARKER = {"type": "record_version_marker", "change_id": "fmt", "version": 1, "min_supported": -1, "max_supported": 1}


def test_records_values_in_the_order_of_the_commands(api: ApiClient) -> None:
    lease = leased_task()

    response = send(api, lease, "complete", commands=[EFFECT, MARKER, make.schedule()])

    assert response.status == 200
    events = HistoryEvent.objects.filter(run_id=lease.body["run_id"]).order_by("sequence")[2:]
    effect, marker, scheduled = events
    assert (effect.event_type, effect.payload) == (
        "SideEffectRecorded",
        {"sequence": 1, "result": EFFECT["result"], "payload_codec": "avro"},
    )
    assert (marker.event_type, marker.payload) == (
        "VersionMarkerRecorded",
        {"sequence": 2, "change_id": "fmt", "version": 1, "min_supported": -1, "max_supported": 1},
    )
    assert scheduled.payload["sequence"] == 3
    check_invariants()


@pytest.mark.parametrize("result", [ABSENT, None, "", 7, "not base64!", {"codec": "avro", "blob": "AA=="}])
def test_refuses_a_side_effect_that_is_no_payload(api: ApiClient, result: Any) -> None:
    lease = leased_task()

    with nothing_recorded():
        response = send(api, lease, "complete", commands=[without({**EFFECT, "result": result})])

    assert (response.status, list(response.body["errors"])) == (422, ["commands.0.result"])


def test_fails_the_run_over_the_size_of_a_side_effect(api: ApiClient, override_durable: Any) -> None:
    override_durable(PAYLOAD_SIZE_BYTES=40)

    response = send(api, leased_task(), "complete", commands=[{**EFFECT, "result": "A" * 44}])

    assert response.body["run_status"] == "failed"
    check_invariants()


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"change_id": ""}, "change_id"),
        ({"change_id": None}, "change_id"),
        ({"version": 2}, "version"),
        ({"version": -2}, "version"),
        ({"version": "1"}, "version"),
        ({"version": True}, "version"),
        ({"min_supported": None}, "min_supported"),
        ({"max_supported": 2**31}, "max_supported"),
    ],
)
def test_refuses_a_version_marker_that_says_nothing(api: ApiClient, fields: dict[str, Any], at: str) -> None:
    lease = leased_task()

    with nothing_recorded():
        response = send(api, lease, "complete", commands=[{**MARKER, **fields}])

    assert (response.status, list(response.body["errors"])) == (422, [f"commands.0.{at}"])
