"""`/metrics` counts carried polls by what became of them (docs/protocol/carried-polls.md)."""

from __future__ import annotations

from typing import Any

import pytest

from durable.models import WorkerRegistration
from tests import factories as make
from tests.client import ApiClient
from tests.protocol.carrying import CAPABILITIES, EACH_CARRIAGE, carried, complete_carrying, holding, offer
from tests.protocol.reports import ABSENT
from tests.serving.test_metrics import Scrape

NAME = "durable_carried_polls_total"


def grown(api: ApiClient, before: Scrape) -> dict[tuple[str, ...], int]:
    """(capability, outcome, reason) of what was counted since."""
    old = before.series(NAME)
    found = {key: int(value - old.get(key, 0)) for key, value in Scrape(api).series(NAME).items()}
    return {key: value for key, value in found.items() if value}


# What is carried, and how it is counted; "wanted" has something to lease.
CASES: dict[str, tuple[dict[str, Any], bool, str, str]] = {
    "leased": ({}, True, "leased", ""),
    "leased inline": ({"deliver": "inline"}, True, "leased", ""),
    "empty": ({}, False, "empty", ""),
    "foreign": ({"worker_id": "w-2"}, True, "foreign", ""),
    "invalid": ({"timeout_seconds": 61}, True, "invalid", ""),
    "without an id": ({"poll_request_id": ABSENT}, True, "invalid", ""),
    "refused": ({"task_queue": "elsewhere"}, True, "refused", "task_queue_mismatch"),
}


@EACH_CARRIAGE
@pytest.mark.parametrize("case", CASES)
def test_counts_a_carried_poll_by_its_outcome(api: ApiClient, completed: str, kind: str, case: str) -> None:
    fields, is_wanted, outcome, reason = CASES[case]
    lease = holding(completed)
    if is_wanted:
        offer(kind)
    elif completed == "activity":
        make.register(supported_workflow_types=["another"])
    before = Scrape(api)

    complete_carrying(api, lease, **{f"{kind}_poll": carried(**fields)})

    assert grown(api, before) == {(CAPABILITIES[completed, kind], outcome, reason): 1}


def test_counts_a_workflow_poll_that_was_not_attempted(api: ApiClient) -> None:
    lease = holding("workflow")
    before = Scrape(api)

    complete_carrying(api, lease, make.schedule(), activity_poll=carried("a"), workflow_poll=carried("w"))

    assert grown(api, before) == {
        ("workflow_task_completion_activity_poll", "leased", ""): 1,
        ("workflow_task_completion_workflow_poll", "not_attempted", ""): 1,
    }


def test_counts_claims_and_not_polls(api: ApiClient) -> None:
    lease = holding("workflow")
    before = Scrape(api)

    complete_carrying(api, lease, make.schedule(), activity_poll=carried())

    after = Scrape(api)
    claims = [scrape.value("durable_claims_total", kind="activity") for scrape in (before, after)]
    assert claims[1] == claims[0] + 1
    for name in ("durable_polls_total", "durable_claim_transactions_total", "durable_refusals_total"):
        assert after.series(name) == before.series(name)


@EACH_CARRIAGE
def test_counts_nothing_of_a_completion_that_is_not_recorded(api: ApiClient, completed: str, kind: str) -> None:
    lease = holding(completed)
    make.expire_lease(lease.task_id)
    before = Scrape(api)

    assert complete_carrying(api, lease, **{f"{kind}_poll": carried()}).status == 409

    assert grown(api, before) == {}


def test_names_the_reason_of_each_refusal(api: ApiClient) -> None:
    lease = holding("workflow")
    WorkerRegistration.objects.filter(worker_id="w-1").update(is_draining=True)
    before = Scrape(api)

    complete_carrying(api, lease, activity_poll=carried())

    assert grown(api, before) == {("workflow_task_completion_activity_poll", "refused", "worker_draining"): 1}
