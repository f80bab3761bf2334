"""A completion's batch is taken whole or not at all, and every fault has its path (docs/protocol/history.md 4.2)."""

from __future__ import annotations

from typing import Any

import pytest

from durable.models import ActivityExecution, HistoryEvent, Run, Task
from tests import factories as make
from tests.client import ApiClient, Response, undocumented
from tests.protocol.closings import leased_task
from tests.protocol.reports import ABSENT, send, without
from tests.snapshot import nothing_recorded


def refused(api: ApiClient, *commands: Any) -> dict[str, list[str]]:
    """The errors of a completion that must be refused and must leave no trace."""
    lease = leased_task()
    with nothing_recorded():
        response = send(api, lease, "complete", commands=list(commands))
    assert (response.status, response.body["reason"]) == (422, "validation_failed"), response.plain
    assert response.body["errors"] == response.body["validation_errors"]
    assert all(text for texts in response.body["errors"].values() for text in texts)
    errors: dict[str, list[str]] = response.body["errors"]
    return errors


def accepted(api: ApiClient, *commands: Any) -> Response:
    response = send(api, leased_task(), "complete", commands=list(commands))
    assert response.status == 200, response.plain
    return response


def changed(command: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return without({**command, **fields})


# -- the batch ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commands", [ABSENT, None, [], {}, "schedule_activity", 7, True])
def test_wants_a_list_that_is_not_empty(api: ApiClient, commands: Any) -> None:
    lease = leased_task()

    with nothing_recorded():
        response = send(api, lease, "complete", commands=commands)

    assert response.status == 422
    assert response.body["errors"] == {"commands": ["This must be a non-empty list of objects."]}


@pytest.mark.parametrize("element", [None, "schedule_activity", 7, [], True])
def test_wants_objects(api: ApiClient, element: Any) -> None:
    assert list(refused(api, make.schedule(), element)) == ["commands.1"]


@pytest.mark.parametrize(
    "name", [ABSENT, None, "", " ", 7, [], {}, "Schedule_Activity", "schedule_activity ", "start_service"]
)
def test_wants_a_type_that_it_supports(api: ApiClient, name: Any) -> None:
    assert list(refused(api, make.schedule(), changed(make.finish(), type=name))) == ["commands.1.type"]


def test_leaves_nothing_of_a_batch_whose_last_command_is_unknown(api: ApiClient) -> None:
    batch = [*make.schedule_list(3), make.schedule(), {"type": "no_such_command"}]

    assert list(refused(api, *batch)) == ["commands.4.type"]

    run = Run.objects.get(workflow_id="order-1")
    assert not ActivityExecution.objects.filter(run_id=run.id).exists()
    assert Task.objects.filter(run_id=run.id).count() == 1
    assert (run.next_step_number, run.last_history_sequence) == (1, 2)


def test_says_all_that_is_wrong_at_once(api: ApiClient) -> None:
    errors = refused(
        api,
        {"type": "schedule_activity", "queue": 7, "start_to_close_timeout": 0},
        {"type": "nothing"},
        {"type": "fail_workflow", "non_retryable": "yes"},
    )

    assert set(errors) == {
        "commands.0.activity_type", "commands.0.queue", "commands.0.start_to_close_timeout", "commands.1.type",
        "commands.2.message", "commands.2.non_retryable",
    }  # fmt: skip


@pytest.mark.parametrize(
    "batch",
    [
        [make.finish(), make.schedule()],
        [make.finish(), make.finish()],
        [make.schedule(), {"type": "fail_workflow", "message": "no"}, make.schedule()],
        [{"type": "fail_workflow", "message": "no"}, make.finish()],
    ],
)
def test_takes_one_terminal_command_and_only_as_the_last(api: ApiClient, batch: list[dict[str, Any]]) -> None:
    first = next(number for number, command in enumerate(batch) if command["type"] != "schedule_activity")

    assert list(refused(api, *batch)) == [f"commands.{first}.type"]


def test_applies_commands_in_order(api: ApiClient) -> None:
    response = accepted(api, make.schedule("b"), make.schedule("a"), make.schedule("c"))

    scheduled = HistoryEvent.objects.filter(event_type="ActivityScheduled").order_by("sequence")
    assert [event.payload["activity_type"] for event in scheduled] == ["b", "a", "c"]
    assert [event.payload["sequence"] for event in scheduled] == [1, 2, 3]
    assert response.body["created_task_ids"] == [
        ActivityExecution.objects.get(step_number=step).task_id for step in (1, 2, 3)
    ]


# -- whose field it is -------------------------------------------------------------------------------------------------

VALUES: dict[str, Any] = {
    "retry_policy": {"max_attempts": 2},
    "start_to_close_timeout": 5,
    "schedule_to_start_timeout": 5,
    "schedule_to_close_timeout": 5,
    "heartbeat_timeout": 5,
    "worker_session": {"session_id": "s"},
    "cancellation_policy": "try_cancel",
    "execution_timeout_seconds": 5,
    "run_timeout_seconds": 5,
    "parent_close_policy": "abandon",
    "non_retryable": True,
    "exception": {"message": "x"},
    "delay_seconds": 5,
    "timeout_seconds": 5,
    "entries": {"codec": "avro", "blob": ""},
}
LOCAL = {
    "type": "record_local_activity",
    "activity_type": "step",
    "execution_mode": "local",
    "arguments": make.envelope([]),
    "outcome": "completed",
    "result": make.envelope(1),
    "attempts": [{"attempt_id": "a-1", "attempt_number": 1, "outcome": "completed", "duration_ms": 5}],
}
TIME_OUTS = {name for name in VALUES if name.endswith("_timeout")}
OWNED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "schedule_activity": (make.schedule(), {"retry_policy", "worker_session", "cancellation_policy", *TIME_OUTS}),
    "record_local_activity": (LOCAL, {"retry_policy", "non_retryable", *TIME_OUTS}),
    "complete_workflow": (make.finish(), set()),
    "fail_workflow": ({"type": "fail_workflow", "message": "no"}, {"non_retryable", "exception"}),
}


@pytest.mark.parametrize(
    ("name", "field"),
    [(name, field) for name, (_, owned) in OWNED.items() for field in VALUES if field not in owned],
)
def test_refuses_a_field_on_a_command_that_does_not_own_it(api: ApiClient, name: str, field: str) -> None:
    errors = refused(api, {**OWNED[name][0], field: VALUES[field]})

    assert errors == {f"commands.0.{field}": [f"{name} does not take this field."]}


@pytest.mark.parametrize("name", OWNED)
def test_ignores_fields_that_it_does_not_know(api: ApiClient, name: str) -> None:
    accepted(api, {**OWNED[name][0], "unknown": {"a": 1}, "cancellation_scope_id": None})


# -- schedule_activity -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["activity_type", "queue"])
@pytest.mark.parametrize("value", ["", "  ", 7, True, [], {}, "x" * 256])
def test_refuses_a_name_that_is_none(api: ApiClient, field: str, value: Any) -> None:
    assert list(refused(api, make.schedule(**{field: value}))) == [f"commands.0.{field}"]


@pytest.mark.parametrize("value", [ABSENT, None])
def test_needs_an_activity_type(api: ApiClient, value: Any) -> None:
    errors = refused(api, changed(make.schedule(), activity_type=value))

    assert errors == {"commands.0.activity_type": ["This field is required."]}


@pytest.mark.parametrize(
    "arguments",
    ["wwHio", 7, [], {}, {"codec": "json", "blob": "e30="}, {"codec": "avro"}, {"blob": "x"},
     {"codec": "avro", "blob": 7},
     {"codec": "avro", "blob": "x", "more": 1}, {"codec": "avro", "external_payload": {"reference_id": "r"}},
     {"codec": "avro", "blob": None}, {"codec": None, "blob": "x"}],
)  # fmt: skip
@pytest.mark.parametrize(
    ("command", "field"),
    [(make.schedule(), "arguments"), (LOCAL, "arguments"), (LOCAL, "result"), (make.finish(), "result")],
)
def test_refuses_a_payload_that_is_no_envelope(
    api: ApiClient, command: dict[str, Any], field: str, arguments: Any
) -> None:
    assert list(refused(api, {**command, field: arguments})) == [f"commands.0.{field}"]


def test_keeps_a_payload_as_it_was_sent(api: ApiClient) -> None:
    opaque = {"blob": "not even base64, but ours to keep", "codec": "avro"}

    accepted(api, make.schedule(arguments=opaque))

    event = HistoryEvent.objects.get(event_type="ActivityScheduled")
    assert event.payload["activity"]["arguments"] == opaque


@pytest.mark.parametrize("arguments", [ABSENT, None])
def test_takes_absent_arguments_for_an_empty_list(api: ApiClient, arguments: Any) -> None:
    accepted(api, changed(make.schedule(), arguments=arguments))

    assert make.lease_activity().body["arguments"] == make.envelope([])


@pytest.mark.parametrize("field", sorted(TIME_OUTS))
@pytest.mark.parametrize("value", [0, -1, 1.5, "x", "", True, [], 315_360_001])
def test_refuses_a_time_out_that_is_none(api: ApiClient, field: str, value: Any) -> None:
    assert list(refused(api, make.schedule(**{field: value}))) == [f"commands.0.{field}"]


@pytest.mark.parametrize(
    ("longer", "shorter"),
    [
        ("start_to_close_timeout", "heartbeat_timeout"),
        ("schedule_to_close_timeout", "start_to_close_timeout"),
        ("schedule_to_close_timeout", "heartbeat_timeout"),
        ("schedule_to_close_timeout", "schedule_to_start_timeout"),
    ],
)
def test_refuses_time_outs_that_contradict_each_other_with_both_numbers(
    api: ApiClient, longer: str, shorter: str
) -> None:
    errors = refused(api, make.schedule(**{longer: 40, shorter: 41}))

    assert errors == {f"commands.0.{shorter}": [f"41 s is longer than {longer} (40 s)."]}


def test_takes_time_outs_that_are_equal(api: ApiClient) -> None:
    accepted(api, make.schedule(**dict.fromkeys(TIME_OUTS, 5)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("max_attempts", value) for value in (0, -1, 1.5, "x", True, [1])],
        *[("backoff_seconds", value) for value in (-1, [-1], [1, "x"], [1.5], [True], "x", {}, [1] * 1001)],
        *[("non_retryable_error_types", value) for value in ("ValueError", [7], {}, ["a", None])],
    ],
)
def test_refuses_a_retry_policy_that_is_none(api: ApiClient, field: str, value: Any) -> None:
    errors = refused(api, make.schedule(retry_policy={field: value}))

    assert list(errors) == [f"commands.0.retry_policy.{field}"]


@pytest.mark.parametrize("policy", ["fast", 7, [], True])
def test_wants_an_object_for_a_retry_policy(api: ApiClient, policy: Any) -> None:
    assert list(refused(api, make.schedule(retry_policy=policy))) == ["commands.0.retry_policy"]


def test_takes_numbers_as_digits(api: ApiClient) -> None:
    policy = {"max_attempts": "3", "backoff_seconds": ["1", "20"]}
    accepted(api, make.schedule(retry_policy=policy, start_to_close_timeout="30", heartbeat_timeout=" 5 "))

    frozen = ActivityExecution.objects.get().retry_policy
    assert (frozen["max_attempts"], frozen["backoff_seconds"]) == (3, [1, 20])
    assert (frozen["start_to_close_timeout"], frozen["heartbeat_timeout"]) == (30, 5)


def test_takes_a_single_number_for_a_list_of_back_offs(api: ApiClient) -> None:
    # Tolerated, not promised: the API documents ask for a list.
    with undocumented():
        accepted(api, make.schedule(retry_policy={"max_attempts": 3, "backoff_seconds": 4}))

    assert ActivityExecution.objects.get().retry_policy["backoff_seconds"] == [4]


@pytest.mark.parametrize("policy", ["later", 7, ""])
def test_refuses_a_cancellation_policy_that_is_none(api: ApiClient, policy: Any) -> None:
    assert list(refused(api, make.schedule(cancellation_policy=policy))) == ["commands.0.cancellation_policy"]


# -- terminal commands -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [ABSENT, None])
def test_completes_without_a_result(api: ApiClient, result: Any) -> None:
    response = accepted(api, changed(make.finish(), result=result))

    assert response.body["run_status"] == "completed"
    assert HistoryEvent.objects.get(event_type="WorkflowCompleted").payload == {"output": None, "payload_codec": "avro"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("message", value) for value in (ABSENT, None, 7, True, [])],
        *[("exception", value) for value in ("x", 7, [])],
        *[("non_retryable", value) for value in ("true", 1, 0, [])],
        *[("exception_type", value) for value in (7, [], "x" * 1001)],
        *[("failed_step_sequence", value) for value in (0, -1, "x", 1.5, True)],
    ],
)
def test_refuses_a_failure_whose_field_is_wrong(api: ApiClient, field: str, value: Any) -> None:
    command = changed({"type": "fail_workflow", "message": "no"}, **{field: value})

    assert list(refused(api, command)) == [f"commands.0.{field}"]


@pytest.mark.parametrize("message", ["", " ", "\n"])
def test_fails_a_run_whose_exception_says_nothing(api: ApiClient, message: str) -> None:
    response = accepted(api, {"type": "fail_workflow", "message": message, "exception_type": "Quiet"})

    assert response.body["run_status"] == "failed"
