"""A claim's history in pages: tokens, sizes, a snapshot that stays (worker-protocol.md 7.2 and 14.3, history.md 15)."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from typing import Any

import pytest

from durable.history.pages import decode_token, encode_token
from durable.models import HistoryEvent, PollReceipt, Run
from tests import factories as make
from tests.client import ApiClient, Response
from tests.protocol.closings import leased_task, lose
from tests.protocol.reports import leased, poll, send
from tests.snapshot import nothing_recorded

START = "MA=="


def page(api: ApiClient, lease: make.Lease, token: str = START, **fields: Any) -> Response:
    return send(api, lease, "history", next_history_page_token=token, **fields)


def sequences(response: Response) -> list[int]:
    return [event["sequence"] for event in response.body["history_events"]]


def long_history(steps: int) -> make.Lease:
    """A claim of w-1 that shows two events, and three for every step."""
    lease = leased_task()
    make.complete(lease, *make.schedule_list(steps))
    for number in range(steps):
        make.complete_step(make.lease_activity(), number)
    return make.lease_workflow()


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_encodes_the_sequence_that_a_page_ended_with() -> None:
    assert [encode_token(number) for number in (0, 1, 500)] == ["MA==", "MQ==", "NTAw"]
    assert [decode_token(token) for token in ("MA==", "MQ==", "NTAw", None)] == [0, 1, 500, 0]


@pytest.mark.parametrize(
    "token",
    ["", "x", "MA", "M A==", "LTE=", "MS41", "eA==", "MA==MA==", "é", "/w==", "KzE=", "MTIzNDU2Nzg5MDEyMw==", "2",
     "W10=", "wrI="],
)  # fmt: skip
def test_refuses_a_token_that_is_none(api: ApiClient, token: str) -> None:
    lease = leased_task()

    with nothing_recorded():
        response = page(api, lease, token)

    if token:
        assert (response.status, response.body["reason"]) == (400, "invalid_page_token")
    else:
        assert (response.status, list(response.body["errors"])) == (422, ["next_history_page_token"])


def test_restarts_from_the_first_event(api: ApiClient) -> None:
    lease = leased_task()

    response = page(api, lease)

    assert response.status == 200
    assert response.plain == {
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
        "history_events": poll_again(api, lease),
        "total_history_events": 2,
        "next_history_page_token": None,
    }


def poll_again(api: ApiClient, lease: make.Lease) -> list[dict[str, Any]]:
    """The same events as the claim itself shows them."""
    poll_id = PollReceipt.objects.get(task_id=lease.task_id).poll_request_id
    events: list[dict[str, Any]] = leased(poll(api, "workflow", poll_request_id=poll_id)).body["history_events"]
    return events


def test_answers_an_empty_page_after_the_last_event(api: ApiClient) -> None:
    response = page(api, leased_task(), encode_token(2))

    assert (response.body["history_events"], response.body["next_history_page_token"]) == ([], None)


def test_answers_an_empty_page_beyond_the_last_event(api: ApiClient) -> None:
    response = page(api, leased_task(), encode_token(4_000_000_000))

    assert (response.body["history_events"], response.body["next_history_page_token"]) == ([], None)


def test_advances_with_every_page(api: ApiClient) -> None:
    lease = long_history(3)
    seen: list[int] = []
    tokens: list[str] = [START]

    while tokens[-1] is not None:
        response = page(api, lease, tokens[-1], history_page_size=4)
        seen += sequences(response)
        tokens.append(response.body["next_history_page_token"])
        assert response.body["total_history_events"] == 11

    assert seen == list(range(1, 12))
    assert tokens == [START, encode_token(4), encode_token(8), None]


def test_begins_with_the_claim_and_goes_on_from_its_token(api: ApiClient) -> None:
    make.register("w-1")
    make.start("order-1")
    first = poll(api, "workflow", history_page_size=1)
    lease = leased(first)

    second = page(api, lease, lease.body["next_history_page_token"])

    assert [event["sequence"] for event in lease.body["history_events"]] == [1]
    assert lease.body["total_history_events"] == lease.body["last_history_sequence"] == 2
    assert (sequences(second), second.body["next_history_page_token"]) == ([2], None)


def test_reads_without_a_trace(api: ApiClient) -> None:
    lease = leased_task()

    with nothing_recorded():
        first, again = page(api, lease), page(api, lease)

    assert first.raw == again.raw


# -- the snapshot ------------------------------------------------------------------------------------------------------


def test_shows_nothing_that_was_appended_after_the_claim(api: ApiClient) -> None:
    make.complete(leased_task(), make.schedule(), make.schedule())
    first, second = make.lease_activity(), make.lease_activity()
    make.complete_step(first)
    lease = make.lease_workflow()
    before = page(api, lease)

    make.complete_step(second)
    after = page(api, lease)

    assert Run.objects.get().last_history_sequence == 8
    assert before.raw == after.raw
    assert (sequences(after), after.body["total_history_events"]) == ([1, 2, 3, 4, 5, 6], 6)
    assert page(api, lease, encode_token(6)).body["history_events"] == []


def test_takes_a_new_snapshot_with_the_next_claim(api: ApiClient) -> None:
    make.complete(leased_task(), make.schedule(), make.schedule())
    first, second = make.lease_activity(), make.lease_activity()
    make.complete_step(first)
    lease = make.lease_workflow()
    make.complete_step(second)
    make.report_waiting(lease)

    assert page(api, make.lease_workflow()).body["total_history_events"] == 8


# -- the size of a page ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "given"), [(1, 1), ("2", 2), (1000, 8), (None, 3)])
def test_gives_as_many_events_as_asked_for(api: ApiClient, override_durable: Any, asked: Any, given: int) -> None:
    lease = long_history(2)
    override_durable(HISTORY_PAGE_SIZE=3)

    assert len(sequences(page(api, lease, history_page_size=asked))) == given


def test_gives_no_more_than_the_server_maximum(api: ApiClient, override_durable: Any) -> None:
    lease = long_history(2)
    override_durable(HISTORY_PAGE_SIZE=2, HISTORY_PAGE_SIZE_MAX=5)

    assert len(sequences(page(api, lease, history_page_size=1000))) == 5
    assert len(sequences(page(api, lease))) == 2


@pytest.mark.parametrize("size", [0, -1, 1001, 1.5, "x", True, []])
def test_refuses_a_page_size_that_is_none(api: ApiClient, size: Any) -> None:
    lease = leased_task()

    with nothing_recorded():
        response = page(api, lease, history_page_size=size)

    assert (response.status, list(response.body["errors"])) == (422, ["history_page_size"])


@pytest.mark.parametrize(
    ("limit", "pages"),
    [
        # Bytes of the payloads, by sequence: 1: 100, 2: 100, 3: 300, 4: 50, 5: 60.
        (10_000, [[1, 2, 3, 4, 5]]),
        (610, [[1, 2, 3, 4, 5]]),
        (609, [[1, 2, 3, 4], [5]]),
        (500, [[1, 2, 3], [4, 5]]),
        (499, [[1, 2], [3, 4, 5]]),
        (200, [[1, 2], [3], [4, 5]]),
        (99, [[1], [2], [3], [4], [5]]),
        (1, [[1], [2], [3], [4], [5]]),
    ],
)
def test_ends_a_page_at_its_bytes_with_one_event_at_least(
    api: ApiClient, override_durable: Any, limit: int, pages: list[list[int]]
) -> None:
    lease = sized_history((100, 100, 300, 50, 60))
    override_durable(HISTORY_PAGE_BYTES=limit)

    token: str | None = START
    found = []
    while token is not None:
        response = page(api, lease, token)
        found.append(sequences(response))
        token = response.body["next_history_page_token"]

    assert found == pages


def sized_history(sizes: tuple[int, ...]) -> make.Lease:
    """A claim whose events have payloads of these many bytes."""
    make.complete(leased_task(), make.schedule())
    make.complete_step(make.lease_activity())
    lease = make.lease_workflow()
    for sequence, size in enumerate(sizes, 1):
        payload = {"a": "x" * (size - len('{"a":""}'))}
        HistoryEvent.objects.filter(sequence=sequence).update(payload=payload, payload_bytes=size)
    Run.objects.update(history_bytes=sum(sizes))
    return lease


def test_ends_the_first_page_of_a_claim_at_its_bytes_too(api: ApiClient, override_durable: Any) -> None:
    make.register("w-1")
    make.start("order-1")
    sizes = dict(HistoryEvent.objects.values_list("sequence", "payload_bytes"))
    override_durable(HISTORY_PAGE_BYTES=sizes[1])

    lease = leased(poll(api, "workflow"))

    assert [event["sequence"] for event in lease.body["history_events"]] == [1]
    assert lease.body["next_history_page_token"] == encode_token(1)


def test_ends_a_page_at_four_mebibytes(api: ApiClient) -> None:
    lease = leased_task()
    make.complete(lease, *[make.schedule(arguments={"codec": "avro", "blob": "x" * 1_500_000}) for _ in range(4)])
    make.complete_step(make.lease_activity())
    lease = make.lease_workflow()

    first = page(api, lease)
    second = page(api, lease, first.body["next_history_page_token"])

    assert (sequences(first), sequences(second)) == ([1, 2, 3, 4], [5, 6, 7, 8])
    assert len(first.raw) < 4 * 1024 * 1024 + 10_000


def test_stores_the_size_of_every_payload(api: ApiClient) -> None:
    long_history(2)

    for event in HistoryEvent.objects.all():
        assert event.payload_bytes == len(json.dumps(event.payload, separators=(",", ":"), ensure_ascii=False).encode())
    assert Run.objects.get().history_bytes == sum(HistoryEvent.objects.values_list("payload_bytes", flat=True))


# -- compression -------------------------------------------------------------------------------------------------------

UNPACK = {"gzip": gzip.decompress, "deflate": zlib.decompress}


@pytest.fixture
def fifty(api: ApiClient) -> make.Lease:
    """A claim of exactly fifty events."""
    return long_history(16)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", " GZIP "])
def test_compresses_a_long_page_for_who_asks(api: ApiClient, fifty: make.Lease, encoding: str) -> None:
    plain = page(api, fifty).body["history_events"]

    body = page(api, fifty, accept_history_encoding=encoding).body

    assert len(plain) == 50
    assert "history_events" not in body
    assert body["history_events_encoding"] == encoding.strip().lower()
    packed = base64.b64decode(body["history_events_compressed"])
    assert json.loads(UNPACK[encoding.strip().lower()](packed)) == plain
    assert (body["total_history_events"], body["next_history_page_token"]) == (50, None)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compresses_the_first_page_of_a_claim_for_who_asks(api: ApiClient, fifty: make.Lease, encoding: str) -> None:
    lose(fifty)

    task = leased(poll(api, "workflow", accept_history_encoding=encoding)).body

    assert "history_events" not in task
    assert len(json.loads(UNPACK[encoding](base64.b64decode(task["history_events_compressed"])))) == 50


@pytest.mark.parametrize("encoding", [None, "", "br", "identity", "gzip, deflate"])
def test_compresses_nothing_for_who_asks_for_something_else(
    api: ApiClient, fifty: make.Lease, encoding: str | None
) -> None:
    body = page(api, fifty, accept_history_encoding=encoding).body

    assert len(body["history_events"]) == 50
    assert not {"history_events_compressed", "history_events_encoding"} & body.keys()


def test_compresses_no_short_page(api: ApiClient, fifty: make.Lease) -> None:
    body = page(api, fifty, accept_history_encoding="gzip", history_page_size=49).body

    assert len(body["history_events"]) == 49


def test_compresses_nothing_for_http_alone(api: ApiClient, fifty: make.Lease) -> None:
    body = {"lease_owner": "w-1", "workflow_task_attempt": 1, "next_history_page_token": START}

    response = api.post(
        f"/api/worker/workflow-tasks/{fifty.task_id}/history", body, headers={"Accept-Encoding": "gzip, deflate"}
    )

    assert "content-encoding" not in response.headers
    assert len(response.body["history_events"]) == 50
