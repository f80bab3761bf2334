"""Polls: who may, what they ask, what a leased task looks like (docs/protocol/worker-protocol.md 5, 7.1 and 8.1)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from durable.models import HistoryEvent, PollReceipt, Task, WorkerRegistration
from tests import factories as make
from tests.client import ApiClient
from tests.protocol.reports import A_TIME, ABSENT, AN_ID, leased, poll
from tests.snapshot import nothing_recorded

KINDS = ("workflow", "activity")
RESUME_CONTEXT = (
    "connection", "workflow_wait_kind", "open_wait_id", "resume_source_kind", "resume_source_id",
    "workflow_signal_id", "signal_name", "signal_wait_id", "activity_execution_id", "activity_attempt_id",
    "activity_type", "child_call_id", "child_workflow_run_id", "workflow_sequence", "workflow_event_type",
    "timer_id", "condition_wait_id", "condition_key", "condition_definition_fingerprint",
    "workflow_update_id", "workflow_command_id",
)  # fmt: skip


def seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


# -- who may poll ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_refuses_a_worker_that_is_not_registered(populated: ApiClient, kind: str) -> None:
    with nothing_recorded():
        response = poll(populated, kind, timeout_seconds=60)

    assert response.status == 412
    assert response.plain == {
        "error": "The worker is not registered in this namespace.",
        "reason": "worker_not_registered",
        "worker_id": "w-1",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_refuses_a_queue_the_worker_is_not_registered_for(populated: ApiClient, kind: str) -> None:
    make.register("w-1")

    with nothing_recorded():
        response = poll(populated, kind, task_queue="returns")

    assert response.status == 409
    assert response.plain == {
        "error": "The worker is registered for another task queue.",
        "reason": "task_queue_mismatch",
        "worker_id": "w-1",
        "registered_task_queue": make.QUEUE,
        "requested_task_queue": "returns",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_refuses_another_build_id_than_the_registered_one(populated: ApiClient, kind: str) -> None:
    make.register("w-1", build_id="build-1")

    with nothing_recorded():
        response = poll(populated, kind, build_id="build-2")

    assert response.status == 409
    assert response.plain == {
        "error": "The worker is registered with another build id.",
        "reason": "build_id_mismatch",
        "worker_id": "w-1",
        "registered_build_id": "build-1",
        "requested_build_id": "build-2",
    }


@pytest.mark.parametrize(("registered", "asked"), [("", "build-1"), ("build-1", None), ("build-1", ""), ("b", "b")])
def test_compares_build_ids_only_when_both_are_set(api: ApiClient, registered: str, asked: str | None) -> None:
    make.register("w-1", build_id=registered)

    assert poll(api, "workflow", build_id=asked).status == 200


@pytest.mark.parametrize("kind", KINDS)
def test_refuses_a_worker_that_was_silent_for_too_long(populated: ApiClient, kind: str) -> None:
    registration = make.register("w-1")
    long_ago = registration.last_heartbeat_at - timedelta(seconds=61)
    WorkerRegistration.objects.filter(worker_id="w-1").update(last_heartbeat_at=long_ago)

    with nothing_recorded():
        response = poll(populated, kind)

    assert response.status == 409
    assert response.plain == {
        "error": "The worker's registration is stale: it has not been heard of for too long.",
        "reason": "stale_worker_registration",
        "worker_id": "w-1",
    }


def test_refuses_a_registration_that_was_replaced_between_look_and_claim(populated: ApiClient) -> None:
    from durable.operations import poll as poll_operation
    from tests.concurrency.tools import gate_before

    make.register("w-1")
    make.start("order-1")
    body = {"worker_id": "w-1", "task_queue": make.QUEUE, "poll_request_id": "p-1", "timeout_seconds": 0}
    with gate_before(poll_operation, "_claim") as gate:
        polling = populated.begin("POST", "/api/worker/workflow-tasks/poll", body)
        gate.wait_until_reached()
        make.register("w-1")
        with nothing_recorded():
            gate.open()
            response = polling.result(30)

    assert response.plain == {
        "error": "The worker registered anew while this poll was waiting.",
        "reason": "stale_worker_registration",
        "worker_id": "w-1",
    }
    assert response.status == 409
    assert not PollReceipt.objects.filter(poll_request_id="p-1").exists()


# -- what a poll may say -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        *[(kind, field, value) for kind in KINDS for field in ("worker_id", "task_queue") for value in (
            ABSENT, None, "", "  ", 7, True, ["w-1"], "x" * 256, "ü" * 128, "a\x00b", "a\nb", "\x7f")],
        *[(kind, "build_id", value) for kind in KINDS for value in (7, ["b"], "x" * 256, "a\tb")],
        *[(kind, "poll_request_id", value) for kind in KINDS for value in (7, {}, "x" * 256, "a\x00b")],
        *[(kind, "timeout_seconds", value) for kind in KINDS for value in (-1, 61, 1.5, "x", True, [1], "1.0")],
        *[("workflow", "history_page_size", value) for value in (0, -1, 1001, "x", True, 2.5)],
        *[("workflow", "accept_history_encoding", value) for value in (7, "x" * 65, ["gzip"])],
        *[("workflow", "task_kinds", value) for value in (
            [], ["activity"], ["workflow", "workflow"], "workflow",
            ["workflow", "update_validation", "workflow"], [1])],
    ],
)  # fmt: skip
def test_refuses_a_poll_whose_field_is_wrong(api: ApiClient, kind: str, field: str, value: Any) -> None:
    response = poll(api, kind, **{field: value})

    assert response.status == 422
    assert response.body["reason"] == "validation_failed"
    assert [path.split(".")[0] for path in response.body["errors"]] == [field]
    assert response.body["errors"] == response.body["validation_errors"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [0, "0", None, ABSENT])
def test_takes_fields_it_does_not_know_and_numbers_as_text(api: ApiClient, kind: str, window: Any) -> None:
    offer(kind)

    response = poll(api, kind, timeout_seconds=window, unknown={"a": 1}, task_slots=3)

    assert response.body["poll_status"] == "leased"


@pytest.mark.parametrize("length", [255])
def test_takes_ids_as_long_as_allowed(api: ApiClient, length: int) -> None:
    worker_id = "é" + "w" * (length - 2)
    make.register(worker_id, task_queue="q" * length)
    make.start("order-1", task_queue="q" * length)

    response = poll(api, "workflow", worker_id=worker_id, task_queue="q" * length, poll_request_id="p" * length)

    assert response.body["task"]["lease_owner"] == worker_id


def test_never_gives_a_workflow_task_to_who_asked_for_update_validation_only(populated: ApiClient) -> None:
    make.register("w-1", capabilities=["update_validation_tasks"])
    make.start("order-1")

    with nothing_recorded():
        response = poll(populated, "workflow", task_kinds=["update_validation"])

    assert (response.status, response.plain) == (200, {"task": None, "poll_status": "empty"})


def test_gives_a_workflow_task_to_who_asked_for_both_kinds(api: ApiClient) -> None:
    make.register("w-1", capabilities=["update_validation_tasks"])
    make.start("order-1")

    response = poll(api, "workflow", task_kinds=["update_validation", "workflow"])

    assert response.body["task"]["task_kind"] == "workflow"


@pytest.mark.parametrize("kinds", [["update_validation"], ["workflow", "update_validation"]])
def test_refuses_update_validation_to_who_did_not_register_for_it(populated: ApiClient, kinds: list[str]) -> None:
    make.register("w-1")
    make.start("order-1")

    with nothing_recorded():
        response = poll(populated, "workflow", task_kinds=kinds)

    assert response.status == 409
    assert response.plain == {
        "error": "The worker is registered without the capability update_validation_tasks.",
        "reason": "update_validation_capability_not_advertised",
        "task": None,
        "poll_status": "unsupported",
    }


# -- what a leased task looks like -------------------------------------------------------------------------------------


def offer(kind: str, **command: Any) -> None:
    make.register("w-1")
    make.start("order-1", arguments=make.envelope([7]))
    if kind == "activity":
        make.complete(make.lease_workflow("w-1"), make.schedule(**command))


def test_shows_a_workflow_task_with_all_its_fields(api: ApiClient) -> None:
    offer("workflow")

    response = poll(api, "workflow")

    run_id = Task.objects.get().run_id
    assert response.plain == {
        "task": {
            "task_id": AN_ID,
            "task_kind": "workflow",
            "workflow_task_attempt": 1,
            "workflow_id": "order-1",
            "run_id": run_id,
            "workflow_type": "five",
            "namespace": "default",
            "task_queue": make.QUEUE,
            "payload_codec": "avro",
            "arguments": make.envelope([7]),
            "lease_owner": "w-1",
            "lease_expires_at": A_TIME,
            "total_history_events": 2,
            "last_history_sequence": 2,
            "run_status": "pending",
            "compatibility": None,
            "cancel_requested": False,
            "sticky_replay_mode": "cold_replay",
            "history_events": response.body["task"]["history_events"],
            "next_history_page_token": None,
            **dict.fromkeys(RESUME_CONTEXT),
        },
        "poll_status": "leased",
        "server_time": A_TIME,
    }
    assert 59 < seconds_between(response.body["server_time"], response.body["task"]["lease_expires_at"]) <= 60


def test_shows_history_events_as_they_are_stored(api: ApiClient) -> None:
    offer("workflow")

    events = poll(api, "workflow").body["task"]["history_events"]

    stored = list(HistoryEvent.objects.order_by("sequence"))
    assert [event["event_type"] for event in events] == ["StartAccepted", "WorkflowStarted"]
    for event, row in zip(events, stored, strict=True):
        assert event == {
            "id": row.id,
            "sequence": row.sequence,
            "event_type": row.event_type,
            "payload": row.payload,
            "recorded_at": row.recorded_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "workflow_task_id": None,
            "workflow_command_id": row.workflow_command_id,
        }


def test_shows_an_activity_task_with_all_its_fields(api: ApiClient) -> None:
    offer("activity", arguments=make.envelope(["a"]))

    response = poll(api, "activity")

    task = Task.objects.get(kind="activity")
    assert response.plain == {
        "task": {
            "task_id": task.id,
            "task_kind": "activity",
            "activity_attempt_id": AN_ID,
            "activity_execution_id": task.activity_execution_id,
            "activity_type": "step",
            "attempt_number": 1,
            "idempotency_key": task.activity_execution_id,
            "workflow_id": "order-1",
            "run_id": task.run_id,
            "workflow_type": "five",
            "namespace": "default",
            "task_queue": make.QUEUE,
            "payload_codec": "avro",
            "arguments": make.envelope(["a"]),
            "lease_owner": "w-1",
            "lease_expires_at": A_TIME,
            "connection": None,
        },
        "poll_status": "leased",
        "server_time": A_TIME,
    }
    assert 299 < seconds_between(response.body["server_time"], response.body["task"]["lease_expires_at"]) <= 300


def test_shows_the_deadlines_and_the_policy_of_an_activity_that_has_them(api: ApiClient) -> None:
    time_outs = {
        "start_to_close_timeout": 20,
        "schedule_to_close_timeout": 90,
        "schedule_to_start_timeout": 30,
        "heartbeat_timeout": 5,
    }
    offer("activity", retry_policy={"max_attempts": 3, "backoff_seconds": [1, 2]}, **time_outs)

    task = poll(api, "activity").body["task"]

    assert task["retry_policy"] == {
        "snapshot_version": 1,
        "max_attempts": 3,
        "backoff_seconds": [1, 2],
        "non_retryable_error_types": [],
        **time_outs,
    }
    assert task["deadlines"] == dict.fromkeys(("start_to_close", "schedule_to_close", "heartbeat"), A_TIME)


def test_shows_the_run_deadlines_of_an_activity(api: ApiClient) -> None:
    make.register("w-1")
    make.start("order-1", run_timeout_seconds=60, execution_timeout_seconds=90)
    make.complete(make.lease_workflow("w-1"), make.schedule())

    task = poll(api, "activity").body["task"]

    assert task["deadlines"] == {"run": A_TIME, "execution": A_TIME}


def test_keeps_a_heartbeat_deadline_within_the_heartbeat_time_out(api: ApiClient) -> None:
    offer("activity", heartbeat_timeout=5)

    response = poll(api, "activity")

    deadline = response.body["task"]["deadlines"]["heartbeat"]
    assert 0 < seconds_between(response.body["server_time"], deadline) <= 5


def test_counts_a_retry_as_the_next_attempt(api: ApiClient) -> None:
    offer("activity", retry_policy={"max_attempts": 2})
    make.fail_step(make.lease_activity())

    task = poll(api, "activity").body["task"]

    assert task["attempt_number"] == 2


def test_shows_the_build_that_a_run_is_pinned_to(api: ApiClient) -> None:
    make.register("w-1", build_id="build-1")
    make.start("order-1", build_id="build-1")

    assert leased(poll(api, "workflow")).body["compatibility"] == "build-1"


def test_answers_an_empty_poll(populated: ApiClient) -> None:
    make.register("w-1")

    with nothing_recorded():
        response = poll(populated, "workflow", poll_request_id="p-1")

    assert (response.status, response.plain) == (200, {"task": None, "poll_status": "empty"})
