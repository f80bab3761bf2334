"""Logs: structured lines that lead to the run, and nothing of what workflows carry or callers prove themselves with."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from django.conf import settings
from django.db import DataError, IntegrityError, OperationalError

from durable.ids import new_id
from durable.logs import configure_logging
from durable.upkeep.items import handle_each
from tests import factories as make
from tests.client import TOKEN, ApiClient
from tests.protocol.reports import leased, poll, send
from tests.server import ServerProcess
from wire.tokens import create_token

SECRET = "payload-that-nobody-may-read"
IDS = {"request_id", "namespace", "workflow_id", "run_id", "task_id", "worker_id"}

Post = Callable[[str, dict[str, Any]], dict[str, Any]]


def secret_texts() -> list[str]:
    """The marker, and its beginning as it is sent and stored: a payload is base64 of Avro."""
    blob = str(make.envelope(SECRET)["blob"])
    return [SECRET, blob[20:40]]


def live_with_secrets(post: Post) -> dict[str, str]:
    """A workflow whose every free text holds the marker, through all routes a worker and a client use; its ids."""
    secret = make.envelope([SECRET])
    worker = {"worker_id": "w-1", "task_queue": make.QUEUE}
    post(
        "/api/worker/register",
        {**worker, "runtime": "python", "capability_manifest": {}, "process_metrics": {"note": SECRET}},
    )
    start = {
        "workflow_type": "five", "workflow_id": "wf-1", "task_queue": make.QUEUE, "input": secret,
        "memo": {"note": SECRET}, "search_attributes": {"Note": SECRET}, "business_key": SECRET,
    }  # fmt: skip
    run_id = post("/api/workflows", start)["run_id"]
    task = post("/api/worker/workflow-tasks/poll", worker)["task"]
    fence = {"lease_owner": "w-1", "workflow_task_attempt": 1}
    path = f"/api/worker/workflow-tasks/{task['task_id']}"
    post(f"{path}/heartbeat", fence)
    post(f"{path}/history", {**fence, "next_history_page_token": "MA=="})
    post(f"{path}/complete", {**fence, "commands": [{"type": "no-such", "arguments": secret, "note": SECRET}]})
    post(f"{path}/complete", {**fence, "commands": [make.schedule(arguments=secret), make.schedule()]})
    post(f"{path}/complete", {**fence, "commands": [make.finish(SECRET)]})
    for report in ("complete", "fail"):
        step = post("/api/worker/activity-tasks/poll", worker)["task"]
        held = {"lease_owner": "w-1", "activity_attempt_id": step["activity_attempt_id"]}
        path = f"/api/worker/activity-tasks/{step['task_id']}"
        post(f"{path}/heartbeat", {**held, "message": SECRET, "details": {"note": SECRET}})
        failure = {"message": SECRET, "type": SECRET, "stack_trace": SECRET, "details": {"note": SECRET}}
        post(f"{path}/{report}", {**held, "result": secret, "failure": failure})
        post(f"{path}/{report}", {**held, "result": make.envelope("another"), "failure": {"message": SECRET * 2}})
    task = post("/api/worker/workflow-tasks/poll", worker)["task"]
    path = f"/api/worker/workflow-tasks/{task['task_id']}"
    post(f"{path}/fail", {**fence, "failure": {"message": SECRET, "stack_trace": SECRET}})
    post("/api/workflows/wf-1/terminate", {"reason": SECRET})
    return {"run_id": run_id, "task_id": task["task_id"], "workflow_id": "wf-1"}


# -- a server at its most talkative ------------------------------------------------------------------------------------


@pytest.mark.parametrize("debug", ["0", "1"])
def test_server_says_nothing_of_payloads_and_tokens_even_at_debug_level(database: None, debug: str) -> None:
    server = ServerProcess(LOG_LEVEL="DEBUG", DEBUG=debug)
    server.start()
    try:
        live_with_secrets(lambda path, body: server.call("POST", path, body)[1])
    finally:
        server.stop()

    written = server.log.read_text()
    assert written.count("request") > 10
    assert [text for text in [*secret_texts(), server.token] if text in written] == []


def test_server_writes_one_json_object_a_line(database: None) -> None:
    server = ServerProcess(LOG_LEVEL="DEBUG", DEBUG="0")
    server.start()
    try:
        ids = live_with_secrets(lambda path, body: server.call("POST", path, body)[1])
    finally:
        server.stop()

    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert [line for line in lines if not {"event", "level", "logger", "timestamp"} <= line.keys()] == []
    requests = [line for line in lines if line["event"] == "request" and line["route"] != "ready"]
    assert all({"request_id", "namespace", "route", "method", "status", "ms"} <= line.keys() for line in requests)
    found = {name: {line[name] for line in requests if name in line} for name in IDS}
    assert found["worker_id"] == {"w-1"}
    assert found["namespace"] == {"default"}
    assert found["run_id"] == {ids["run_id"]}
    assert ids["task_id"] in found["task_id"]
    assert found["workflow_id"] == {ids["workflow_id"]}
    assert len(found["request_id"]) == len(requests)


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def lines(database: None) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """What this process writes to its log from now on, at debug level, as the configured handler would."""
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    configure_logging(level="DEBUG", as_json=True)
    # Whatever an earlier test of this process did to the loggers themselves.
    logging.disable(logging.NOTSET)
    for name in ("durable", "durable.api", "durable.upkeep"):
        logger = logging.getLogger(name)
        logger.disabled, logger.propagate = False, True
        logger.setLevel(logging.NOTSET)
    stream = io.StringIO()
    (handler,) = root.handlers
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    configure_logging(level="INFO", as_json=False)
    root.handlers[:], root.level = before


FAULTS = [
    ValueError(f"cannot handle {SECRET}"),
    IntegrityError(f"DETAIL: Failing row contains (1, {SECRET})"),
    DataError(f"Data too long for column 'payload': {SECRET}"),
    OperationalError(f"server closed the connection while sending {SECRET}"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_says_where_a_fault_came_from_and_nothing_of_what_it_says(
    lines: Callable[[], list[dict[str, Any]]], api: ApiClient, fault: Exception
) -> None:
    make.register()
    make.start()
    lease = leased(poll(api, "workflow"))

    with mock.patch("worker_api.views.workflow_tasks.complete_workflow_task", side_effect=fault):
        answer = send(api, lease, "complete", commands=[make.finish(SECRET)])

    assert answer.status in (500, 503)
    assert SECRET not in answer.raw.decode()
    written = lines()
    assert SECRET not in json.dumps(written)
    told = [line for line in written if line.get("task_id") == lease.task_id and line["event"] in ("fault", "request")]
    assert told, written
    if answer.status == 500:
        (line,) = [line for line in told if line["event"] == "fault"]
        assert line["error"] == type(fault).__name__
        assert "in dispatch" in line["traceback"]


def test_upkeep_says_nothing_of_what_a_fault_says(lines: Callable[[], list[dict[str, Any]]]) -> None:
    def fail(item: str) -> bool:
        raise ValueError(SECRET)

    handle_each("recover_leases", [f"task-{new_id()}"], fail, batch_size=10)

    written = lines()
    assert [line["error"] for line in written if line["event"] == "upkeep_item_failed"] == ["ValueError"]
    assert SECRET not in json.dumps(written)


# -- credentials -------------------------------------------------------------------------------------------------------


def test_says_nothing_of_tokens_good_or_bad(lines: Callable[[], list[dict[str, Any]]], api: ApiClient) -> None:
    _, good = create_token("worker", roles=["worker"], namespaces=["default"])
    forms = {good: f"Bearer {good}", "bad-token-text": "Bearer bad-token-text", "YWJjOmRlZg": "Basic YWJjOmRlZg=="}

    statuses = [api.get("/api/cluster/info", headers={"authorization": header}).status for header in forms.values()]
    api.get(f"/api/cluster/info?token={good}")

    assert statuses == [200, 401, 401]
    written = json.dumps(lines())
    assert [secret for secret in [*forms, TOKEN, settings.SECRET_KEY] if secret in written] == []


def test_keeps_the_request_id_that_a_caller_sent(lines: Callable[[], list[dict[str, Any]]], api: ApiClient) -> None:
    api.get("/api/workflows", headers={"x-request-id": "from-the-proxy-1"})

    (line,) = [line for line in lines() if line["event"] == "request"]
    assert line["request_id"] == "from-the-proxy-1"
