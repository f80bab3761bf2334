"""Request bodies: bounded while they are read, JSON or nothing (docs/protocol/worker-protocol.md 1.5 and 14)."""

from __future__ import annotations

from typing import Any

import pytest

from durable import conf
from durable.models import Run
from tests import factories as make
from tests.client import ApiClient, Response
from tests.snapshot import nothing_recorded

ROUTES = ["/api/workflows", "/api/worker/register", "/api/worker/workflow-tasks/01TASK/complete"]
START = b'{"workflow_type":"five"%s}'


def start(api: ApiClient, raw: bytes, **headers: str) -> Response:
    return api.post("/api/workflows", raw=raw, headers=headers)


# -- size --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_limit(override_durable: Any) -> int:
    override_durable(MAX_PAYLOAD_BYTES=300, BODY_SLACK_BYTES=100)
    return 400


def padded(size: int) -> bytes:
    body = START % b',"padding":"%s"' % b"x" * 1
    return body[:-2] + b"x" * (size - len(body)) + b'"}'


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("header", [{"Content-Length": "401"}, {}, {"Content-Length": "3"}])
def test_refuses_a_body_over_the_limit_whatever_its_header_says(
    api: ApiClient, small_limit: int, path: str, header: dict[str, str]
) -> None:
    response = api.post(path, raw=padded(small_limit + 1), headers=header)

    body = {"message": "The request body is larger than 400 bytes.", "limit": 400, "size": 401}
    assert response.status == 413
    assert {"reason": "payload_too_large", **body}.items() <= response.body.items()


@pytest.mark.parametrize("path", ROUTES)
def test_refuses_a_body_over_the_limit_in_chunks(api: ApiClient, small_limit: int, path: str) -> None:
    body = padded(small_limit + 1)

    response = api.post(path, chunks=[body[start : start + 50] for start in range(0, len(body), 50)])

    assert (response.status, response.body["reason"], response.body["size"]) == (413, "payload_too_large", 401)


@pytest.mark.parametrize("chunk", [1, 7, 400])
def test_takes_a_body_of_exactly_the_limit(api: ApiClient, small_limit: int, chunk: int) -> None:
    body = padded(small_limit)

    response = api.post("/api/workflows", chunks=[body[at : at + chunk] for at in range(0, len(body), chunk)])

    assert response.status == 201


def test_reads_no_more_than_the_limit_into_memory(api: ApiClient) -> None:
    limit = conf.current().max_body_bytes

    response = api.post("/api/workflows", chunks=[b"x" * 1_000_000] * 20)

    assert response.status == 413
    assert (response.body["limit"], response.body["size"]) == (limit, 20_000_000)


def test_says_too_large_before_it_asks_who_calls(api: ApiClient, small_limit: int) -> None:
    assert api.post("/api/workflows", raw=padded(small_limit + 1), token=None).status == 413


def test_lets_the_run_go_on_after_a_completion_that_was_too_large(api: ApiClient, small_limit: int) -> None:
    make.register()
    started = make.start()
    lease = make.lease_workflow()
    body = {"lease_owner": "w-1", "workflow_task_attempt": 1, "commands": [make.finish("x" * 400)]}

    refused = api.post(f"/api/worker/workflow-tasks/{lease.task_id}/complete", body)
    body["commands"] = [make.finish("short")]
    accepted = api.post(f"/api/worker/workflow-tasks/{lease.task_id}/complete", body)

    assert (refused.status, refused.body["reason"]) == (413, "payload_too_large")
    assert refused.body["size"] > refused.body["limit"] == 400
    assert accepted.status == 200
    assert Run.objects.get(id=started.run.id).status == "completed"


# -- JSON --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"7",
        b"true",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        b'{"a": [-1e999]}',
        b'{"a": 1} x',
        b'{"a": "\x00"}',
        b'{"a": "\n"}',
        b'{"a": "\\x41"}',
        b"\xef\xbb\xbf{}",
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',
        '{"a": 1}'.encode("utf-16"),
        b'{"a": "\\ud800"}',
        b'{"a": "\\uD800"}',
        b'{"a": "\\udc00\\ud800"}',
        b'{"\\ud800": 1}',
        b'{"a": [{"b": "\\uDfff"}]}',
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": ' + b"9" * 5_000 + b"}",
    ],
    ids=lambda raw: ascii(raw[:24]) if raw else "empty",
)
@pytest.mark.parametrize("path", ROUTES)
def test_refuses_what_is_no_json_object(api: ApiClient, path: str, raw: bytes) -> None:
    response = api.post(path, raw=raw)

    # An absent body is an empty object, and lacks what is required.
    expected = (400, "malformed_json") if raw else (422, "validation_failed")
    assert (response.status, response.body["reason"]) == expected


def test_names_no_content_of_what_it_could_not_read(api: ApiClient) -> None:
    response = start(api, b'{"a": "content-marker')

    assert response.body["json_error"] == "JSONDecodeError"
    assert b"content-marker" not in response.raw


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("\U0001f600", "\U0001f600"),
        ("é", "é"),
        ("\\ud83d\\ude00", "\U0001f600"),
        ("\\u0041", "A"),
        ("\uffff", "\uffff"),
    ],
)
def test_keeps_whole_characters(api: ApiClient, sent: str, kept: str) -> None:
    response = start(api, START % f',"business_key":"{sent}"'.encode())

    assert (response.status, response.body["business_key"]) == (201, kept)


def nested(levels: int) -> bytes:
    """A start whose whole body is nested this deeply."""
    return START % b',"memo":{"a":%s}' % (b"[" * (levels - 2) + b"]" * (levels - 2))


def test_takes_a_body_nested_as_deeply_as_allowed(api: ApiClient) -> None:
    assert start(api, nested(200)).status == 201


@pytest.mark.parametrize("levels", [201, 600, 930, 950, 970, 990, 1010, 5000])
def test_refuses_a_body_that_could_not_be_read_back(api: ApiClient, levels: int) -> None:
    response = start(api, nested(levels))

    assert (response.status, response.body["reason"]) == (400, "malformed_json")


# -- media type --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "media_type",
    ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/vnd.example.v1+json"],
)
def test_takes_json_by_any_of_its_names(api: ApiClient, media_type: str) -> None:
    assert start(api, START % b"", **{"Content-Type": media_type}).status == 201


@pytest.mark.parametrize(
    "media_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml", "",
     "json",
     "application/jsonx", "text/json"],
)  # fmt: skip
@pytest.mark.parametrize("path", ROUTES)
def test_refuses_a_body_that_is_not_called_json(api: ApiClient, path: str, media_type: str) -> None:
    with nothing_recorded():
        response = api.post(path, raw=START % b"", headers={"Content-Type": media_type})

    assert response.status == 415
    assert response.body["reason"] == "unsupported_media_type"
    assert response.body["accepted_content_types"] == ["application/json", "application/*+json"]


@pytest.mark.parametrize("media_type", ["application/json", "text/plain", ""])
def test_asks_for_no_media_type_where_there_is_no_body(api: ApiClient, media_type: str) -> None:
    assert api.get("/api/workflows", headers={"Content-Type": media_type}).status == 200


def test_takes_an_empty_body_on_delete(api: ApiClient) -> None:
    make.register("w-1")

    assert api.delete("/api/worker/registrations/w-1").status == 200


def test_takes_a_body_on_get(api: ApiClient) -> None:
    assert api.request("GET", "/api/workflows", {"ignored": True}).status == 200
