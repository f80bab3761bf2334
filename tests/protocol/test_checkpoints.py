"""A checkpoint records the first commands of a claim that goes on (docs/protocol/worker-protocol.md 7.7)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from durable.commands import batch
from durable.models import ActivityExecution, CheckpointReceipt, CompletionReceipt, Run, Task
from durable.operations.recover_lease import recover_lease
from tests import factories as make
from tests.budgets.routes import local_activity
from tests.client import ApiClient, Response
from tests.invariants import check_invariants
from tests.openapi import document, resolve
from tests.protocol.closings import leased_task, lose
from tests.protocol.reports import A_TIME, AN_ID, fence, leased, path, poll, send
from tests.snapshot import nothing_recorded

VERB = "cancellation-scopes/checkpoint"
POLL = {"worker_id": "w-1", "task_queue": make.QUEUE, "poll_request_id": "carried-1"}


def checkpoint(api: ApiClient, lease: make.Lease, *commands: Any, **fields: Any) -> Response:
    """POST a checkpoint, the first of a run unless `fields` say otherwise."""
    return send(api, lease, VERB, **{"checkpoint_id": "c-1", "start_sequence": 1, "commands": list(commands), **fields})


def answer(lease: make.Lease, **other: Any) -> dict[str, Any]:
    """The exact body, without the envelope, of a checkpoint that scheduled one activity as the run's first step."""
    return {
        "checkpointed": True,
        "duplicate": False,
        "checkpoint_id": "c-1",
        "task_id": lease.task_id,
        "workflow_run_id": lease.body["run_id"],
        "workflow_task_attempt": 1,
        "lease_owner": "w-1",
        "start_sequence": 1,
        "next_sequence": 2,
        "created_task_ids": [AN_ID],
        "recorded_at": A_TIME,
        "reason": None,
        "history_refresh_page_token": "MA==",
        **other,
    }


def history_of(api: ApiClient, lease: make.Lease, **fields: Any) -> Response:
    return send(api, lease, "history", **{"next_history_page_token": "MA==", **fields})


def steps_of(lease: make.Lease) -> list[int]:
    return list(
        ActivityExecution.objects.filter(run_id=lease.body["run_id"])
        .order_by("step_number")
        .values_list("step_number", flat=True)
    )


# -- what is recorded --------------------------------------------------------------------------------------------------


def test_n16_records_a_checkpoint(api: ApiClient) -> None:
    lease = leased_task()

    response = checkpoint(api, lease, make.schedule())

    assert (response.status, response.plain) == (200, answer(lease))
    assert make.event_types(lease.body["run_id"]) == ["StartAccepted", "WorkflowStarted", "ActivityScheduled"]
    assert response.body["created_task_ids"] == [make.lease_activity().task_id]
    check_invariants()


def test_keeps_the_claim_as_it_is_but_for_what_it_may_read(api: ApiClient) -> None:
    lease = leased_task()
    before = Task.objects.filter(id=lease.task_id).values().get()

    checkpoint(api, lease, make.schedule())

    after = Task.objects.filter(id=lease.task_id).values().get()
    assert {name: after[name] for name in before if before[name] != after[name]} == {"visible_sequence": 3}


def test_has_the_run_started_and_waiting(api: ApiClient) -> None:
    lease = leased_task()

    checkpoint(api, lease, make.schedule())

    run = Run.objects.get(id=lease.body["run_id"])
    assert (run.status, run.started_at, run.open_task_id) == (
        "waiting", make.task_of(lease).leased_at, lease.task_id,
    )  # fmt: skip


def test_records_one_checkpoint_after_another_and_then_the_completion(api: ApiClient) -> None:
    lease = leased_task()

    first = checkpoint(api, lease, local_activity(), local_activity())
    second = checkpoint(api, lease, make.schedule(), checkpoint_id="c-2", start_sequence=3)
    last = send(api, lease, "complete", commands=[make.schedule()])

    numbers = [(r.body["start_sequence"], r.body["next_sequence"]) for r in (first, second)]
    assert numbers == [(1, 3), (3, 4)]
    assert first.body["created_task_ids"] == []
    assert (last.status, last.body["recorded"], steps_of(lease)) == (200, True, [1, 2, 3, 4])
    assert CompletionReceipt.objects.count() == 1
    check_invariants()


def test_lets_the_claim_end_the_run_after_a_checkpoint(api: ApiClient) -> None:
    lease = leased_task()
    checkpoint(api, lease, make.schedule())

    response = send(api, lease, "complete", commands=[make.finish("done")])

    assert (response.status, response.body["run_status"]) == (200, "completed")
    check_invariants()


def test_records_a_whole_list(api: ApiClient) -> None:
    lease = leased_task()

    response = checkpoint(api, lease, *make.schedule_list(3))

    assert response.plain == answer(lease, next_sequence=4, created_task_ids=[AN_ID] * 3)
    check_invariants()


def test_records_timers_and_markers(api: ApiClient) -> None:
    lease = leased_task()
    marker = {"type": "record_version_marker", "change_id": "tax", "version": 2, "min_supported": 1, "max_supported": 2}
    side_effect = {"type": "record_side_effect", "result": make.envelope(7)["blob"]}

    response = checkpoint(api, lease, marker, make.sleep(), side_effect)

    assert response.plain == answer(lease, next_sequence=4, created_task_ids=[])
    assert make.event_types(lease.body["run_id"])[2:] == [
        "VersionMarkerRecorded", "TimerScheduled", "SideEffectRecorded",
    ]  # fmt: skip
    check_invariants()


def test_takes_a_hundred_commands(api: ApiClient) -> None:
    response = checkpoint(api, leased_task(), *[make.schedule()] * 100)

    assert (response.status, response.body["next_sequence"]) == (200, 101)


@pytest.mark.parametrize("carried", [POLL, {}, None, "nonsense"])
def test_ignores_carried_polls(populated: ApiClient, carried: Any) -> None:
    lease = leased_task()

    first = checkpoint(populated, lease, make.schedule(), activity_poll=carried, workflow_poll=carried)
    with nothing_recorded():
        again = checkpoint(populated, lease, make.schedule(), activity_poll={"another": 1})

    assert (first.plain, again.plain) == (answer(lease), answer(lease, duplicate=True))
    assert make.lease_activity().body["attempt_number"] == 1


# -- what the claim may read afterwards --------------------------------------------------------------------------------


def test_shows_the_claim_its_own_events(api: ApiClient) -> None:
    lease = leased_task()
    token = checkpoint(api, lease, make.schedule()).body["history_refresh_page_token"]

    response = history_of(api, lease, next_history_page_token=token)

    types = [event["event_type"] for event in response.body["history_events"]]
    assert types == ["StartAccepted", "WorkflowStarted", "ActivityScheduled"]
    assert response.body["total_history_events"] == 3


def test_shows_a_restarted_worker_its_own_events(api: ApiClient) -> None:
    make.register("w-1")
    make.start("order-1")
    lease = leased(poll(api, "workflow", poll_request_id="p-1"))
    checkpoint(api, lease, make.schedule())

    again = leased(poll(api, "workflow", poll_request_id="p-1"))

    assert (again.task_id, again.body["workflow_task_attempt"]) == (lease.task_id, 1)
    assert [event["event_type"] for event in again.history][2:] == ["ActivityScheduled"]
    assert (again.body["total_history_events"], again.body["last_history_sequence"]) == (3, 3)


def test_shows_nothing_that_comes_after_the_checkpoint(api: ApiClient) -> None:
    lease = leased_task()
    checkpoint(api, lease, make.schedule())
    make.complete_step(make.lease_activity())

    assert history_of(api, lease).body["total_history_events"] == 3


def test_shows_the_next_claim_everything_after_the_lease_was_lost(api: ApiClient) -> None:
    lease = leased_task()
    checkpoint(api, lease, make.schedule())
    make.complete_step(make.lease_activity())
    lose(lease)

    following = make.lease_workflow("w-2")

    assert (following.task_id, following.body["workflow_task_attempt"]) == (lease.task_id, 2)
    assert [event.event_type for event in following.history][2:] == [
        "ActivityScheduled", "ActivityStarted", "ActivityCompleted",
    ]  # fmt: skip
    check_invariants()


# -- what is owed to the run -------------------------------------------------------------------------------------------


def with_a_second_decision() -> tuple[make.Lease, make.Lease]:
    """A claim of the run's second workflow task, and the activity that is still out."""
    make.complete(leased_task(), make.schedule(), make.schedule())
    make.complete_step(make.lease_activity())
    return make.lease_workflow(), make.lease_activity()


def test_owes_the_run_what_happened_between_claim_and_checkpoint(api: ApiClient) -> None:
    lease, step = with_a_second_decision()
    make.complete_step(step)

    checkpoint(api, lease, make.schedule(), start_sequence=3)
    waiting = make.report_waiting(lease)

    following = make.lease_workflow()
    assert following.task_id == waiting.next_task_id
    assert following.history[-1].event_type == "ActivityScheduled"
    check_invariants()


def test_owes_it_after_a_completion_too(api: ApiClient) -> None:
    lease, step = with_a_second_decision()
    make.complete_step(step)

    checkpoint(api, lease, local_activity(), start_sequence=3)
    make.complete(lease, local_activity())

    assert make.lease_workflow().task_id != lease.task_id
    check_invariants()


def test_owes_the_run_what_happens_after_the_checkpoint(api: ApiClient) -> None:
    lease = leased_task()
    checkpoint(api, lease, make.schedule())
    make.complete_step(make.lease_activity())

    waiting = make.report_waiting(lease)

    assert make.lease_workflow().task_id == waiting.next_task_id
    check_invariants()


def test_owes_nothing_for_its_own_events(api: ApiClient) -> None:
    lease = leased_task()
    checkpoint(api, lease, local_activity(), make.schedule())

    assert make.report_waiting(lease).next_task_id is None
    check_invariants()


def test_still_knows_a_list_that_was_resolved_before_the_checkpoint(api: ApiClient) -> None:
    """The claim saw the list unresolved, so its worker sends it again, whether it has read the history anew or not."""
    members = make.schedule_list(2)
    make.complete(leased_task(), *members, make.schedule())
    first, second, single = (make.lease_activity() for _ in range(3))
    make.complete_step(single)
    lease = make.lease_workflow()
    make.complete_step(first)
    make.complete_step(second)

    checkpoint(api, lease, make.schedule(), start_sequence=4)
    make.complete(lease, *members)

    assert steps_of(lease) == [1, 2, 3, 4]
    check_invariants()


def test_takes_the_list_of_a_checkpoint_for_a_repeat_when_it_is_sent_again(api: ApiClient) -> None:
    lease = leased_task()
    members = make.schedule_list(2)
    checkpoint(api, lease, *members)

    repeated = checkpoint(api, lease, *members, checkpoint_id="c-2", start_sequence=3)
    completed = send(api, lease, "complete", commands=[*members, make.schedule()])

    assert repeated.plain == answer(lease, checkpoint_id="c-2", start_sequence=3, next_sequence=3, created_task_ids=[])
    assert len(completed.body["created_task_ids"]) == 1
    assert steps_of(lease) == [1, 2, 3]
    check_invariants()


# -- sent again --------------------------------------------------------------------------------------------------------


def test_n16_answers_an_identical_checkpoint_with_its_receipt(populated: ApiClient) -> None:
    lease = leased_task()
    first = checkpoint(populated, lease, make.schedule())
    checkpoint(populated, lease, make.schedule(), checkpoint_id="c-2", start_sequence=2)

    with nothing_recorded():
        again = checkpoint(populated, lease, make.schedule())

    assert (again.status, again.plain) == (200, {**first.plain, "duplicate": True})


def _complete(api: ApiClient, lease: make.Lease) -> None:
    make.complete(lease, make.schedule())


def _cancel(api: ApiClient, lease: make.Lease) -> None:
    assert api.post("/api/workflows/order-1/cancel").status == 200


def _take_over(api: ApiClient, lease: make.Lease) -> None:
    lose(lease)
    make.lease_workflow("w-2")


OVER = {
    "expired": lambda api, lease: make.expire_lease(lease.task_id),
    "completed": _complete,
    "waiting": lambda api, lease: make.report_waiting(lease),
    "taken over": _take_over,
    "run cancelled": _cancel,
}


@pytest.mark.parametrize("how", OVER)
def test_answers_it_also_when_the_claim_or_the_run_is_over(populated: ApiClient, how: str) -> None:
    lease = leased_task()
    first = checkpoint(populated, lease, make.schedule())
    OVER[how](populated, lease)

    with nothing_recorded():
        again = checkpoint(populated, lease, make.schedule())

    assert (again.status, again.plain) == (200, {**first.plain, "duplicate": True})


def test_compares_it_without_the_order_of_keys(populated: ApiClient) -> None:
    lease = leased_task()
    checkpoint(populated, lease, make.schedule(queue="other"))
    body = fence(lease, checkpoint_id="c-1", start_sequence=1, commands=[make.schedule(queue="other")])
    body["commands"] = [dict(reversed(command.items())) for command in body["commands"]]

    with nothing_recorded():
        again = populated.post(path(lease, VERB), raw=json.dumps(dict(reversed(body.items())), indent=1).encode())

    assert (again.status, again.body["duplicate"]) == (200, True)


@pytest.mark.parametrize(
    "other", [{"commands": [local_activity()]}, {"start_sequence": 2}, {"start_sequence": "1"}, {"unknown": 1}]
)
def test_refuses_another_body_under_the_same_id(populated: ApiClient, other: dict[str, Any]) -> None:
    lease = leased_task()
    checkpoint(populated, lease, make.schedule())

    with nothing_recorded():
        response = checkpoint(populated, lease, make.schedule(), **other)

    assert response.status == 409
    assert response.plain == {
        "error": "Another report was recorded for this claim already.",
        "reason": "conflicting_completion",
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
    }


def test_lets_the_next_claim_use_the_same_id(api: ApiClient) -> None:
    lease = leased_task()
    checkpoint(api, lease, make.schedule())
    _take_over(api, lease)
    taken = make.Lease({**lease.body, "lease_owner": "w-2", "workflow_task_attempt": 2}, [])

    response = checkpoint(api, taken, make.schedule(), start_sequence=2)

    assert response.plain == answer(
        lease, lease_owner="w-2", workflow_task_attempt=2, start_sequence=2, next_sequence=3
    )
    assert CheckpointReceipt.objects.count() == 2


@pytest.mark.parametrize("other", ["c-1 ", "C-1"])
def test_tells_ids_apart_byte_for_byte(api: ApiClient, other: str) -> None:
    lease = leased_task()
    checkpoint(api, lease, make.schedule())

    response = checkpoint(api, lease, make.schedule(), checkpoint_id=other, start_sequence=2)

    assert response.plain == answer(lease, checkpoint_id=other, start_sequence=2, next_sequence=3)


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [1, 3])
def test_n16_refuses_a_checkpoint_that_is_out_of_step(populated: ApiClient, start: int) -> None:
    lease = leased_task()
    checkpoint(populated, lease, make.schedule())

    with nothing_recorded():
        response = checkpoint(populated, lease, make.schedule(), checkpoint_id="c-2", start_sequence=start)

    assert response.status == 409
    assert response.plain == {
        "error": "The checkpoint does not begin with the run's next step.",
        "reason": "checkpoint_sequence_mismatch",
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
        "start_sequence": start,
        "next_sequence": 2,
    }


def test_says_the_claim_is_over_before_it_says_out_of_step(populated: ApiClient) -> None:
    lease = leased_task()
    make.report_waiting(lease)

    response = checkpoint(populated, lease, make.schedule(), start_sequence=9)

    assert response.body["reason"] == "task_not_leased"


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "no commands": ({"commands": []}, "commands"),
    "not a list": ({"commands": {"type": "schedule_activity"}}, "commands"),
    "too many": ({"commands": [make.schedule()] * 101}, "commands"),
    "ends the run": ({"commands": [make.schedule(), make.finish()]}, "commands.1.type"),
    "fails the run": ({"commands": [{"type": "fail_workflow", "message": "no"}]}, "commands.0.type"),
    "unknown command": ({"commands": [{"type": "unheard_of"}]}, "commands.0.type"),
    "half a list": ({"commands": make.schedule_list(2)[:1]}, "commands"),
    "no id": ({"checkpoint_id": ""}, "checkpoint_id"),
    "long id": ({"checkpoint_id": "x" * 256}, "checkpoint_id"),
    "id with a control character": ({"checkpoint_id": "a\x00b"}, "checkpoint_id"),
    "step 0": ({"start_sequence": 0}, "start_sequence"),
    "huge step": ({"start_sequence": 2**31}, "start_sequence"),
    "no step": ({"start_sequence": None}, "start_sequence"),
    "attempt 0": ({"workflow_task_attempt": 0}, "workflow_task_attempt"),
    "no owner": ({"lease_owner": ""}, "lease_owner"),
}


@pytest.mark.parametrize("what", INVALID)
def test_n16_refuses_what_is_not_a_checkpoint(populated: ApiClient, what: str) -> None:
    lease, (fields, at) = leased_task(), INVALID[what]

    with nothing_recorded():
        response = checkpoint(populated, lease, make.schedule(), **fields)

    assert response.status == 422
    assert set(response.plain) == {"message", "reason", "errors", "validation_errors"}
    assert (response.body["reason"], list(response.body["errors"])) == ("validation_failed", [at])


# What a completion would fail the run for.
OVER_LIMIT: dict[str, tuple[dict[str, int], list[dict[str, Any]], int, int]] = {
    "payload_size_bytes": ({"PAYLOAD_SIZE_BYTES": 100}, [make.schedule(arguments=make.envelope("x" * 200))], 0, 100),
    "pending_activity_count": ({"PENDING_ACTIVITY_COUNT": 1}, [make.schedule()] * 2, 2, 1),
    "pending_timer_count": ({"PENDING_TIMER_COUNT": 1}, [make.sleep()] * 2, 2, 1),
    "history_transaction_size": ({"HISTORY_TRANSACTION_SIZE": 2}, [local_activity()], 3, 2),
    "command_batch_size": ({"COMMAND_BATCH_SIZE": 2}, [make.schedule()] * 3, 3, 2),
}


@pytest.mark.parametrize("kind", OVER_LIMIT)
def test_n16_refuses_what_passes_a_limit_and_leaves_the_run_open(
    populated: ApiClient, override_durable: Any, kind: str
) -> None:
    lease = leased_task()
    settings, commands, value, most = OVER_LIMIT[kind]
    override_durable(**settings)

    with nothing_recorded():
        response = checkpoint(populated, lease, *commands)

    assert response.status == 422
    found = response.body["current_value"]
    assert found == value or (kind == "payload_size_bytes" and found > most)
    text = f"Structural limit {kind} exceeded: {found} is more than {most}."
    assert response.plain == {
        "message": "A batch may hold 2 commands; this one has 3." if kind == "command_batch_size" else text,
        "reason": "structural_limit_exceeded",
        "outcome": "rejected",
        "limit_kind": kind,
        "current_value": found,
        "configured_limit": most,
    }
    override_durable(**dict.fromkeys(settings, 0))
    assert checkpoint(populated, lease, *commands).status == 200


def test_has_a_case_for_every_limit_that_commands_can_pass() -> None:
    sources = (Path(batch.__file__).parent).glob("*.py")
    kinds = {kind for source in sources for kind in re.findall(r'check_limit\(\s*"(\w+)"', source.read_text())}

    assert {*kinds, "command_batch_size"} == set(OVER_LIMIT)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({"worker_session": {"session_id": "s-1"}}, "worker_sessions_unavailable"),
        ({"cancellation_policy": "abandon"}, "worker_capability_not_supported"),
    ],
)
def test_n16_refuses_what_a_completion_is_refused_for(populated: ApiClient, field: dict[str, Any], reason: str) -> None:
    lease = leased_task()

    with nothing_recorded():
        response = checkpoint(populated, lease, make.schedule(**field))

    assert (response.status, response.body["reason"]) == (409, reason)
    assert not {"recorded", "run_id"} & response.body.keys()


def test_frees_the_task_for_others_when_the_claim_runs_out_after_all(api: ApiClient) -> None:
    lease = leased_task()
    checkpoint(api, lease, make.schedule())
    make.expire_lease(lease.task_id)

    late = checkpoint(api, lease, make.schedule(), checkpoint_id="c-2", start_sequence=2)

    assert late.body["reason"] == "lease_expired"
    assert recover_lease(lease.task_id)


# -- as it is described ------------------------------------------------------------------------------------------------


ROUTE = "/api/worker/workflow-tasks/{task_id}/cancellation-scopes/checkpoint"
ENVELOPE = {"protocol_version", "server_capabilities"}


def described_answers(*statuses: str) -> list[dict[str, Any]]:
    """The schemas of the route's bodies, without the envelope."""
    responses = document("worker")["paths"][ROUTE]["post"]["responses"]
    schemas = [responses[status]["content"]["application/json"]["schema"] for status in statuses]
    bodies = [resolve("worker", part) for schema in schemas for part in schema.get("oneOf", [schema])]
    return [{**body, "required": [key for key in body["required"] if key not in ENVELOPE]} for body in bodies]


def test_is_described_with_examples_that_fit() -> None:
    text = document("worker")["paths"][ROUTE]["post"]["description"]
    examples = [json.loads(found) for found in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]

    assert [example.get("reason") for example in examples] == [None, "run_closed", "checkpoint_sequence_mismatch"]
    components = {"components": document("worker")["components"]}
    for example in examples:
        fitting = [
            body
            for body in described_answers("200", "409")
            if Draft202012Validator({**body, **components}).is_valid(example)
        ]
        assert len(fitting) == 1, example


def test_is_not_advertised(api: ApiClient) -> None:
    found = api.get("/api/cluster/info").raw

    assert b"checkpoint" not in found
