"""`/metrics`: what this process did, and how the whole engine stands, under labels whose number is bounded."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from django.db import OperationalError
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from durable.ids import new_id
from durable.models import Namespace, Task, UpkeepPass
from durable.sql import gauges
from tests import factories as make
from tests.client import ApiClient
from tests.parking import park_polls
from tests.protocol.reports import leased, poll, send

Labels = frozenset[tuple[str, str]]


class Scrape:
    """The samples of one scrape."""

    def __init__(self, api: ApiClient) -> None:
        answer = api.get("/metrics")
        assert answer.status == 200
        self.samples: dict[tuple[str, Labels], float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(answer.raw.decode())
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """One sample; 0 for a counter that never counted."""
        return self.samples.get((name, frozenset(labels.items())), 0.0)

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        """All samples of a name, by their label values in the order of the labels' names."""
        return {
            tuple(value for _, value in sorted(labels)): number
            for (found, labels), number in self.samples.items()
            if found == name
        }


@pytest.fixture(autouse=True)
def _worker(database: None) -> None:
    make.register()


# -- this process ------------------------------------------------------------------------------------------------------

# What grows by how much: metric, labels, times.
COUNTED: list[tuple[str, dict[str, str], float]] = [
    ("durable_polls_total", {"kind": "workflow", "outcome": "leased"}, 2),
    ("durable_polls_total", {"kind": "workflow", "outcome": "replayed"}, 1),
    ("durable_polls_total", {"kind": "workflow", "outcome": "empty"}, 1),
    ("durable_polls_total", {"kind": "activity", "outcome": "leased"}, 1),
    ("durable_polls_total", {"kind": "activity", "outcome": "refused"}, 1),
    ("durable_claims_total", {"kind": "workflow"}, 2),
    ("durable_claims_total", {"kind": "activity"}, 1),
    ("durable_completions_total", {"kind": "workflow", "outcome": "completed"}, 2),
    ("durable_completions_total", {"kind": "workflow", "outcome": "duplicate"}, 1),
    ("durable_completions_total", {"kind": "activity", "outcome": "completed"}, 1),
    ("durable_refusals_total", {"reason": "worker_not_registered"}, 1),
    ("durable_refusals_total", {"reason": "conflicting_completion"}, 1),
]


def live_a_little(api: ApiClient) -> None:
    """One workflow with one step, a repeat of everything, and two refusals."""
    make.start()
    first = leased(poll(api, "workflow", poll_request_id="p-1"))
    poll(api, "workflow", poll_request_id="p-1")
    poll(api, "workflow", poll_request_id="p-2")
    command = make.schedule()
    send(api, first, "complete", commands=[command])
    send(api, first, "complete", commands=[command])
    send(api, first, "complete", commands=[make.finish()])
    send(api, leased(poll(api, "activity")), "complete", result=make.envelope(1))
    poll(api, "activity", worker_id="nobody")
    send(api, leased(poll(api, "workflow")), "complete", commands=[make.finish()])


def test_counts_polls_claims_completions_and_refusals_by_reason(api: ApiClient) -> None:
    before = Scrape(api)

    live_a_little(api)

    after = Scrape(api)
    grown = [
        (name, labels, int(after.value(name, **labels) - before.value(name, **labels))) for name, labels, _ in COUNTED
    ]
    assert grown == COUNTED


def test_shows_how_many_polls_are_parked(api: ApiClient) -> None:
    waiting = park_polls(api, 3)

    shown = Scrape(api).value("durable_parked_polls")

    for one in waiting:
        one.cancel()
    assert shown == 3


def test_measures_how_long_requests_wait_for_a_thread(api: ApiClient) -> None:
    before = Scrape(api).value("durable_pool_wait_seconds_count")

    poll(api, "workflow")

    assert Scrape(api).value("durable_pool_wait_seconds_count") > before


# -- the engine --------------------------------------------------------------------------------------------------------


def age_tasks(seconds: float, **which: Any) -> None:
    """Let ready tasks have become available that long ago."""
    Task.objects.filter(status="ready", **which).update(available_at=timezone.now() - timedelta(seconds=seconds))


def test_shows_how_long_the_oldest_ready_task_of_each_queue_waits(api: ApiClient) -> None:
    make.start(task_queue="slow", priority=9)
    make.start(task_queue="slow", priority=0)
    age_tasks(300, task_queue="slow", priority=9)
    age_tasks(20, task_queue="slow", priority=0)
    make.start()
    make.complete(make.lease_workflow(), make.schedule())
    age_tasks(60, kind="activity")

    ages = Scrape(api).series("durable_queue_oldest_ready_seconds")

    assert set(ages) == {(kind, "default", queue) for kind in ("activity", "workflow") for queue in ("orders", "slow")}
    assert 300 <= ages["workflow", "default", "slow"] < 330
    assert 60 <= ages["activity", "default", "orders"] < 90
    assert ages["workflow", "default", "orders"] == ages["activity", "default", "slow"] == 0


def test_counts_no_task_as_waiting_that_is_leased_or_for_later(api: ApiClient) -> None:
    make.start("held")
    make.lease_workflow()
    make.start("later")
    later = timezone.now() + timedelta(hours=1)
    Task.objects.filter(workflow_id="later").update(due=False, due_at=later)
    age_tasks(300)

    ages = Scrape(api).series("durable_queue_oldest_ready_seconds")

    assert ages["workflow", "default", "orders"] == 0


def test_shows_leases_that_ran_out_and_were_not_taken_back(api: ApiClient) -> None:
    for number in range(3):
        make.start(f"wf-{number}")
        make.lease_workflow()
    now = timezone.now()
    for number, seconds in enumerate((100, 5, -100)):
        Task.objects.filter(workflow_id=f"wf-{number}").update(lease_expires_at=now - timedelta(seconds=seconds))

    scrape = Scrape(api)

    assert scrape.value("durable_expired_leases") == 2
    assert 100 <= scrape.value("durable_oldest_expired_lease_seconds") < 130


def test_shows_no_lease_that_ran_out_when_there_is_none(api: ApiClient) -> None:
    scrape = Scrape(api)

    assert scrape.samples["durable_expired_leases", frozenset()] == 0
    assert scrape.samples["durable_oldest_expired_lease_seconds", frozenset()] == 0


def test_shows_since_when_a_duty_has_not_succeeded(api: ApiClient) -> None:
    now = timezone.now()
    succeeded = {"recover_leases": now, "make_tasks_due": now - timedelta(seconds=90), "time_out_runs": None}
    for duty, moment in succeeded.items():
        UpkeepPass.objects.create(duty=duty, last_run_at=now, last_success_at=moment)

    lags = Scrape(api).series("durable_upkeep_lag_seconds")

    # What never succeeded has no moment to count from.
    assert set(lags) == {("recover_leases",), ("make_tasks_due",)}
    assert 0 <= lags["recover_leases",] < 30
    assert 90 <= lags["make_tasks_due",] < 120


def test_shows_what_the_process_counted_while_the_database_is_away(api: ApiClient) -> None:
    poll(api, "workflow")

    with mock.patch("control_api.views.discovery.read_gauges", side_effect=OperationalError("server closed")):
        away = Scrape(api)
    back = Scrape(api)

    assert (away.samples["durable_database_up", frozenset()], back.value("durable_database_up")) == (0, 1)
    assert away.value("durable_polls_total", kind="workflow", outcome="empty") > 0
    assert away.series("durable_queue_oldest_ready_seconds") == {}
    assert ("durable_expired_leases", frozenset()) not in away.samples


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_shows_no_more_queues_than_it_may(api: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    Namespace.objects.create(name="another")
    for queue in ("c", "a", "b"):
        make.start(task_queue=queue)
    make.start(namespace="another", task_queue="z")
    monkeypatch.setattr(gauges, "MOST_QUEUES", 3)

    scrape = Scrape(api)

    shown = {(namespace, queue) for _, namespace, queue in scrape.series("durable_queue_oldest_ready_seconds")}
    assert shown == {("another", "z"), ("default", "a"), ("default", "b")}
    assert scrape.value("durable_queues_left_out") == 1


def test_says_that_no_queue_is_left_out_when_all_are_shown(api: ApiClient) -> None:
    make.start()

    assert Scrape(api).samples["durable_queues_left_out", frozenset()] == 0


def test_counts_no_further_than_it_may(api: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        make.start()
        make.expire_lease(make.lease_workflow().task_id)
    monkeypatch.setattr(gauges, "MOST_COUNTED", 3)

    assert Scrape(api).value("durable_expired_leases") == 3


LABELS = {
    "route", "method", "status", "kind", "outcome", "reason", "source", "duty", "namespace", "task_queue", "le",
    "capability",
    # The library's own, about Python.
    "generation", "implementation", "major", "minor", "patchlevel", "version",
}  # fmt: skip


def test_labels_nothing_with_what_callers_make_up(api: ApiClient) -> None:
    made_up = f"made-up-{new_id()}".lower()
    make.register(made_up)
    make.start(made_up)
    leased(poll(api, "workflow", worker_id=made_up, poll_request_id=made_up))
    api.get(f"/api/{made_up}")
    api.get(f"/api/workflows/{made_up}")
    api.get("/api/workflows", headers={"x-namespace": made_up})
    api.post(f"/api/worker/activity-tasks/{made_up}/complete", {"lease_owner": made_up, "activity_attempt_id": made_up})
    api.request(made_up.upper(), "/api/workflows")

    scrape = Scrape(api)

    assert {name for _, labels in scrape.samples for name, _ in labels} <= LABELS
    values = {value for _, labels in scrape.samples for _, value in labels}
    assert [value for value in values if made_up in value.lower()] == []
