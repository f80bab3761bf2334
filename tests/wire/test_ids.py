"""Ids and texts that cannot be: refused at every entry, without a fault, and by the database (field case: ghost ids).

An empty id once made a ghost run every fifteen minutes elsewhere; a NUL byte is a fault on PostgreSQL.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from django.db import IntegrityError, transaction

from durable.models import Failure, Namespace, Run, Task, WorkerRegistration, Workflow
from tests import factories as make
from tests.client import ApiClient, Response, undocumented
from tests.protocol.closings import leased_task
from tests.protocol.reports import poll, register, send
from tests.snapshot import nothing_recorded
from wire.models import ApiToken

# Blank, over-long, with control characters.
NO_ID = ["", " ", "\t \n", "\x00", "a\x00b", "a\nb", "a\x1fb", "a\x7fb", "x" * 256, "ü" * 200]
OVER_LONG = ["x" * 256, "ü" * 200]
TASK = {"workflow": "/api/worker/workflow-tasks/01TASK", "activity": "/api/worker/activity-tasks/01TASK"}
FENCE = {"lease_owner": "w-1", "workflow_task_attempt": 1, "activity_attempt_id": "01ATTEMPT"}
COMPLETE = {"commands": [make.finish()]}
FAIL = {"failure": {"message": "boom"}}

# (route, a body that would be taken, the field that holds an id)
ENTRIES: list[tuple[str, dict[str, Any], str]] = [
    *[
        ("/api/worker/register", {"task_queue": "q", "runtime": "python", "capability_manifest": {}}, field)
        for field in ("worker_id", "task_queue")
    ],
    ("/api/worker/heartbeat", {}, "worker_id"),
    *[
        (f"/api/worker/{kind}-tasks/poll", {"worker_id": "w", "task_queue": "q", "timeout_seconds": 0}, field)
        for kind in ("workflow", "activity")
        for field in ("worker_id", "task_queue")
    ],
    (f"{TASK['workflow']}/complete", {**FENCE, **COMPLETE}, "lease_owner"),
    (f"{TASK['workflow']}/fail", {**FENCE, **FAIL}, "lease_owner"),
    (f"{TASK['workflow']}/heartbeat", FENCE, "lease_owner"),
    (f"{TASK['workflow']}/history", {**FENCE, "next_history_page_token": "MA=="}, "lease_owner"),
    *[
        (f"{TASK['activity']}/{verb}", {**FENCE, **FAIL}, field)
        for verb in ("complete", "fail", "heartbeat", "renew-lease", "status")
        for field in ("lease_owner", "activity_attempt_id")
    ],
    *[
        ("/api/workflows", {"workflow_type": "five"}, field)
        for field in ("workflow_type", "workflow_id", "task_queue", "business_key", "build_id", "compatibility")
    ],
    *[(f"/api/workflows/order-1/{verb}", {}, "request_id") for verb in ("cancel", "terminate", "repair")],
]


@pytest.mark.parametrize("text", NO_ID, ids=lambda text: ascii(text[:8]))
def test_refuses_it_in_every_field_that_holds_an_id(populated: ApiClient, text: str) -> None:
    make.start("order-1")

    with nothing_recorded():
        for route, body, field in ENTRIES:
            response = populated.post(route, {**body, field: text})

            assert (response.status, response.body["reason"]) == (422, "validation_failed"), (route, field)
            assert list(response.body["errors"]) == [field], route


@pytest.mark.parametrize("text", NO_ID, ids=lambda text: ascii(text[:8]))
@pytest.mark.parametrize("field", ["supported_workflow_types", "supported_activity_types", "capabilities"])
def test_refuses_it_in_every_list_of_names(populated: ApiClient, field: str, text: str) -> None:
    with nothing_recorded():
        response = register(populated, **{field: ["good", text]})

    assert response.status == 422
    assert list(response.body["errors"]) == [f"{field}.1"]


@pytest.mark.parametrize("text", NO_ID, ids=lambda text: ascii(text[:8]))
@pytest.mark.parametrize("field", ["activity_type", "queue"])
def test_refuses_it_in_a_command(populated: ApiClient, field: str, text: str) -> None:
    lease = leased_task()

    with nothing_recorded():
        response = send(populated, lease, "complete", commands=[make.schedule(**{field: text})])

    assert response.status == 422
    assert list(response.body["errors"]) == [f"commands.0.{field}"]


@pytest.mark.parametrize(
    "workflow_id", ["a b", "a/b", "ü", "a\n", "-" * 129, "a%20b", "a?b", "a#b", "a\\b", "a'b", "*", "a,b"]
)
def test_takes_only_plain_characters_for_a_workflow_id(populated: ApiClient, workflow_id: str) -> None:
    with nothing_recorded():
        response = populated.post("/api/workflows", {"workflow_type": "five", "workflow_id": workflow_id})

    assert response.status == 422
    assert list(response.body["errors"]) == ["workflow_id"]


# -- in the path and in the query --------------------------------------------------------------------------------------

WORKFLOW_VERBS = ("complete", "cancellation-scopes/checkpoint", "fail", "heartbeat", "history")
PATH_IDS = ["%00", "a%00b", "%20", "%0A", "%7F", "x" * 300, "%C3%BC" * 200, "%F0%9F%98%80", "%EF%BF%BD", "..", "%25"]


@pytest.mark.parametrize("text", PATH_IDS, ids=lambda text: text[:12])
def test_finds_nothing_under_it_in_a_path(populated: ApiClient, text: str) -> None:
    make.start("order-1")
    fenced = {
        **FENCE,
        **COMPLETE,
        **FAIL,
        "checkpoint_id": "c-1",
        "start_sequence": 1,
        "next_history_page_token": "MA==",
        "registration_token": "0" * 32,
    }
    reads = ["workflows/{}", "workflows/{}/runs", "workflows/{}/runs/01RUN", "workflows/order-1/runs/{}",
             "workflows/order-1/runs/{}/history", "workflows/{}/runs/01RUN/history"]  # fmt: skip
    writes = ["workflows/{}/cancel", "workflows/{}/terminate", "workflows/{}/repair",
              "workflows/order-1/runs/{}/cancel",
              "workflows/order-1/runs/{}/terminate"]  # fmt: skip
    reports = [f"worker/workflow-tasks/{{}}/{verb}" for verb in WORKFLOW_VERBS]
    reports += [
        f"worker/activity-tasks/{{}}/{verb}" for verb in ("complete", "fail", "heartbeat", "renew-lease", "status")
    ]
    reports += ["worker/registrations/{}/deregister"]
    calls = [("GET", route, None) for route in reads]
    calls += [("POST", route, {}) for route in writes]
    calls += [("POST", route, fenced) for route in reports]
    calls += [("DELETE", "worker/registrations/{}", None)]

    # A line break ends the search for a route early: then the answer is that of no route, which is described elsewhere.
    with nothing_recorded(), undocumented():
        for method, route, body in calls:
            response = populated.request(method, f"/api/{route.format(text)}", body)

            assert response.status == 404, route


@pytest.mark.parametrize("text", ["\x00", "a\x00b", "a\nb", "\x7f", "x" * 9000], ids=lambda text: ascii(text[:8]))
def test_has_no_fault_with_it_in_a_query(api: ApiClient, text: str) -> None:
    for field in ("workflow_type", "status", "query", "page_size", "next_page_token"):
        response = api.get(f"/api/workflows?{field}={quote(text)}")

        assert response.status == 422, field

    run_id = make.start("order-1").run.id
    for field in ("page_size", "next_page_token"):
        response = api.get(f"/api/workflows/order-1/runs/{run_id}/history?{field}={quote(text)}")

        assert response.status in (400, 422), field


# -- in texts for people -----------------------------------------------------------------------------------------------

CONTROLS = "nul \x00, bell \x07, delete \x7f, \U0001f600"


def test_keeps_control_characters_of_a_failure(api: ApiClient) -> None:
    lease = leased_task()
    command = {"type": "fail_workflow", "message": CONTROLS, "exception_type": CONTROLS, "exception_class": CONTROLS}

    response = send(api, lease, "complete", commands=[command])

    assert (response.status, response.body["run_status"]) == (200, "failed")
    event = api.get(f"/api/workflows/order-1/runs/{lease.body['run_id']}/history").body["events"][-1]
    assert event["payload"]["message"] == CONTROLS
    assert Failure.objects.get().message.endswith("\U0001f600")


def test_has_no_fault_with_control_characters_in_an_activity_failure(api: ApiClient) -> None:
    make.complete(leased_task(), make.schedule())
    failure = {"message": CONTROLS, "type": CONTROLS, "class": CONTROLS, "stack_trace": CONTROLS, "details": [CONTROLS]}

    response = send(api, make.lease_activity(), "fail", failure=failure)

    assert response.status == 200


@pytest.mark.parametrize("message", [CONTROLS, f"replay failed {CONTROLS}"])
def test_has_no_fault_with_control_characters_in_a_task_failure(api: ApiClient, message: str) -> None:
    lease = leased_task()

    response = send(
        api, lease, "fail", failure={"message": message, "type": CONTROLS, "reason": CONTROLS, "stack_trace": CONTROLS}
    )

    assert response.status == 200
    assert Task.objects.get(id=lease.task_id).last_error["message"] == message


@pytest.mark.parametrize("verb", ["cancel", "terminate"])
def test_has_no_fault_with_control_characters_in_a_reason(api: ApiClient, verb: str) -> None:
    make.start("order-1")

    response = api.post(f"/api/workflows/order-1/{verb}", {"reason": CONTROLS})

    assert response.status == 200
    assert api.get("/api/workflows/order-1").status == 200


def test_has_no_fault_with_control_characters_anywhere_in_a_start(api: ApiClient) -> None:
    body = {
        "workflow_type": "five", "input": [CONTROLS], "memo": {CONTROLS: CONTROLS},
        "visibility_labels": {CONTROLS: CONTROLS}, "observability_context": {CONTROLS: CONTROLS},
        "search_attributes": {"City": CONTROLS},
    }  # fmt: skip

    response = api.post("/api/workflows", body)

    assert response.status == 201
    assert api.get(f"/api/workflows/{response.body['workflow_id']}").body["memo"] == {CONTROLS: CONTROLS}


def test_has_no_fault_with_control_characters_in_a_heartbeat(api: ApiClient) -> None:
    make.complete(leased_task(), make.schedule())

    response = send(api, make.lease_activity(), "heartbeat", details=[CONTROLS], message=CONTROLS)

    assert response.status == 200


def test_has_no_fault_with_control_characters_in_a_registration(api: ApiClient) -> None:
    extra: dict[str, Any] = {
        "process_metrics": {CONTROLS: CONTROLS}, "workflow_command_contracts": {CONTROLS: {"signals": [CONTROLS]}},
        "workflow_definition_fingerprints": {CONTROLS: CONTROLS}, "task_slots": {CONTROLS: 1},
        "capability_manifest": {CONTROLS: {"supported": False, "reason": CONTROLS}},
    }  # fmt: skip

    assert register(api, **extra).status == 201
    assert poll(api, "workflow").status == 200


def test_takes_a_report_whose_ids_only_look_alike_for_another(populated: ApiClient) -> None:
    lease = leased_task()

    def guarded(owner: str) -> Response:
        return send(populated, lease, "complete", commands=[make.finish()], lease_owner=owner)

    with nothing_recorded():
        for owner in ("W-1", "w-1 ", " w-1", "w\u20101", "\uff57-1"):
            assert guarded(owner).body["reason"] == "lease_owner_mismatch", owner


# -- the database refuses it too ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("text", ["", " ", "a b", "a\n", "ü"])
def test_has_a_constraint_against_it_as_a_workflow_id(text: str) -> None:
    started = make.start("order-1").run

    with pytest.raises(IntegrityError), transaction.atomic():
        Workflow.objects.create(
            id=text, namespace="default", workflow_type="x", current_run_id=started.id, created_at=started.created_at
        )


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("text", ["", " ", "  \t"])
def test_has_a_constraint_against_it_as_a_worker_id(text: str) -> None:
    make.register("w-1")

    with pytest.raises(IntegrityError), transaction.atomic():
        WorkerRegistration.objects.update(worker_id=text)


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("text", ["", " ", "UPPER", "a b", "ü", "a/b"])
def test_has_a_constraint_against_it_as_a_namespace(text: str) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Namespace.objects.create(name=text)


@pytest.mark.usefixtures("database")
def test_has_a_constraint_against_a_token_of_nobody() -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        ApiToken.objects.create(client="", prefix="0", secret_hash="0")


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    "half",
    [
        {"lease_owner": None},
        {"leased_at": None},
        {"lease_expires_at": None},
        {"attempt_count": 0},
        {"status": "ready"},
        {"status": "completed", "lease_owner": None},
        {"status": "completed", "lease_owner": None, "leased_at": None},
    ],
)
def test_has_a_constraint_against_half_a_lease(half: dict[str, Any]) -> None:
    lease = leased_task()

    with pytest.raises(IntegrityError), transaction.atomic():
        Task.objects.filter(id=lease.task_id).update(**half)


@pytest.mark.usefixtures("database")
def test_has_a_constraint_against_an_owner_of_a_ready_task() -> None:
    make.start("order-1")

    with pytest.raises(IntegrityError), transaction.atomic():
        Task.objects.update(lease_owner="w-1")
    assert Run.objects.get().status == "pending"
