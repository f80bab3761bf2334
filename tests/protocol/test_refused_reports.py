"""Refused reports are counted like an access log: who, what, why, how often, not what was in them (docs/design.md).

Elsewhere finished work that came too late was thrown away with a line in a log; here every such report leaves a row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from durable.models import RefusedReport
from durable.operations import count_refused_report
from durable.sql.pool import DatabasePool, Work
from tests import factories as make
from tests.client import ApiClient, Response
from tests.protocol.closings import leased_task, lose
from tests.protocol.reports import send, send_report
from tests.protocol.waiting import wait_until
from tests.snapshot import nothing_recorded

MARKER = "payload-of-the-late-report"
LATE = {"commands": [{"type": "complete_workflow", "result": {"codec": "avro", "blob": MARKER}}]}
RESULT = {"result": {"codec": "avro", "blob": MARKER}}
TABLE = frozenset({RefusedReport._meta.db_table})


@pytest.fixture(autouse=True)
def _uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process remembers of a namespace's rows is another test's."""
    monkeypatch.setattr(count_refused_report, "_counted", {})


def counted(number: int = 1) -> list[RefusedReport]:
    """The rows, once so many reports are counted."""
    wait_until(lambda: sum(RefusedReport.objects.values_list("count", flat=True)) >= number)
    return list(RefusedReport.objects.order_by("first_refused_at"))


def wait_for_rows(number: int) -> None:
    wait_until(lambda: RefusedReport.objects.count() == number)


def finished_task() -> make.Lease:
    lease = leased_task()
    make.report_waiting(lease)
    return lease


def leased_activity(workflow_id: str = "order-1") -> make.Lease:
    make.complete(leased_task(workflow_id), make.schedule())
    return make.lease_activity("w-1")


def test_keeps_a_row_of_a_late_completion(api: ApiClient) -> None:
    lease = finished_task()

    response = send(api, lease, "complete", **LATE, workflow_task_attempt=7)

    (row,) = counted()
    assert response.status == 409
    assert (row.namespace, row.route, row.task_id, row.run_id) == (
        "default", "workflow-task-complete", lease.task_id, lease.body["run_id"],
    )  # fmt: skip
    assert (row.lease_owner, row.offered_attempt, row.current_attempt) == ("w-1", "7", 1)
    assert (row.reason, row.count) == ("task_not_leased", 1)
    assert row.first_refused_at == row.last_refused_at
    assert row.body_bytes > len(MARKER)


def test_keeps_no_content(api: ApiClient) -> None:
    send(api, finished_task(), "complete", **LATE)

    (row,) = counted()
    columns = [str(value) for value in RefusedReport.objects.values_list().get()]
    assert not any(MARKER in column for column in columns)
    assert len(row.body_digest) == 64


def test_keys_the_digest_of_a_body_with_the_servers_secret(api: ApiClient, settings: Any) -> None:
    import json

    lease = finished_task()
    body = json.dumps({"lease_owner": "w-1", "workflow_task_attempt": 1, **LATE}).encode()
    path = f"/api/worker/workflow-tasks/{lease.task_id}/complete"
    api.post(path, raw=body)
    first = counted(1)[0].body_digest
    api.post(path, raw=body)
    same = counted(2)[0].body_digest
    settings.SECRET_KEY = "another secret"
    api.post(path, raw=body)
    keyed_otherwise = counted(3)[0].body_digest

    assert first == same != keyed_otherwise
    assert first != hashlib.sha256(body).hexdigest()


def test_counts_a_repeat_on_the_same_row(api: ApiClient) -> None:
    lease = finished_task()
    for number in (1, 2, 3):
        send(api, lease, "complete", **LATE)
        # One after the other: counting is best effort, and two at once on one row may meet.
        rows = counted(number)

    (row,) = rows
    assert row.count == 3
    assert row.last_refused_at > row.first_refused_at


def test_keeps_a_row_for_each_identity(api: ApiClient) -> None:
    lease = finished_task()
    send(api, lease, "complete", **LATE)
    send(api, lease, "fail", failure={"message": "boom"})
    send_report(api, lease, "checkpoint")
    send(api, lease, "complete", **LATE, workflow_task_attempt=2)
    send(api, lease, "complete", **LATE, lease_owner="w-2")
    api.post("/api/workflows/order-1/cancel")
    send(api, lease, "complete", **LATE)

    rows = counted(6)
    assert [row.count for row in rows] == [1] * 6
    assert {(row.route, row.offered_attempt, row.lease_owner, row.reason) for row in rows} == {
        ("workflow-task-complete", "1", "w-1", "task_not_leased"),
        ("workflow-task-fail", "1", "w-1", "task_not_leased"),
        ("workflow-task-checkpoint", "1", "w-1", "task_not_leased"),
        ("workflow-task-complete", "2", "w-1", "task_not_leased"),
        ("workflow-task-complete", "1", "w-2", "task_not_leased"),
        ("workflow-task-complete", "1", "w-1", "run_closed"),
    }


# -- what is counted ---------------------------------------------------------------------------------------------------


def conflicting(api: ApiClient) -> Response:
    lease = leased_task()
    make.complete(lease, make.schedule())
    return send(api, lease, "complete", **LATE)


def expired(api: ApiClient) -> Response:
    lease = leased_task()
    make.expire_lease(lease.task_id)
    return send(api, lease, "complete", **LATE)


def of_activity(
    fields: dict[str, Any], before: Callable[[ApiClient, make.Lease], Any]
) -> Callable[[ApiClient], Response]:
    def report(api: ApiClient) -> Response:
        lease = leased_activity()
        before(api, lease)
        return send(api, lease, "complete", **RESULT, **fields)

    return report


def nothing(api: ApiClient, lease: make.Lease) -> None:
    return None


def out_of_step(api: ApiClient) -> Response:
    lease = leased_task()
    make.checkpoint(lease, make.schedule())
    return send_report(api, lease, "checkpoint", checkpoint_id="c-2")


COUNTED: dict[str, Callable[[ApiClient], Response]] = {
    "conflicting_completion": conflicting,
    "checkpoint_sequence_mismatch": out_of_step,
    "task_not_leased": lambda api: send(api, finished_task(), "complete", **LATE),
    "lease_expired": expired,
    "lease_owner_mismatch": lambda api: send(api, leased_task(), "complete", **LATE, lease_owner="w-2"),
    "workflow_task_attempt_mismatch": lambda api: send(api, leased_task(), "complete", **LATE, workflow_task_attempt=2),
    "attempt_not_found": of_activity({"activity_attempt_id": "01NOBODY"}, nothing),
    "stale_attempt": of_activity({}, lambda api, lease: lose(lease)),
    "run_cancelled": of_activity({}, lambda api, lease: api.post("/api/workflows/order-1/cancel")),
    "run_terminated": of_activity({}, lambda api, lease: api.post("/api/workflows/order-1/terminate")),
}


@pytest.mark.parametrize("reason", COUNTED)
def test_counts_a_report_that_a_guard_refused(api: ApiClient, reason: str) -> None:
    response = COUNTED[reason](api)

    (row,) = counted()
    assert (response.body["reason"], row.reason) == (reason, reason)


def test_names_the_attempt_that_an_activity_report_offered(api: ApiClient) -> None:
    lease = leased_activity()
    lose(lease)

    send(api, lease, "complete", **RESULT)

    (row,) = counted()
    assert (row.route, row.offered_attempt) == ("activity-task-complete", lease.body["activity_attempt_id"])


UNCOUNTED: dict[str, Callable[[ApiClient, make.Lease], Response]] = {
    "heartbeat": lambda api, lease: send(api, lease, "heartbeat"),
    "history": lambda api, lease: send(api, lease, "history", next_history_page_token="MA=="),
    "unknown task": lambda api, lease: send(api, make.Lease({**lease.body, "task_id": "01NO"}, []), "complete", **LATE),
    "invalid": lambda api, lease: send(api, lease, "complete", **LATE, lease_owner=""),
    "unauthorized": lambda api, lease: api.post(f"/api/worker/workflow-tasks/{lease.task_id}/complete", token="wrong"),
    "unknown namespace": lambda api, lease: api.post(
        f"/api/worker/workflow-tasks/{lease.task_id}/complete", headers={"X-Namespace": "nowhere"}
    ),
}


@pytest.mark.parametrize("what", UNCOUNTED)
def test_counts_nothing_else(populated: ApiClient, override_durable: Any, what: str) -> None:
    override_durable(COUNT_REFUSED_REPORTS=True)
    lease = finished_task()
    RefusedReport.objects.all().delete()

    assert UNCOUNTED[what](populated, lease).status >= 400
    # Counted after all that came before it, because there is one queue: what is not there now never comes.
    send(populated, lease, "complete", **LATE)

    assert [row.route for row in counted()] == ["workflow-task-complete"]
    assert counted()[0].count == 1


def test_counts_no_duplicate(api: ApiClient) -> None:
    lease = leased_task()
    for _ in range(3):
        assert send(api, lease, "complete", commands=[make.schedule()]).status == 200
    send(api, lease, "complete", **LATE)

    assert [(row.reason, row.count) for row in counted()] == [("conflicting_completion", 1)]


# -- within bounds -----------------------------------------------------------------------------------------------------


def test_keeps_no_more_rows_of_a_task_than_the_cap(api: ApiClient, override_durable: Any) -> None:
    override_durable(REFUSED_REPORT_ROWS_PER_TASK=3)
    lease = finished_task()
    for attempt in range(1, 7):
        send(api, lease, "complete", **LATE, workflow_task_attempt=attempt)
        wait_for_rows(min(attempt, 3))
    # What has a row is counted on.
    send(api, lease, "complete", **LATE, workflow_task_attempt=2)

    assert [row.count for row in counted(4)] == [1, 2, 1]


def test_keeps_no_more_rows_of_a_namespace_than_the_cap(api: ApiClient, override_durable: Any) -> None:
    override_durable(REFUSED_REPORT_ROWS_PER_NAMESPACE=2)
    for number in range(3):
        make.register("w-1")
        make.start(f"order-{number}")
        lease = make.lease_workflow()
        make.report_waiting(lease)
        send(api, lease, "complete", **LATE)
        wait_for_rows(min(number + 1, 2))

    assert RefusedReport.objects.count() == 2


def test_answers_alike_when_it_cannot_count(api: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from wire import refused

    def fail(seen: Any) -> bool:
        raise RuntimeError("the table is gone")

    lease = finished_task()
    first = send(api, lease, "complete", **LATE)
    counted()
    monkeypatch.setattr(refused, "count_refused_report", fail)

    assert send(api, lease, "complete", **LATE).raw == first.raw


def test_drops_the_count_when_the_pool_is_busy(populated: ApiClient, override_durable: Any, monkeypatch: Any) -> None:
    override_durable(COUNT_REFUSED_REPORTS=True)
    lease = finished_task()
    monkeypatch.setattr(DatabasePool, "has_free_thread", lambda pool: False)

    with nothing_recorded():
        assert send(populated, lease, "complete", **LATE).status == 409
        # One more piece of work for every thread: whatever was queued before it is done now.
        for _ in range(8):
            populated.wait(populated.runtime.pool.run(Work.WRITE, int))


def test_leaves_the_rest_of_the_database_alone(populated: ApiClient, override_durable: Any) -> None:
    override_durable(COUNT_REFUSED_REPORTS=True)
    RefusedReport.objects.all().delete()
    lease = finished_task()

    with nothing_recorded(without=TABLE):
        send(populated, lease, "complete", **LATE)
        counted()


def test_has_no_foreign_keys() -> None:
    assert not [field for field in RefusedReport._meta.fields if field.remote_field is not None]
