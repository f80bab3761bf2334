"""A report sent twice is recorded once (docs/protocol/worker-protocol.md 12.2 and 8.2; docs/protocol/receipts.md)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from durable.models import CompletionReceipt
from tests import factories as make
from tests.client import ApiClient
from tests.protocol.closings import leased_task, lose
from tests.protocol.reports import AN_ID, fence, path, send
from tests.snapshot import nothing_recorded

RESULT = {"result": make.envelope({"b": 1, "a": [1, 2]})}
FAILURE = {"failure": {"message": "boom", "type": "ValueError", "details": {"x": 1, "y": 2}}}


def leased_activity(workflow_id: str = "order-1", **policy: Any) -> make.Lease:
    """Worker w-1 holds the only activity of a run that waits for it."""
    make.complete(leased_task(workflow_id), make.schedule(**policy))
    return make.lease_activity()


def reordered(body: dict[str, Any]) -> bytes:
    """The same JSON with every object's keys in reverse order and other whitespace."""

    def turn(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turn(inner) for key, inner in reversed(value.items())}
        return [turn(element) for element in value] if isinstance(value, list) else value

    return json.dumps(turn(body), indent=2).encode()


# -- workflow tasks ----------------------------------------------------------------------------------------------------


def test_records_a_completion(api: ApiClient) -> None:
    lease = leased_task()

    response = send(api, lease, "complete", commands=[make.schedule()])

    assert response.status == 200
    assert response.plain == {
        "task_id": lease.task_id,
        "run_id": lease.body["run_id"],
        "run_status": "waiting",
        "workflow_task_attempt": 1,
        "outcome": "completed",
        "recorded": True,
        "reason": None,
        "created_task_ids": [AN_ID],
    }


def duplicate_body(lease: make.Lease, **other: Any) -> dict[str, Any]:
    return {
        "task_id": lease.task_id,
        "run_id": lease.body["run_id"],
        "run_status": "waiting",
        "workflow_task_attempt": 1,
        "outcome": "completed",
        "recorded": False,
        "reason": "already_completed",
        "created_task_ids": [],
        **other,
    }


def test_answers_an_identical_completion_as_a_duplicate(populated: ApiClient) -> None:
    lease = leased_task()
    send(populated, lease, "complete", commands=[make.schedule()])

    with nothing_recorded():
        response = send(populated, lease, "complete", commands=[make.schedule()])

    assert (response.status, response.plain) == (200, duplicate_body(lease))


def test_answers_a_completion_with_other_key_order_as_a_duplicate(populated: ApiClient) -> None:
    lease = leased_task()
    commands = [make.schedule(retry_policy={"max_attempts": 2, "backoff_seconds": [1]}), make.schedule()]
    send(populated, lease, "complete", commands=commands)

    with nothing_recorded():
        response = populated.post(path(lease, "complete"), raw=reordered(fence(lease, commands=commands)))

    assert (response.status, response.plain) == (200, duplicate_body(lease))


def test_answers_a_completion_whose_attempt_is_text_as_a_duplicate(populated: ApiClient) -> None:
    lease = leased_task()
    send(populated, lease, "complete", commands=[make.schedule()])

    with nothing_recorded():
        response = send(populated, lease, "complete", commands=[make.schedule()], workflow_task_attempt="1")

    assert (response.status, response.plain) == (200, duplicate_body(lease))


@pytest.mark.parametrize(
    "changed",
    [
        {"commands": [make.schedule("other")]},
        {"commands": [make.schedule(), make.schedule()]},
        {"commands": []},
        {"commands": "not even a list"},
        {"sticky_cache": {"worker_id": "w-1"}},
    ],
)
def test_refuses_another_body_for_the_same_claim(populated: ApiClient, changed: dict[str, Any]) -> None:
    lease = leased_task()
    send(populated, lease, "complete", commands=[make.schedule()])

    with nothing_recorded():
        response = send(populated, lease, "complete", **{"commands": [make.schedule()], **changed})

    assert response.status == 409
    assert response.plain == {
        "error": "Another report was recorded for this claim already.",
        "reason": "conflicting_completion",
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
    }


def test_refuses_reordered_commands_as_another_body(populated: ApiClient) -> None:
    lease = leased_task()
    first, second = make.schedule("a"), make.schedule("b")
    send(populated, lease, "complete", commands=[first, second])

    with nothing_recorded():
        response = send(populated, lease, "complete", commands=[second, first])

    assert response.body["reason"] == "conflicting_completion"


@pytest.mark.parametrize("other", [{"lease_owner": "w-2"}, {"workflow_task_attempt": 2}])
def test_answers_another_claim_of_a_completed_task_with_the_guard(populated: ApiClient, other: dict[str, Any]) -> None:
    lease = leased_task()
    send(populated, lease, "complete", commands=[make.schedule()])

    with nothing_recorded():
        response = send(populated, lease, "complete", commands=[make.schedule()], **other)

    assert (response.status, response.body["reason"]) == (409, "task_not_leased")
    assert response.body["recorded"] is False


@pytest.mark.parametrize(
    ("last", "status"),
    [(make.finish("done"), "completed"), ({"type": "fail_workflow", "message": "no"}, "failed")],
)
def test_answers_the_duplicate_of_the_completion_that_closed_the_run(
    populated: ApiClient, last: dict[str, Any], status: str
) -> None:
    lease = leased_task()
    assert send(populated, lease, "complete", commands=[last]).body["run_status"] == status

    with nothing_recorded():
        response = send(populated, lease, "complete", commands=[last])

    assert (response.status, response.plain) == (200, duplicate_body(lease, run_status=status))


@pytest.mark.parametrize(("verb", "status"), [("cancel", "cancelled"), ("terminate", "terminated")])
def test_answers_a_duplicate_with_the_status_of_the_run_now(populated: ApiClient, verb: str, status: str) -> None:
    lease = leased_task()
    send(populated, lease, "complete", commands=[make.schedule()])
    populated.post(f"/api/workflows/order-1/{verb}")

    with nothing_recorded():
        response = send(populated, lease, "complete", commands=[make.schedule()])

    assert (response.status, response.plain) == (200, duplicate_body(lease, run_status=status))


def test_keeps_the_receipt_of_the_attempt_that_completed(populated: ApiClient) -> None:
    late = leased_task()
    lose(late)
    lease = make.lease_workflow("w-2")
    send(populated, lease, "complete", commands=[make.schedule()])

    with nothing_recorded():
        late_answer = send(populated, late, "complete", commands=[make.schedule()])
        answer = send(populated, lease, "complete", commands=[make.schedule()])

    assert late_answer.body["reason"] == "task_not_leased"
    assert answer.body["reason"] == "already_completed"


def test_stores_one_receipt_per_workflow_task(api: ApiClient) -> None:
    lease = leased_task()
    for _ in range(3):
        send(api, lease, "complete", commands=[make.schedule()])

    receipt = CompletionReceipt.objects.get(run_id=lease.body["run_id"])
    assert (receipt.id, receipt.lease_owner, receipt.attempt_number) == (lease.task_id, "w-1", 1)


def test_stores_no_receipt_for_failures_and_waiting_reports(api: ApiClient) -> None:
    make.report_waiting(leased_task("order-1"))
    make.report_failure(leased_task("order-2"))

    assert not CompletionReceipt.objects.exists()


# -- activities --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "content", "outcome"), [("complete", RESULT, "completed"), ("fail", FAILURE, "failed")]
)
def test_records_an_activity_report_and_answers_its_repeat(
    populated: ApiClient, verb: str, content: dict[str, Any], outcome: str
) -> None:
    lease = leased_activity()
    first = send(populated, lease, verb, **content)

    with nothing_recorded():
        again = send(populated, lease, verb, **content)

    identity = {"task_id": lease.task_id, "activity_attempt_id": lease.body["activity_attempt_id"], "outcome": outcome}
    assert first.plain == {**identity, "recorded": True, "reason": None, "next_task_id": AN_ID}
    assert (again.status, again.plain) == (
        200,
        {**identity, "recorded": False, "reason": "already_completed", "next_task_id": None},
    )


@pytest.mark.parametrize(("verb", "content"), [("complete", RESULT), ("fail", FAILURE)])
def test_answers_an_activity_report_with_other_key_order_as_a_duplicate(
    populated: ApiClient, verb: str, content: dict[str, Any]
) -> None:
    lease = leased_activity()
    send(populated, lease, verb, **content)

    with nothing_recorded():
        response = populated.post(path(lease, verb), raw=reordered(fence(lease, **content)))

    assert (response.status, response.body["reason"]) == (200, "already_completed")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("complete", RESULT), ("complete", {"result": make.envelope("another")})),
        (("complete", RESULT), ("complete", {"result": None})),
        (("complete", RESULT), ("fail", FAILURE)),
        (("fail", FAILURE), ("complete", RESULT)),
        (("fail", FAILURE), ("fail", {"failure": {"message": "another"}})),
    ],
)
def test_refuses_another_report_for_the_same_attempt(
    populated: ApiClient, first: tuple[str, dict[str, Any]], second: tuple[str, dict[str, Any]]
) -> None:
    lease = leased_activity()
    send(populated, lease, first[0], **first[1])

    with nothing_recorded():
        response = send(populated, lease, second[0], **second[1])

    assert response.status == 409
    assert response.plain == {
        "error": "Another report was recorded for this claim already.",
        "reason": "conflicting_completion",
        "task_id": lease.task_id,
        "activity_attempt_id": lease.body["activity_attempt_id"],
    }


def test_answers_another_owner_of_a_recorded_attempt_with_the_guard(populated: ApiClient) -> None:
    lease = leased_activity()
    send(populated, lease, "complete", **RESULT)

    with nothing_recorded():
        response = send(populated, lease, "complete", **RESULT, lease_owner="w-2")

    assert (response.status, response.body["reason"]) == (409, "lease_owner_mismatch")


@pytest.mark.parametrize("verb", ["cancel", "terminate"])
def test_answers_a_repeated_activity_report_after_the_run_closed(populated: ApiClient, verb: str) -> None:
    lease = leased_activity()
    send(populated, lease, "complete", **RESULT)
    populated.post(f"/api/workflows/order-1/{verb}")

    with nothing_recorded():
        response = send(populated, lease, "complete", **RESULT)

    assert (response.status, response.body["reason"]) == (200, "already_completed")


def test_answers_a_repeated_failure_after_the_retry_was_claimed(populated: ApiClient) -> None:
    lease = leased_activity(retry_policy={"max_attempts": 2})
    first = send(populated, lease, "fail", **FAILURE)
    assert make.lease_activity("w-2").task_id == first.body["next_task_id"]

    with nothing_recorded():
        response = send(populated, lease, "fail", **FAILURE)

    assert (response.status, response.body["reason"]) == (200, "already_completed")


def test_stores_one_receipt_per_attempt(api: ApiClient) -> None:
    first = leased_activity(retry_policy={"max_attempts": 2})
    send(api, first, "fail", **FAILURE)
    second = make.lease_activity()
    send(api, second, "complete", **RESULT)

    kept = CompletionReceipt.objects.filter(kind="activity").order_by("attempt_number")
    assert [(receipt.id, receipt.outcome) for receipt in kept] == [
        (first.body["activity_attempt_id"], "failed"),
        (second.body["activity_attempt_id"], "completed"),
    ]


# -- carried polls -----------------------------------------------------------------------------------------------------

POLL = {"worker_id": "w-1", "task_queue": make.QUEUE, "poll_request_id": "carried-1"}


@pytest.mark.parametrize("carried", [{}, None, "nonsense", [1], {"worker_id": 7}])
@pytest.mark.parametrize("name", ["activity_poll", "workflow_poll"])
def test_ignores_an_invalid_poll_carried_on_a_workflow_completion(api: ApiClient, name: str, carried: Any) -> None:
    lease = leased_task()

    response = send(api, lease, "complete", commands=[make.schedule()], **{name: carried})

    assert response.status == 200
    assert set(response.plain) == set(duplicate_body(lease))
    assert make.lease_activity().body["attempt_number"] == 1


@pytest.mark.parametrize("carried", [{}, None, "nonsense"])
def test_ignores_an_invalid_poll_carried_on_an_activity_completion(api: ApiClient, carried: Any) -> None:
    lease = leased_activity()

    response = send(api, lease, "complete", **RESULT, workflow_poll=carried)

    assert response.status == 200
    assert set(response.plain) == {
        "task_id", "activity_attempt_id", "outcome", "recorded", "reason", "next_task_id",
    }  # fmt: skip
    assert make.lease_workflow().body["workflow_task_attempt"] == 1


def test_compares_workflow_completions_without_their_carried_polls(populated: ApiClient) -> None:
    lease = leased_task()
    send(populated, lease, "complete", commands=[make.schedule()], activity_poll=POLL, workflow_poll=POLL)

    with nothing_recorded():
        response = send(populated, lease, "complete", commands=[make.schedule()], activity_poll={"other": 1})

    assert (response.status, response.plain) == (200, duplicate_body(lease))


def test_compares_activity_completions_without_their_carried_poll(populated: ApiClient) -> None:
    lease = leased_activity()
    send(populated, lease, "complete", **RESULT, workflow_poll=POLL)

    with nothing_recorded():
        response = send(populated, lease, "complete", **RESULT)

    assert (response.status, response.body["reason"]) == (200, "already_completed")
