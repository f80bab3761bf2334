"""Cancel, terminate and repair (docs/protocol/control-plane.md 7.10 and 7.12; docs/protocol/history.md 11)."""

from __future__ import annotations

from typing import Any

import pytest

from durable.models import ActivityAttempt, ActivityExecution, Failure, HistoryEvent, Run, Task, WorkflowCommand
from tests import factories as make
from tests.client import ApiClient
from tests.invariants import check_invariants
from tests.protocol.cases.control import earlier_run
from tests.protocol.closings import leased_task
from tests.protocol.reports import A_TIME, ABSENT, AN_ID, send, without
from tests.snapshot import nothing_recorded
from wire.tokens import create_token

STOPS = {
    "cancel": {"outcome": "cancelled", "event": "WorkflowCancelled", "requested": "CancelRequested"},
    "terminate": {"outcome": "terminated", "event": "WorkflowTerminated", "requested": "TerminateRequested"},
}


@pytest.mark.parametrize("verb", STOPS)
@pytest.mark.parametrize("of_run", [False, True])
def test_answers_what_was_done(api: ApiClient, verb: str, of_run: bool) -> None:
    run_id = make.start("order-1").run.id
    route = f"/api/workflows/order-1/runs/{run_id}/{verb}" if of_run else f"/api/workflows/order-1/{verb}"

    response = api.post(route, {"reason": "  no stock ", "request_id": "r-1"})

    outcome = STOPS[verb]["outcome"]
    assert response.status == 200
    assert {key: value for key, value in response.body.items() if key != "control_plane"} == {
        "outcome": outcome,
        "workflow_id": "order-1",
        "run_id": run_id,
        "requested_run_id": run_id if of_run else None,
        "resolved_run_id": run_id,
        "command_id": AN_ID,
        "command_status": "accepted",
        "command_source": "control_plane",
        "target_scope": "run" if of_run else "instance",
        "workflow_type": "five",
        "run_status": outcome,
        "reason": "no stock",
        "rejection_reason": None,
    }
    assert response.body["control_plane"]["operation"] == verb
    command = WorkflowCommand.objects.get(id=response.body["command_id"])
    assert (command.command_type, command.reason, command.request_id, command.outcome) == (
        verb, "no stock", "r-1", outcome,
    )  # fmt: skip


@pytest.mark.parametrize("verb", STOPS)
def test_closes_the_run_and_what_hangs_on_it(api: ApiClient, verb: str) -> None:
    make.complete(leased_task(), make.schedule(), make.schedule(), make.schedule())
    held, done = make.lease_activity(), make.lease_activity()
    make.complete_step(done)
    outcome = STOPS[verb]["outcome"]

    api.post(f"/api/workflows/order-1/{verb}", {"reason": "no stock"})

    run = Run.objects.get()
    assert (run.status, run.closed_reason, run.open_task_id, run.pending_activity_count) == (outcome, outcome, None, 0)
    assert make.event_types(run.id)[5:] == [
        "ActivityStarted", "ActivityCompleted", STOPS[verb]["requested"],
        *held_back(held), STOPS[verb]["event"],
    ]  # fmt: skip
    assert set(Task.objects.filter(closed_at=run.closed_at).values_list("status", flat=True)) == {"cancelled"}
    assert not Task.objects.filter(status__in=("ready", "leased")).exists()
    assert sorted(ActivityExecution.objects.values_list("status", flat=True)) == ["cancelled", "cancelled", "completed"]
    assert ActivityAttempt.objects.get(id=held.body["activity_attempt_id"]).status == "cancelled"
    check_invariants()


def held_back(held: make.Lease) -> list[str]:
    """The events of two cancelled steps in step order: of the held one its start too."""
    step = ActivityExecution.objects.get(id=held.body["activity_execution_id"]).step_number
    other = ActivityExecution.objects.filter(status="cancelled").exclude(step_number=step).get().step_number
    both = [(step, ["ActivityStarted", "ActivityCancelled"]), (other, ["ActivityCancelled"])]
    return [event for _, events in sorted(both) for event in events]


@pytest.mark.parametrize("verb", STOPS)
@pytest.mark.parametrize(
    ("sent", "kept"),
    [(ABSENT, None), (None, None), ("", None), ("  \n", None), ("no stock", "no stock"), ("x" * 1000,) * 2],
)
def test_records_the_reason(api: ApiClient, verb: str, sent: Any, kept: str | None) -> None:
    run = make.start("order-1").run

    api.post(f"/api/workflows/order-1/{verb}", without({"reason": sent}))

    requested, closed = HistoryEvent.objects.order_by("sequence")[2:]
    outcome = STOPS[verb]["outcome"]
    command = WorkflowCommand.objects.get(command_type=verb)
    identity = {"workflow_command_id": command.id, "workflow_instance_id": "order-1", "workflow_run_id": run.id}
    assert requested.payload == {**identity, "command_type": verb, "reason": kept}
    assert closed.payload == {
        **identity,
        "failure_id": AN_ID,
        "failure_category": outcome,
        "closed_reason": outcome,
        "exception_class": STOPS[verb]["event"],
        "message": f"Workflow {outcome}: {kept}" if kept else f"Workflow {outcome}.",
        "reason": kept,
    }
    assert (requested.workflow_command_id, closed.workflow_command_id) == (command.id, command.id)
    assert Failure.objects.get().failure_category == outcome


@pytest.mark.parametrize("verb", STOPS)
def test_shows_who_stopped_a_run(api: ApiClient, verb: str) -> None:
    run_id = make.start("order-1").run.id
    _, secret = create_token("the support team", roles=["operator"], namespaces=["default"])

    api.post(f"/api/workflows/order-1/{verb}", token=secret)

    events = api.get(f"/api/workflows/order-1/runs/{run_id}/history").body["events"]
    assert [event["principal"]["id"] for event in events] == ["tests", "tests", "the support team", "the support team"]


@pytest.mark.parametrize("verb", [*STOPS, "repair"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("reason", value) for value in (7, [], {}, True, "x" * 1001)],
        *[("request_id", value) for value in (7, [], "", "  ", "x" * 256, "a\nb")],
    ],
)
def test_refuses_a_field_that_is_wrong(api: ApiClient, verb: str, field: str, value: Any) -> None:
    make.start("order-1")
    if (verb, field) == ("repair", "reason"):
        assert api.post("/api/workflows/order-1/repair", {"reason": value}).status == 200
        return

    with nothing_recorded():
        response = api.post(f"/api/workflows/order-1/{verb}", {field: value})

    assert (response.status, list(response.body["errors"])) == (422, [field])
    assert response.body["control_plane"]["operation"] == verb


COMMANDS = ["cancel", "terminate", "repair", "runs/{run}/cancel", "runs/{run}/terminate"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("how", ["completed", "failed", "cancelled", "terminated"])
def test_refuses_a_run_that_is_closed(api: ApiClient, how: str, command: str) -> None:
    lease = leased_task()
    if how in ("completed", "failed"):
        last = make.finish() if how == "completed" else {"type": "fail_workflow", "message": "no"}
        send(api, lease, "complete", commands=[last])
    else:
        api.post(f"/api/workflows/order-1/{ {'cancelled': 'cancel', 'terminated': 'terminate'}[how] }")

    with nothing_recorded():
        response = api.post(f"/api/workflows/order-1/{command.format(run=lease.body['run_id'])}")

    assert response.status == 409
    assert {key: value for key, value in response.body.items() if key != "control_plane"} == {
        "message": "The run is closed.",
        "reason": "run_not_active",
        "outcome": "rejected_not_active",
        "workflow_id": "order-1",
        "run_id": lease.body["run_id"],
        "run_status": how,
        "is_terminal": True,
    }
    assert response.body["control_plane"]["operation"] == command.rpartition("/")[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_refuses_a_workflow_that_is_not_there(api: ApiClient, command: str) -> None:
    with nothing_recorded():
        response = api.post(f"/api/workflows/nobody/{command.format(run='01RUN')}")

    assert (response.status, response.body["reason"]) == (404, "instance_not_found")


@pytest.mark.parametrize("verb", STOPS)
def test_refuses_a_run_that_is_not_there(api: ApiClient, verb: str) -> None:
    make.start("order-1")
    other = make.start("order-2").run.id

    for run_id in ("01RUN", other):
        with nothing_recorded():
            response = api.post(f"/api/workflows/order-1/runs/{run_id}/{verb}")

        assert (response.status, response.body["reason"]) == (404, "run_not_found")


@pytest.mark.parametrize("verb", STOPS)
def test_refuses_a_run_that_is_not_the_current_one(api: ApiClient, verb: str) -> None:
    make.start("order-1")
    old = earlier_run("order-1")

    with nothing_recorded():
        response = api.post(f"/api/workflows/order-1/runs/{old.id}/{verb}")

    assert (response.status, response.body["reason"]) == (409, "historical_run_command_rejected")
    assert (response.body["target_scope"], response.body["outcome"]) == ("run", "rejected_not_current")


def test_answers_a_repair(api: ApiClient) -> None:
    run_id = make.start("order-1").run.id

    response = api.post("/api/workflows/order-1/repair", {"request_id": "r-1"})

    assert response.status == 200
    assert response.body["outcome"] == "repair_not_needed"
    assert (response.body["command_status"], response.body["command_id"]) == ("accepted", AN_ID)
    assert (response.body["workflow_id"], response.body["run_id"]) == ("order-1", run_id)
    assert response.body["control_plane"]["operation"] == "repair"
    assert make.event_types(run_id) == ["StartAccepted", "WorkflowStarted"]


def test_says_when_a_stopped_run_closed(api: ApiClient) -> None:
    make.start("order-1")
    api.post("/api/workflows/order-1/cancel")

    assert api.get("/api/workflows/order-1").body["closed_at"] == A_TIME
