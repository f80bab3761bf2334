"""Pages: those of a claim never change, none is larger than its limits, and lists go by key without payloads."""

from __future__ import annotations

import base64
import re
from itertools import pairwise
from typing import Any

import pytest

from durable import queries
from durable.models import HistoryEvent
from tests import factories as make
from tests.budgets.routes import lease_over_api, local_activity
from tests.budgets.statements import Statements
from tests.client import ApiClient
from tests.protocol.reports import send

MIB = 1024 * 1024
Event = dict[str, Any]


def pages_of(api: ApiClient, lease: make.Lease, size: int | None = None) -> list[list[Event]]:
    """The pages of a claim after the one that came with its task."""
    pages, token = [], lease.body["next_history_page_token"]
    while token is not None:
        sized = {} if size is None else {"history_page_size": size}
        answer = send(api, lease, "history", next_history_page_token=token, **sized)
        assert answer.status == 200, answer.body
        pages.append(answer.body["history_events"])
        token = answer.body["next_history_page_token"]
    return pages


def numbers(pages: list[list[Event]]) -> list[int]:
    """The sequences on pages, one after the other."""
    return [event["sequence"] for page in pages for event in page]


# -- a claim's pages are fixed -----------------------------------------------------------------------------------------


def test_shows_a_claim_the_same_pages_while_events_are_appended(api: ApiClient) -> None:
    started = make.start()
    make.complete(make.lease_workflow(), *(make.schedule() for _ in range(6)))
    make.complete_step(make.lease_activity())
    lease = lease_over_api(api, "workflow", history_page_size=3)
    before, shown = pages_of(api, lease, 3), lease.body["total_history_events"]

    make.complete_step(make.lease_activity())
    make.fail_step(make.lease_activity())
    after = pages_of(api, lease, 3)
    again = lease_over_api(api, "workflow", history_page_size=3)

    assert HistoryEvent.objects.filter(run_id=started.run.id).count() == shown + 4
    assert after == before
    assert (again.history, again.body["total_history_events"]) == (lease.history, shown)
    assert numbers([lease.history, *before]) == list(range(1, shown + 1))


def test_shows_the_next_claim_what_was_appended_meanwhile(api: ApiClient) -> None:
    make.start()
    make.complete(make.lease_workflow(), make.schedule(), make.schedule())
    make.complete_step(make.lease_activity())
    first = lease_over_api(api, "workflow", "p-1")
    make.complete_step(make.lease_activity())
    make.report_waiting(first)

    second = lease_over_api(api, "workflow", "p-2")

    assert numbers([second.history])[: len(first.history)] == numbers([first.history])
    assert len(second.history) == len(first.history) + 2


def test_answers_the_same_token_with_the_same_page(api: ApiClient) -> None:
    make.start()
    make.complete(make.lease_workflow(), *(make.schedule() for _ in range(3)))
    make.complete_step(make.lease_activity())
    lease = lease_over_api(api, "workflow", history_page_size=2)
    asked = {"next_history_page_token": lease.body["next_history_page_token"], "history_page_size": 2}

    first, second = (send(api, lease, "history", **asked) for _ in range(2))

    assert first.body == second.body
    assert numbers([first.body["history_events"]]) == [3, 4]


# -- limits of a page --------------------------------------------------------------------------------------------------


def lease_of_sizes(api: ApiClient, *sizes: int) -> make.Lease:
    """A claim whose history holds one result of each size, in bytes, among small events."""
    make.start()
    make.complete(make.lease_workflow(), *(make.schedule() for _ in sizes))
    for size in sizes:
        make.complete_step(make.lease_activity(), "x" * size)
    return lease_over_api(api, "workflow")


def stored_bytes(events: list[Event]) -> int:
    """What the limit counts: the payloads as they are stored."""
    return sum(
        HistoryEvent.objects.filter(id__in=[event["id"] for event in events]).values_list("payload_bytes", flat=True)
    )


@pytest.mark.parametrize("limit", [1, 700, 1500, 5000])
def test_ends_a_page_at_its_bytes_with_at_least_one_event(api: ApiClient, override_durable: Any, limit: int) -> None:
    override_durable(HISTORY_PAGE_BYTES=limit)
    lease = lease_of_sizes(api, 10, 3000, 20, 30, 4000, 40)

    pages = [lease.history, *pages_of(api, lease)]

    assert numbers(pages) == list(range(1, lease.body["total_history_events"] + 1))
    assert all(len(page) == 1 or stored_bytes(page) <= limit for page in pages)
    # Each page is as full as it may be: the next one's first event would not have fitted.
    assert all(stored_bytes([*page, following[0]]) > limit for page, following in pairwise(pages))


def test_ends_a_page_at_four_mebibytes(api: ApiClient) -> None:
    # A result of a million signs has 1.3 MiB once it is encoded: four of them are more than a page holds.
    lease = lease_of_sizes(api, *[1_000_000] * 5)

    answers = [lease.history, *pages_of(api, lease)]

    assert numbers(answers) == list(range(1, lease.body["total_history_events"] + 1))
    assert len(answers) == 2
    assert all(3 * MIB < stored_bytes(page) <= 4 * MIB for page in answers[:-1])


@pytest.mark.parametrize("asked", [1, 7, None, 1000])
def test_ends_a_page_at_its_number_of_events(api: ApiClient, override_durable: Any, asked: int | None) -> None:
    override_durable(HISTORY_PAGE_SIZE=5, HISTORY_PAGE_SIZE_MAX=10)
    expected = min(asked or 5, 10)
    make.start()
    make.complete(make.lease_workflow(), *(make.schedule() for _ in range(20)))
    make.complete_step(make.lease_activity())
    sized = {} if asked is None else {"history_page_size": asked}
    lease = lease_over_api(api, "workflow", **sized)

    pages = [lease.history, *pages_of(api, lease, asked)]

    assert numbers(pages) == list(range(1, 25))
    assert [len(page) for page in pages[:-1]] == [expected] * (len(pages) - 1)
    assert 1 <= len(pages[-1]) <= expected


@pytest.mark.parametrize("limit", [1000, 4 * MIB])
def test_reads_each_page_with_the_same_two_statements(
    api: ApiClient, statements: Statements, override_durable: Any, limit: int
) -> None:
    override_durable(HISTORY_PAGE_BYTES=limit)
    make.start()
    make.complete(make.lease_workflow(), *(local_activity() for _ in range(40)), make.schedule())
    make.complete_step(make.lease_activity())
    lease = lease_over_api(api, "workflow", history_page_size=2)

    costs = []
    for sequence in (2, 60, 110):
        token = base64.b64encode(str(sequence).encode()).decode()
        with statements.during() as cost:
            send(api, lease, "history", next_history_page_token=token, history_page_size=2)
        costs.append(len(cost.statements))

    assert costs == [2, 2, 2]


# -- lists -------------------------------------------------------------------------------------------------------------

PAYLOAD_COLUMNS = {"payload", "progress", "claim_snapshot", "last_error", "command_contract", "open_groups", "labels"}


def list_all(api: ApiClient, query: str = "") -> list[str]:
    """Workflow ids of every page of the list, in order."""
    found: list[str] = []
    token: str | None = ""
    while token is not None:
        answer = api.get(f"/api/workflows?page_size=3{query}{f'&next_page_token={token}' if token else ''}")
        assert answer.status == 200, answer.body
        found += [run["workflow_id"] for run in answer.body["workflows"]]
        token = answer.body["next_page_token"]
    return found


def close_some() -> None:
    """Seven runs: wf-1 completed, wf-2 failed, wf-3 waiting for a step, the others not begun."""
    for number in range(1, 8):
        make.start(f"wf-{number}")
    make.complete(make.lease_workflow(), make.finish())
    make.complete(make.lease_workflow(), {"type": "fail_workflow", "message": "boom"})
    make.complete(make.lease_workflow(), make.schedule())


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", [7, 6, 5, 4, 3, 2, 1]),
        ("&status=running", [7, 6, 5, 4, 3]),
        ("&status=completed", [1]),
        ("&status=failed", [2]),
        ("&workflow_type=five", [7, 6, 5, 4, 3, 2, 1]),
        ("&workflow_type=six", []),
        ("&workflow_type=five&status=running", [7, 6, 5, 4, 3]),
        ("&query=wf-", [7, 6, 5, 4, 3, 2, 1]),
        ("&query=wf-&status=running", [7, 6, 5, 4, 3]),
        ("&query=wf-4", [4]),
        ("&query=WF-4", []),
        ("&query=f-4", []),
    ],
)
def test_lists_every_run_once_and_the_newest_first(api: ApiClient, query: str, expected: list[int]) -> None:
    close_some()

    assert list_all(api, query) == [f"wf-{number}" for number in expected]


def test_lists_as_exactly_when_a_search_finds_very_many(api: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    close_some()
    monkeypatch.setattr(queries, "_MOST_SEARCHED", 2)

    found = [list_all(api, query) for query in ("&query=wf-", "&query=wf-&status=running", "&query=WF-", "&query=wf-4")]

    every = [f"wf-{number}" for number in (7, 6, 5, 4, 3, 2, 1)]
    assert found == [every, every[:5], [], ["wf-4"]]


def test_goes_on_where_a_page_ended_whatever_was_started_since(api: ApiClient) -> None:
    for number in range(1, 5):
        make.start(f"wf-{number}")
    first = api.get("/api/workflows?page_size=2").body
    make.start("wf-5")

    second = api.get(f"/api/workflows?page_size=2&next_page_token={first['next_page_token']}").body

    assert [run["workflow_id"] for run in second["workflows"]] == ["wf-2", "wf-1"]


@pytest.mark.parametrize("query", ["", "&status=running", "&workflow_type=five", "&query=wf-"])
def test_lists_without_payloads_offsets_or_counts(api: ApiClient, statements: Statements, query: str) -> None:
    close_some()

    with statements.during() as cost:
        list_all(api, query)
        api.get("/api/workflows/wf-1/runs")

    words = {word for statement in cost.statements for word in re.findall(r"\w+", statement.sql)}
    assert words & PAYLOAD_COLUMNS == set()
    assert words & {"OFFSET", "COUNT", HistoryEvent._meta.db_table} == set()
    assert "LIMIT" in words
