"""Starting a workflow: every field, every refusal, and one run per id (docs/protocol/control-plane.md 7.1)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durable import avro
from durable.models import HistoryEvent, Namespace, Run, Task, Workflow, WorkflowCommand
from tests import factories as make
from tests.client import ApiClient, Response
from tests.protocol.reports import ABSENT, AN_ID, poll, without
from tests.snapshot import nothing_recorded

FULL: dict[str, Any] = {
    "workflow_id": "order-1",
    "workflow_type": "five",
    "task_queue": make.QUEUE,
    "input": make.envelope([7]),
    "execution_timeout_seconds": 3600,
    "run_timeout_seconds": 600,
    "duplicate_policy": "fail",
    "business_key": "customer 12",
    "memo": {"note": ["anything", {"json": None}]},
    "search_attributes": {"Region": "eu", "Tags": ["a", "b"], "Count": 3, "Open": True, "Gone": None},
    "priority": 2,
    "fairness_key": "tenant-1",
    "fairness_weight": 5,
    "build_id": "build-1",
    "compatibility": "build-0",
    "visibility_labels": {"team": "sales"},
    "observability_context": {"traceparent": "00-x"},
}


def start(api: ApiClient, **fields: Any) -> Response:
    return api.post("/api/workflows", without({"workflow_type": "five", **fields}))


def started(api: ApiClient, **fields: Any) -> Run:
    response = start(api, **fields)
    assert response.status == 201, response.body
    return Run.objects.get(id=response.body["run_id"])


# -- what it answers and makes -----------------------------------------------------------------------------------------


def test_answers_a_new_run(api: ApiClient) -> None:
    response = start(api, **FULL)

    assert response.status == 201
    assert {key: value for key, value in response.body.items() if key != "control_plane"} == {
        "workflow_id": "order-1",
        "run_id": AN_ID,
        "workflow_type": "five",
        "namespace": "default",
        "status": "pending",
        "business_key": "customer 12",
        "payload_codec": "avro",
        "outcome": "started_new",
        "command_id": AN_ID,
        "command_status": "accepted",
        "command_source": "control_plane",
        "reason": None,
        "rejection_reason": None,
        "message": "Workflow started.",
    }
    assert response.body["control_plane"]["operation"] == "start"


def test_makes_everything_that_a_run_needs(api: ApiClient) -> None:
    run = started(api, **FULL)

    workflow, task, command = Workflow.objects.get(), Task.objects.get(), WorkflowCommand.objects.get()
    assert (workflow.id, workflow.current_run_id, workflow.run_count) == ("order-1", run.id, 1)
    assert (run.priority, run.build_id, run.business_key) == (2, "build-1", "customer 12")
    assert (run.memo, run.search_attributes) == (FULL["memo"], FULL["search_attributes"])
    assert run.labels == {
        "fairness_key": "tenant-1",
        "fairness_weight": 5,
        "visibility_labels": {"team": "sales"},
        "observability_context": {"traceparent": "00-x"},
    }
    assert (task.status, task.kind, task.type, task.task_queue) == ("ready", "workflow", "five", make.QUEUE)
    assert (task.priority, task.build_id, run.open_task_id) == (2, "build-1", task.id)
    assert (command.command_type, command.outcome, command.run_id) == ("start", "started_new", run.id)
    accepted, began = HistoryEvent.objects.order_by("sequence")
    assert [accepted.event_type, began.event_type] == ["StartAccepted", "WorkflowStarted"]
    for event in (accepted, began):
        assert event.payload["workflow_instance_id"] == "order-1"
        assert event.payload["workflow_run_id"] == run.id
        assert event.payload["workflow_command_id"] == command.id == event.workflow_command_id
        assert event.payload["search_attributes"] == FULL["search_attributes"]
    assert accepted.payload["outcome"] == "started_new"
    assert (began.payload["arguments"], began.payload["memo"]) == (FULL["input"], FULL["memo"])
    assert "timestamp" not in began.payload


def test_counts_deadlines_from_the_start(api: ApiClient) -> None:
    run = started(api, **FULL)

    assert run.execution_deadline_at == run.created_at + timedelta(seconds=3600)
    assert run.run_deadline_at == run.deadline_at == run.created_at + timedelta(seconds=600)
    assert Task.objects.get().run_deadline_at == run.deadline_at


def test_needs_a_type_and_nothing_else(api: ApiClient) -> None:
    run = started(api)

    assert run.workflow_id == AN_ID
    assert (run.task_queue, run.priority, run.build_id, run.labels) == ("default", 5, "", None)
    assert (run.deadline_at, run.memo, run.search_attributes) == (None, None, None)
    assert HistoryEvent.objects.get(sequence=2).payload["arguments"] == make.envelope([])


@pytest.mark.parametrize("field", [name for name in FULL if name != "workflow_type"])
def test_takes_null_for_a_field_that_is_not_said(api: ApiClient, field: str) -> None:
    assert start(api, **{field: None}).status == 201


def test_needs_no_worker_and_gives_the_first_one_its_task(api: ApiClient) -> None:
    started(api, task_queue=make.QUEUE, input=[7, "x"])
    make.register("w-1")

    task = poll(api, "workflow").body["task"]

    assert avro.decode_value(task["arguments"]["blob"]) == [7, "x"]


@pytest.mark.parametrize("compatibility", ["build-1", ABSENT])
def test_pins_to_a_build_by_either_name(api: ApiClient, compatibility: Any) -> None:
    build_id = ABSENT if compatibility is not ABSENT else "build-1"

    assert started(api, build_id=build_id, compatibility=compatibility).build_id == "build-1"


def test_copies_the_contract_of_a_registered_worker(api: ApiClient) -> None:
    contract = {"signals": ["go"], "queries": ["state"], "updates": []}
    make.register("w-1", workflow_command_contracts={"five": contract})

    started(api, task_queue=make.QUEUE)

    assert HistoryEvent.objects.get(sequence=2).payload["declared_signals"] == ["go"]


def test_ignores_fields_that_it_does_not_know(api: ApiClient) -> None:
    assert start(api, start_delay=5, cron="* * * * *", unknown={"a": 1}).status == 201


@pytest.mark.parametrize("context", ["text", 7, [1]])
def test_drops_a_trace_context_that_is_none(api: ApiClient, context: Any) -> None:
    assert started(api, observability_context=context).labels is None


# -- input -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [[], [1, -1, 2**62], [1.5, -0.0], ["", "é", "\U0001f600"], [True, False, None], [[1, [2]], {"a": {"b": []}}], [{}]],
)
def test_encodes_a_list_of_arguments(api: ApiClient, arguments: list[Any]) -> None:
    started(api, input=arguments)

    blob = HistoryEvent.objects.get(sequence=2).payload["arguments"]["blob"]
    assert avro.decode_value(blob) == arguments


def test_keeps_an_envelope_as_it_was_sent(api: ApiClient) -> None:
    opaque = {"codec": "avro", "blob": "not decoded here"}

    started(api, input=opaque)

    assert HistoryEvent.objects.get(sequence=2).payload["arguments"] == opaque


@pytest.mark.parametrize(
    "value",
    ["x", 7, True, {}, {"codec": "json", "blob": "W10="}, {"codec": "avro"}, {"codec": "avro", "blob": 7},
     {"codec": "avro", "external_payload": {}}, [2**64], [10**30]],
)  # fmt: skip
def test_refuses_an_input_that_is_neither(api: ApiClient, value: Any) -> None:
    with nothing_recorded():
        response = start(api, input=value)

    assert (response.status, list(response.body["errors"])) == (422, ["input"])


# -- fields ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("workflow_type", value) for value in (ABSENT, None, "", 7, [], "x" * 256)],
        *[("workflow_id", value) for value in ("", "a b", "x" * 129, 7, [], True)],
        *[("task_queue", value) for value in ("", 7, "x" * 256)],
        *[
            (name, value)
            for name in ("execution_timeout_seconds", "run_timeout_seconds")
            for value in (0, -1, "x", 1.5, True, 315_360_001)
        ],
        *[("duplicate_policy", value) for value in ("use_existing", "reject", "", "FAIL", 7, True)],
        *[("business_key", value) for value in ("", 7, "x" * 256)],
        *[("memo", value) for value in ("x", 7, [], True)],
        *[
            ("search_attributes", value)
            for value in ("x", 7, [], {"": 1}, {"1a": 1}, {"a-b": 1}, {"é": 1}, {"a" * 129: 1})
        ],
        *[("search_attributes", {"A": value}) for value in ({}, [1], [None], "x" * 2049, ["x" * 2100])],
        ("search_attributes", {f"A{number}": 1 for number in range(101)}),
        *[("priority", value) for value in (-1, 10, "x", 1.5, True)],
        *[("fairness_key", value) for value in ("", "a b", "x" * 65, 7)],
        *[("fairness_weight", value) for value in (0, 1001, "x", 1.5)],
        *[("build_id", value) for value in ("", 7, "x" * 256)],
        *[("visibility_labels", value) for value in ("x", 7, [])],
    ],
)
def test_refuses_a_field_that_is_wrong(api: ApiClient, field: str, value: Any) -> None:
    with nothing_recorded():
        response = start(api, **{field: value})

    assert (response.status, response.body["reason"]) == (422, "validation_failed")
    assert {path.split(".")[0] for path in response.body["errors"]} == {field}
    assert response.body["errors"] == response.body["validation_errors"]
    assert response.body["control_plane"]["validation_errors"] == response.body["errors"]


@pytest.mark.parametrize(
    "field",
    ["workflow_execution_timeout", "workflow_run_timeout", "workflow_task_timeout", "retry_policy", "idempotency_key",
     "request_id"],
)  # fmt: skip
@pytest.mark.parametrize("value", [None, 5, "x", {}])
def test_refuses_fields_that_would_mislead(api: ApiClient, field: str, value: Any) -> None:
    with nothing_recorded():
        response = start(api, **{field: value})

    assert response.status == 422
    assert response.body["errors"] == {field: ["This field is not supported."]}


def test_refuses_a_run_time_out_longer_than_the_whole(api: ApiClient) -> None:
    with nothing_recorded():
        response = start(api, run_timeout_seconds=61, execution_timeout_seconds=60)

    assert response.body["errors"] == {"run_timeout_seconds": ["61 s is longer than execution_timeout_seconds (60 s)."]}


@pytest.mark.parametrize(("size", "status"), [(100, 201), (101, 422)])
def test_takes_a_memo_up_to_its_limit(api: ApiClient, override_durable: Any, size: int, status: int) -> None:
    override_durable(MAX_MEMO_BYTES=100)
    memo = {"a": "é" + "x" * (size - len('{"a":"é"}'.encode()))}

    response = start(api, memo=memo)

    assert response.status == status
    if status == 422:
        assert response.body["errors"] == {"memo": ["The memo has 101 bytes; at most 100 are allowed."]}


def test_takes_numbers_as_digits(api: ApiClient) -> None:
    run = started(api, priority="3", run_timeout_seconds="60", fairness_weight="7")

    assert (run.priority, run.run_timeout_seconds, run.labels) == (3, 60, {"fairness_weight": 7})


@pytest.mark.parametrize(
    "attributes", [{}, {"A": "x" * 2048}, {"a" * 128: 1}, {f"A{n}": 1 for n in range(100)}, {"A": []}]
)
def test_takes_search_attributes_up_to_their_limits(api: ApiClient, attributes: dict[str, Any]) -> None:
    assert started(api, search_attributes=attributes).search_attributes == attributes


# -- one run per id ----------------------------------------------------------------------------------------------------


def close(api: ApiClient, how: str) -> None:
    if how in ("cancel", "terminate"):
        api.post(f"/api/workflows/order-1/{how}")
        return
    make.register("w-1", task_queue="default")
    command = make.finish() if how == "complete" else {"type": "fail_workflow", "message": "no"}
    make.complete(make.lease_workflow("w-1", task_queue="default"), command)


def test_refuses_an_id_that_was_started(api: ApiClient) -> None:
    run = started(api, workflow_id="order-1")

    for policy in (ABSENT, None, "fail"):
        with nothing_recorded():
            response = start(api, workflow_id="order-1", duplicate_policy=policy)

        assert response.status == 409
        assert {key: value for key, value in response.body.items() if key != "control_plane"} == {
            "message": "A workflow with this id was started already.",
            "reason": "instance_already_started",
            "outcome": "rejected_duplicate",
            "workflow_id": "order-1",
            "run_id": run.id,
            "workflow_type": "five",
        }


def test_answers_the_open_run_for_use_existing(api: ApiClient) -> None:
    first = start(api, workflow_id="order-1", business_key="first", run_timeout_seconds=60)

    with nothing_recorded():
        again = start(api, workflow_id="order-1", duplicate_policy="use-existing", business_key="second",
                      run_timeout_seconds=6000)  # fmt: skip

    assert (first.status, again.status) == (201, 200)
    assert again.body["run_id"] == first.body["run_id"]
    assert (again.body["outcome"], again.body["business_key"]) == ("returned_existing_active", "first")
    assert (again.body["command_status"], again.body["reason"]) == ("accepted", None)


def test_starts_what_is_not_there_for_use_existing(api: ApiClient) -> None:
    response = start(api, workflow_id="order-1", duplicate_policy="use-existing")

    assert (response.status, response.body["outcome"]) == (201, "started_new")


@pytest.mark.parametrize("policy", ["fail", "use-existing"])
@pytest.mark.parametrize("how", ["complete", "fail", "cancel", "terminate"])
def test_never_frees_the_id_of_a_closed_run(api: ApiClient, how: str, policy: str) -> None:
    started(api, workflow_id="order-1")
    close(api, how)

    with nothing_recorded():
        response = start(api, workflow_id="order-1", duplicate_policy=policy)

    assert (response.status, response.body["reason"]) == (409, "instance_already_started")


@pytest.mark.parametrize("policy", ["fail", "use-existing"])
@pytest.mark.parametrize("is_open", [True, False])
def test_refuses_an_id_of_another_type(api: ApiClient, policy: str, is_open: bool) -> None:
    started(api, workflow_id="order-1")
    if not is_open:
        close(api, "cancel")

    with nothing_recorded():
        response = start(api, workflow_id="order-1", workflow_type="six", duplicate_policy=policy)

    assert (response.status, list(response.body["errors"])) == (422, ["workflow_type"])


@pytest.mark.parametrize("policy", ["fail", "use-existing"])
def test_refuses_an_id_of_another_namespace(api: ApiClient, policy: str) -> None:
    Namespace.objects.create(name="theirs")
    make.start("order-1", namespace="theirs")

    with nothing_recorded():
        response = start(api, workflow_id="order-1", duplicate_policy=policy)

    assert response.status == 409
    assert (response.body["reason"], response.body["outcome"]) == (
        "workflow_id_reserved_in_namespace", "rejected_workflow_id_reserved_in_namespace",
    )  # fmt: skip
    assert "run_id" not in response.body


def test_tells_ids_apart_by_case(api: ApiClient) -> None:
    assert {start(api, workflow_id=name).status for name in ("order-1", "Order-1", "ORDER-1")} == {201}


def test_makes_one_run_of_many_starts_at_once(api: ApiClient) -> None:
    body = {"workflow_type": "five", "workflow_id": "order-1", "duplicate_policy": "use-existing"}

    begun = [api.begin("POST", "/api/workflows", body) for _ in range(12)]
    answers = [one.result(60) for one in begun]

    assert sorted(answer.status for answer in answers) == [200] * 11 + [201]
    assert len({answer.body["run_id"] for answer in answers}) == 1
    assert (Run.objects.count(), Task.objects.count(), HistoryEvent.objects.count()) == (1, 1, 2)
