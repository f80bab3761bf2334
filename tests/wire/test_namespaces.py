"""Which namespace a request names (docs/protocol/worker-protocol.md 1.4)."""

from __future__ import annotations

from typing import Any

import pytest

from durable.models import Namespace, Run, WorkerRegistration, Workflow
from tests import factories as make
from tests.client import ApiClient
from tests.protocol.reports import leased, path, poll, register, send
from tests.snapshot import nothing_recorded


@pytest.fixture
def theirs(api: ApiClient) -> str:
    return Namespace.objects.create(name="theirs").name


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize(
    ("header", "query", "found"),
    [
        ("theirs", "", "theirs"),
        ("  Theirs ", "", "theirs"),
        ("THEIRS", "?namespace=default", "theirs"),
        ("", "?namespace=theirs", "theirs"),
        ("", "?namespace=%20THEIRS%20", "theirs"),
        ("  ", "?namespace=theirs", "theirs"),
        ("", "?namespace=", "default"),
        ("", "", "default"),
        ("default", "?namespace[]=theirs", "default"),
    ],
)
def test_takes_the_header_then_the_query_then_the_default(api: ApiClient, header: str, query: str, found: str) -> None:
    response = api.post(f"/api/workflows{query}", {"workflow_type": "five"}, headers={"X-Namespace": header})

    assert (response.status, response.body.get("namespace")) == (201, found)


@pytest.mark.parametrize(
    "query", ["?namespace[]=default", "?namespace[a]=b", "?namespace=a&namespace=b", "?namespace%5B%5D=x"]
)
@pytest.mark.parametrize(("route", "method"), [("/api/workflows", "GET"), ("/api/worker/heartbeat", "POST")])
def test_refuses_a_query_that_names_no_single_namespace(api: ApiClient, route: str, method: str, query: str) -> None:
    response = api.request(method, route + query, {} if method == "POST" else None, headers={"X-Namespace": ""})

    assert (response.status, response.body["reason"]) == (400, "invalid_namespace")


def test_uses_the_configured_default(api: ApiClient, theirs: str, override_durable: Any) -> None:
    override_durable(DEFAULT_NAMESPACE=theirs)

    response = api.post("/api/workflows", {"workflow_type": "five"}, headers={"X-Namespace": ""})

    assert response.body["namespace"] == theirs


@pytest.mark.parametrize("name", ["nowhere", "NOWHERE", "no/where", "d e f", "a" * 300, "ü", "'; --", "*"])
@pytest.mark.parametrize("route", ["/api/workflows", "/api/worker/register"])
def test_finds_no_namespace_that_is_not_there(api: ApiClient, route: str, name: str) -> None:
    sent = name.encode().decode("latin1")

    response = api.post(route, {"workflow_type": "five"}, headers={"X-Namespace": sent})

    assert response.status == 404
    named = {
        "reason": "namespace_not_found",
        "message": "There is no such namespace.",
        "namespace": sent.lower(),
        "remediation": "Create the namespace, or name another one in the X-Namespace header.",
    }
    assert named.items() <= response.body.items()


@pytest.mark.parametrize("named", ["%00", "a%00b", "default%00", "a%0Ab", "%7F", "%F0%9F%98%80", "a" * 5000])
@pytest.mark.parametrize("route", ["/api/workflows", "/api/worker/register", "/api/cluster/info"])
def test_has_no_fault_with_a_namespace_that_cannot_be(api: ApiClient, route: str, named: str) -> None:
    method = "POST" if "worker" in route and "workflows" not in route else "GET"

    response = api.request(method, f"{route}?namespace={named}", headers={"X-Namespace": ""})

    assert response.status == (200 if "cluster" in route else 404)


# -- walls between namespaces ------------------------------------------------------------------------------------------


def elsewhere(name: str) -> dict[str, str]:
    return {"X-Namespace": name}


def test_keeps_workers_of_one_id_apart(api: ApiClient, theirs: str) -> None:
    for namespace in ("default", theirs):
        assert register(api, namespace=namespace).status == 201

    assert api.delete("/api/worker/registrations/w-1", headers=elsewhere(theirs)).status == 200

    assert WorkerRegistration.objects.get().namespace == "default"


def test_polls_only_in_its_own_namespace(api: ApiClient, theirs: str) -> None:
    make.register("w-1")
    make.start("order-1", namespace=theirs)

    assert poll(api, "workflow").body["task"] is None


@pytest.mark.parametrize("verb", ["complete", "fail", "heartbeat", "renew-lease", "status"])
def test_finds_no_activity_task_of_another_namespace(populated: ApiClient, verb: str) -> None:
    Namespace.objects.create(name="theirs")
    make.register("w-1")
    make.start("order-1")
    make.complete(make.lease_workflow(), make.schedule())
    lease = leased(poll(populated, "activity"))
    attempt_id = lease.body["activity_attempt_id"]
    body = {"activity_attempt_id": attempt_id, "lease_owner": "w-1", "failure": {"message": "x"}}

    with nothing_recorded():
        response = populated.post(path(lease, verb), body, headers=elsewhere("theirs"))

    assert (response.status, response.body["reason"]) == (404, "task_not_found")
    assert send(populated, lease, "status").status == 200


@pytest.mark.parametrize(
    ("method", "route"),
    [
        ("GET", ""), ("GET", "/runs"), ("GET", "/runs/{run}"), ("GET", "/runs/{run}/history"), ("POST", "/cancel"),
        ("POST", "/terminate"), ("POST", "/repair"), ("POST", "/runs/{run}/cancel"), ("POST", "/runs/{run}/terminate"),
    ],
)  # fmt: skip
def test_finds_no_workflow_of_another_namespace(api: ApiClient, theirs: str, method: str, route: str) -> None:
    run_id = make.start("order-1", namespace=theirs).run.id
    body = {} if method == "POST" else None

    response = api.request(method, f"/api/workflows/order-1{route.format(run=run_id)}", body)

    assert (response.status, response.body["reason"]) == (404, "instance_not_found")
    assert Run.objects.get().status == "pending"


def test_lists_only_its_own_namespace(api: ApiClient, theirs: str) -> None:
    make.start("order-1", namespace=theirs)
    make.start("order-2")

    assert [run["workflow_id"] for run in api.get("/api/workflows").body["workflows"]] == ["order-2"]


def test_reserves_a_workflow_id_for_its_namespace(api: ApiClient, theirs: str) -> None:
    make.start("order-1", namespace=theirs)

    response = api.post("/api/workflows", {"workflow_type": "five", "workflow_id": "order-1"})

    assert (response.status, response.body["reason"]) == (409, "workflow_id_reserved_in_namespace")
    assert Workflow.objects.get().namespace == theirs
