"""What a request looks at does not depend on how many rows there are, seen among a million (field cases 57, 58, 72).

Nothing is timed. Each statement that a route runs is run again under the eyes of the database: it must find its rows by
an index, put none in order but the handful it returns, and look at no more than it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from durable.ids import new_id
from durable.models import HistoryEvent, Task, WorkerIncarnation, WorkerRegistration
from durable.operations.count_refused_report import RefusedReportSeen, count_refused_report
from durable.refusals import Reason
from durable.sql.claiming import Wanted, lock_candidate
from durable.sql.pool import Work
from durable.sql.transactions import transactional
from durable.upkeep import pruning, sweeps
from tests import factories as make
from tests.budgets import grown
from tests.budgets.conftest import NEVER, open_connections
from tests.budgets.plans import Plan, plan_of
from tests.budgets.routes import checkpoint, complete, finish_step, lease_over_api, local_activity
from tests.budgets.statements import Cost, Statement, Statements, recorded_statements
from tests.client import ApiClient
from tests.conftest import clean_database
from tests.protocol.reports import poll, send

# Generated once, so all of it runs in one process.
pytestmark = [pytest.mark.database, pytest.mark.xdist_group("grown")]

HANDFUL = 30
# The worker, the receipt, the task, the run, its input, the execution: each by its key.
CLAIM_ROWS = 15
GROWN_TABLES = {model._meta.db_table for model in grown.GROWN}


@pytest.fixture(scope="module")
def million_rows(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        clean_database()
        grown.grow()
        yield
        grown.empty()
        clean_database()


@pytest.fixture
def statements(million_rows: None, override_durable: Any) -> Iterator[Statements]:
    override_durable(PROBE_INTERVAL_SECONDS=NEVER, WORKER_SEEN_INTERVAL_SECONDS=NEVER)
    with recorded_statements() as heard:
        yield heard


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker with types of its own, so that no test meets what another one left."""

    api: ApiClient
    id: str
    workflow_type: str
    activity_type: str

    def lease(self, kind: str) -> make.Lease:
        return lease_over_api(self.api, kind, f"p-{new_id()}", worker_id=self.id)

    def start(self, **options: Any) -> make.Started:
        return make.start(workflow_type=self.workflow_type, **options)

    def schedule(self) -> dict[str, Any]:
        return make.schedule(self.activity_type)


@pytest.fixture
def worker(statements: Statements) -> Iterator[Worker]:
    for model in (WorkerRegistration, WorkerIncarnation):
        model.objects.all().delete()
    name = new_id()
    own = {"supported_workflow_types": [f"flow-{name}"], "supported_activity_types": [f"step-{name}"]}
    make.register(f"w-{name}", **own)
    with ApiClient() as api:
        open_connections(api)
        poll(api, "workflow", worker_id=f"w-{name}")
        yield Worker(api=api, id=f"w-{name}", workflow_type=f"flow-{name}", activity_type=f"step-{name}")


# -- judging -----------------------------------------------------------------------------------------------------------


def plans_of(cost: Cost) -> list[tuple[Statement, Plan]]:
    """How each statement of ours that reads or changes rows found them."""
    looking = [statement for statement in cost.statements if statement.verb in ("SELECT", "UPDATE", "DELETE")]
    return [(statement, plan_of(statement)) for statement in looking]


def check_plans(cost: Cost, *, most: int = HANDFUL) -> set[str]:
    """No table walked, few rows looked at, none put in order but those; returns the indexes that were used."""
    used: set[str] = set()
    for statement, plan in plans_of(cost):
        explained = f"{statement.sql}\n{plan.text}\nlooked at {plan.examined} rows"
        assert not plan.scanned & GROWN_TABLES, f"walks {plan.scanned & GROWN_TABLES}: {explained}"
        assert plan.examined <= most, explained
        assert plan.sorted_rows <= most, f"sorts {plan.sorted_rows} rows: {explained}"
        used |= plan.indexes
    # Behind the first column of this one stands nothing that a read asks for: it would walk a whole history.
    assert "durable_history_terminal" not in used
    return used


def key_of(model_name: str) -> str:
    """The name of a table's primary key index."""
    table = next(model._meta.db_table for model in grown.GROWN if model.__name__ == model_name)
    return {"sqlite": f"sqlite_autoindex_{table}_1", "postgresql": f"{table}_pkey", "mysql": "PRIMARY"}[
        connection.vendor
    ]


def in_pool(worker: Worker, work: Any) -> Any:
    """Run something as upkeep does: in the process's pool."""
    return worker.api.wait(worker.api.runtime.pool.run(Work.LOCK_RUN, work))


# -- claims and polls --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_claims_past_a_backlog_for_later_and_of_other_types(worker: Worker, statements: Statements, kind: str) -> None:
    worker.start(priority=9)
    if kind == "activity":
        complete(worker.api, worker.lease("workflow"), worker.schedule())

    with statements.during() as cost:
        worker.lease(kind)

    assert len(cost.within(6)) == 6
    assert "durable_task_claim_typed" in check_plans(cost, most=CLAIM_ROWS)


@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_claims_any_type_at_the_head_of_a_backlog(worker: Worker, statements: Statements, kind: str) -> None:
    worker.start()
    if kind == "activity":
        complete(worker.api, worker.lease("workflow"), worker.schedule())
    make.register(worker.id, supported_workflow_types=[], supported_activity_types=[])
    first = {"priority": 0, "available_at": datetime(2019, 1, 1, tzinfo=UTC)}
    Task.objects.filter(type__in=(worker.workflow_type, worker.activity_type), status="ready").update(**first)

    with statements.during() as cost:
        worker.lease(kind)

    assert len(cost.within(6)) == 6
    assert "durable_task_claim_any" in check_plans(cost, most=CLAIM_ROWS)


@pytest.mark.parametrize("wanted_type", [None, "unsupported-3"])
@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_locks_a_task_without_putting_any_in_order(
    worker: Worker, statements: Statements, kind: str, wanted_type: str | None
) -> None:
    wanted = Wanted("default", make.QUEUE, kind, (wanted_type,) if wanted_type else (), "")

    with statements.during() as cost:
        in_pool(worker, transactional(lambda: lock_candidate(wanted, timezone.now(), wanted_type)))

    (locking,) = cost.counted
    plan = plan_of(locking)
    assert plan.indexes == {"durable_task_claim_typed" if wanted_type else "durable_task_claim_any"}, plan.text
    assert (plan.sorted_rows, plan.scanned) == (0, set()), plan.text
    assert "filesort" not in plan.text


@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_finds_nothing_in_a_backlog_for_others_with_two_small_reads(
    worker: Worker, statements: Statements, kind: str
) -> None:
    with statements.during() as cost:
        answer = poll(worker.api, kind, worker_id=worker.id, poll_request_id="p-1")

    assert answer.body["poll_status"] == "empty"
    assert len(cost.statements) == 2
    assert {"durable_task_claim_typed", key_of("PollReceipt")} <= check_plans(cost, most=CLAIM_ROWS)


def test_replays_by_keys(worker: Worker, statements: Statements) -> None:
    worker.start()
    lease_over_api(worker.api, "workflow", f"p-{worker.id}", worker_id=worker.id)

    with statements.during() as cost:
        lease_over_api(worker.api, "workflow", f"p-{worker.id}", worker_id=worker.id)

    assert {key_of("PollReceipt"), key_of("Task"), key_of("Run")} <= check_plans(cost)


# -- reports -----------------------------------------------------------------------------------------------------------


def test_reports_by_keys(worker: Worker, statements: Statements) -> None:
    worker.start()
    lease = worker.lease("workflow")

    with statements.during() as cost:
        send(worker.api, lease, "heartbeat")
        send(worker.api, lease, "history", next_history_page_token="MQ==")
        checkpoint(worker.api, lease, local_activity())
        complete(worker.api, lease, worker.schedule())
        step = worker.lease("activity")
        send(worker.api, step, "heartbeat", details={"done": 1})
        send(worker.api, step, "renew-lease")
        send(worker.api, step, "status")
        finish_step(worker.api, step)
        complete(worker.api, worker.lease("workflow"), make.finish())

    reports = ("CheckpointReceipt", "CompletionReceipt")
    by_key = {key_of(name) for name in ("Task", "Run", "ActivityExecution", "ActivityAttempt", *reports)}
    assert by_key <= check_plans(cost)


@pytest.mark.parametrize("page_bytes", [10_000, 4 * 1024 * 1024])
def test_reads_a_history_page_without_the_rest_of_the_history(
    worker: Worker, statements: Statements, override_durable: Any, page_bytes: int
) -> None:
    override_durable(HISTORY_PAGE_BYTES=page_bytes)
    worker.start()
    complete(worker.api, worker.lease("workflow"), *(local_activity() for _ in range(900)), worker.schedule())
    finish_step(worker.api, worker.lease("activity"))
    lease = worker.lease("workflow")

    with statements.during() as cost:
        answer = send(worker.api, lease, "history", next_history_page_token="MTAwMA==", history_page_size=20)

    assert answer.body["total_history_events"] > 2700
    assert 0 < len(answer.body["history_events"]) <= 20
    (reading,) = [statement for statement in cost.statements if HistoryEvent._meta.db_table in statement.sql][-1:]
    plan = plan_of(reading)
    # The running total goes over the page's sizes a few times, and over nothing else.
    assert (plan.scanned & GROWN_TABLES, plan.examined <= 15 * 20) == (set(), True), plan.text


def test_fails_and_refuses_by_keys(worker: Worker, statements: Statements, override_durable: Any) -> None:
    worker.start()
    lease = worker.lease("workflow")

    override_durable(COUNT_REFUSED_REPORTS=False)
    with statements.during() as cost:
        send(worker.api, lease, "fail", failure={"message": "boom"})
        retry = worker.lease("workflow")
        send(worker.api, lease, "complete", commands=[make.finish()])
        complete(worker.api, retry, worker.schedule())
        send(worker.api, worker.lease("activity"), "fail", failure={"message": "boom"})

    assert {key_of("Task"), key_of("Run")} <= check_plans(cost)


def test_counts_a_refused_report_within_its_caps(worker: Worker, statements: Statements, override_durable: Any) -> None:
    override_durable(REFUSED_REPORT_ROWS_PER_NAMESPACE=100)
    worker.start()
    lease = worker.lease("workflow")
    seen = RefusedReportSeen(
        namespace="default", route="workflow-task-complete", task_id=lease.task_id, lease_owner=worker.id,
        offered_attempt="7", reason=Reason.LEASE_EXPIRED, body_bytes=2, body_digest="",
    )  # fmt: skip

    with statements.during() as cost:
        in_pool(worker, lambda: count_refused_report(seen))

    counts = [(statement, plan) for statement, plan in plans_of(cost) if "COUNT(" in statement.sql]
    assert len(counts) == 2
    assert all(plan.examined <= 3 * 100 for _, plan in counts), counts


def test_closes_a_run_with_its_activities_by_keys(worker: Worker, statements: Statements) -> None:
    started = worker.start()
    complete(worker.api, worker.lease("workflow"), worker.schedule(), worker.schedule())
    worker.lease("activity")

    with statements.during() as cost:
        answer = worker.api.post(f"/api/workflows/{started.run.workflow_id}/cancel")

    assert answer.status == 200, answer.body
    assert {"durable_task_of_run", "durable_attempt_of_run", key_of("Run")} <= check_plans(cost)


# -- workers -----------------------------------------------------------------------------------------------------------


def test_deregisters_a_worker_without_touching_the_tasks_it_closed(worker: Worker, statements: Statements) -> None:
    make.register(grown.HOLDER, task_queue="elsewhere")
    Task.objects.filter(lease_owner=grown.HOLDER).update(
        status="completed", lease_owner=None, leased_at=None, lease_expires_at=None
    )

    with statements.during() as cost:
        answer = worker.api.delete(f"/api/worker/registrations/{grown.HOLDER}")

    assert (answer.status, answer.body["recovered_workflow_task_count"]) == (200, 0)
    assert not [write for write in cost.writes if Task._meta.db_table in write.sql]
    assert "durable_task_of_owner" in check_plans(cost)


def test_registers_and_hears_workers_without_looking_at_tasks(worker: Worker, statements: Statements) -> None:
    body = {"worker_id": "w-new", "task_queue": make.QUEUE, "runtime": "python", "capability_manifest": {}}

    with statements.during() as cost:
        registered = worker.api.post("/api/worker/register", body)
        heard = worker.api.post("/api/worker/heartbeat", {"worker_id": "w-new"})

    assert (registered.status, heard.status) == (201, 200), registered.body
    assert not [statement for statement in cost.statements if Task._meta.db_table in statement.sql]


# -- upkeep ------------------------------------------------------------------------------------------------------------

SWEEPS = {
    "durable_task_lease_expiry": sweeps.recover_leases,
    "durable_task_due": sweeps.make_tasks_due,
    "durable_task_deadline": sweeps.time_out_activities,
    "durable_run_deadline": sweeps.time_out_runs,
}


@pytest.mark.parametrize("index", SWEEPS)
def test_sweeps_along_its_own_index(worker: Worker, statements: Statements, index: str) -> None:
    with statements.during() as cost:
        in_pool(worker, SWEEPS[index])

    assert len(cost.statements) <= 2
    assert check_plans(cost) == {index}


def test_recovers_a_lease_by_keys(worker: Worker, statements: Statements) -> None:
    worker.start()
    complete(worker.api, worker.lease("workflow"), worker.schedule())
    make.expire_lease(worker.lease("activity").task_id)

    with statements.during() as cost:
        done = in_pool(worker, sweeps.recover_leases)

    assert done.handled == 1
    assert {"durable_task_lease_expiry", key_of("Task"), key_of("Run")} <= check_plans(cost)


@pytest.mark.parametrize(
    "duty", [pruning.prune_poll_receipts, pruning.prune_refused_reports, pruning.prune_deregistration_receipts]
)
def test_prunes_without_walking_what_stays(worker: Worker, statements: Statements, duty: Any) -> None:
    with statements.during() as cost:
        in_pool(worker, duty)

    check_plans(cost)


# -- the control plane -------------------------------------------------------------------------------------------------

PAGE = 50


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("", "durable_run_list"),
        ("status=running", "durable_run_by_status"),
        ("status=completed", "durable_run_by_status"),
        ("status=failed", "durable_run_by_status"),
        ("workflow_type=type-7", "durable_run_by_type"),
        ("query=WF-00002", "durable_run_of_workflow"),
    ],
)
def test_lists_runs_by_key_on_the_first_page_and_far_behind_it(
    worker: Worker, statements: Statements, query: str, index: str
) -> None:
    path = f"/api/workflows?{query}"
    far = worker.api.get(f"{path}&page_size=200").body["next_page_token"]
    for _ in range(8):
        far = worker.api.get(f"{path}&page_size=200&next_page_token={far}").body["next_page_token"] or far

    for token in ("", f"&next_page_token={far}"):
        with statements.during() as cost:
            answer = worker.api.get(f"{path}&page_size={PAGE}{token}")

        assert answer.body["workflow_count"] > 0
        # A search looks at a thousand ids before it gives up being exact.
        most = 1100 if "query" in query else 5 * PAGE
        assert index in check_plans(cost, most=most)


def test_answers_for_one_workflow_by_keys(worker: Worker, statements: Statements) -> None:
    workflow_id = f"wf-{new_id()}"
    body = {"workflow_type": worker.workflow_type, "workflow_id": workflow_id, "task_queue": make.QUEUE}

    with statements.during() as cost:
        started = worker.api.post("/api/workflows", body)
        run = f"/api/workflows/{workflow_id}/runs/{started.body['run_id']}"
        paths = (f"/api/workflows/{workflow_id}", f"/api/workflows/{workflow_id}/runs", run, f"{run}/history")
        statuses = [started.status, *(worker.api.get(path).status for path in paths)]
        statuses.append(worker.api.post("/api/workflows", body).status)

    assert statuses == [201, 200, 200, 200, 200, 409]
    assert {key_of("Workflow"), key_of("Run")} <= check_plans(cost)


def test_tells_its_readiness_along_the_lease_index(worker: Worker, statements: Statements) -> None:
    worker.api.get("/api/ready", token=None)

    with statements.during() as cost:
        worker.api.get("/api/ready", token=None)

    assert "durable_task_lease_expiry" in check_plans(cost)


def test_scrapes_the_whole_engine_along_indexes(worker: Worker, statements: Statements) -> None:
    with statements.during() as cost:
        answer = worker.api.get("/metrics")

    assert answer.status == 200
    assert f'task_queue="{make.QUEUE}"' in answer.raw.decode()
    assert len(cost.statements) <= 12
    # Twenty seeks for the ages of a queue.
    assert {"durable_task_claim_any", "durable_task_lease_expiry"} <= check_plans(cost, most=150)
