"""A carried poll serves only the worker whose claim is completed (docs/protocol/carried-polls.md; row C6).

Counterfactual, run once by hand: without the owner check in `carried_polls.claim_carried` every test here fails (17 of
19) but the worker's own polls and the activity poll without an id, which claims nothing in any case.
"""

from __future__ import annotations

from typing import Any

import pytest

from durable.models import WorkerRegistration
from durable.states import TaskKind
from tests import factories as make
from tests.client import ApiClient
from tests.clock import EngineClock
from tests.protocol.carrying import (
    EACH_CARRIAGE,
    carried,
    claim_statements,
    complete_carrying,
    effects_of,
    holding,
    leases_of,
    members,
    offer,
    poll_receipt,
    ready_attempts,
)
from tests.protocol.reports import ABSENT, leased, poll

# Which of the two polls name which worker.
FOREIGN: dict[str, dict[str, Any]] = {
    "activity foreign": {"activity_poll": carried("a-1", worker_id="w-2"), "workflow_poll": carried("w-1")},
    "workflow foreign": {"activity_poll": carried("a-1"), "workflow_poll": carried("w-1", worker_id="w-2")},
    "both foreign": {
        "activity_poll": carried("a-1", worker_id="w-2"),
        "workflow_poll": carried("w-1", worker_id="w-3"),
    },
    "activity alone": {"activity_poll": carried("a-1", worker_id="w-2")},
    "workflow alone": {"workflow_poll": carried("w-1", worker_id="w-2")},
    "activity without an id": {
        "activity_poll": carried(ABSENT, worker_id="w-2"),
        "workflow_poll": carried("w-1"),
    },
    "other case": {"activity_poll": carried("a-1", worker_id="W-1"), "workflow_poll": carried("w-1")},
    "nobody": {"activity_poll": carried("a-1"), "workflow_poll": carried("w-1", worker_id="nobody")},
}


def scene(kind: str = "workflow") -> make.Lease:
    """W-1 holds a task; a task of each kind waits for anybody; the other workers are registered."""
    for worker_id in ("w-2", "w-3", "W-1"):
        make.register(worker_id)
    make.register()
    offer("activity", "next-activity")
    lease = holding(kind)
    offer("workflow", "next-workflow")
    return lease


@pytest.mark.parametrize("who", FOREIGN)
def test_c6_records_a_completion_with_a_foreign_poll_and_nothing_else(
    clock: EngineClock, api: ApiClient, override_durable: Any, who: str
) -> None:
    override_durable(WORKER_SEEN_INTERVAL_SECONDS=3600, WORKER_STALE_AFTER_SECONDS=10**8)
    plain = effects_of(scene, lambda lease: complete_carrying(api, lease))

    with claim_statements() as executed:
        foreign = effects_of(scene, lambda lease: complete_carrying(api, lease, **FOREIGN[who]))

    assert plain.status == 200
    assert foreign == plain
    assert executed == []


def test_c6_notices_a_difference_when_the_polls_are_the_workers_own(
    clock: EngineClock, api: ApiClient, override_durable: Any
) -> None:
    """The comparison that the rows above rest on can fail."""
    override_durable(WORKER_SEEN_INTERVAL_SECONDS=3600, WORKER_STALE_AFTER_SECONDS=10**8)
    plain, again = (effects_of(scene, lambda lease: complete_carrying(api, lease)) for _ in range(2))

    own = effects_of(scene, lambda lease: complete_carrying(api, lease, activity_poll=carried()))

    assert plain == again
    assert own.body.pop("activity_poll") == {"leased": True}
    assert own.body == plain.body
    differing = {table for table, rows in plain.rows.items() if own.rows[table] != rows}
    assert differing == {"durable_task", "durable_activityattempt", "durable_pollreceipt"}


def test_c6_serves_neither_poll_of_an_activity_completion_for_another_worker(
    clock: EngineClock, api: ApiClient, override_durable: Any
) -> None:
    override_durable(WORKER_SEEN_INTERVAL_SECONDS=3600, WORKER_STALE_AFTER_SECONDS=10**8)

    def held_activity() -> make.Lease:
        make.register("w-2")
        return holding("activity")

    plain = effects_of(held_activity, lambda lease: complete_carrying(api, lease))
    foreign = effects_of(
        held_activity, lambda lease: complete_carrying(api, lease, workflow_poll=carried(worker_id="w-2"))
    )

    assert plain.status == 200
    assert foreign == plain


@EACH_CARRIAGE
def test_c6_does_not_replay_what_the_other_worker_holds(api: ApiClient, completed: str, kind: str) -> None:
    lease = holding(completed)
    make.register("w-2")
    offer(kind)
    theirs = leased(poll(api, kind, worker_id="w-2", poll_request_id="carried-1"))
    offer(kind, "another")

    answer = complete_carrying(api, lease, **{f"{kind}_poll": carried(worker_id="w-2", deliver="inline")})

    assert members(answer) == {}
    assert theirs.task_id not in answer.raw.decode()
    [held] = leases_of("w-2", TaskKind(kind))
    assert (held.id, held.attempt_count) == (theirs.task_id, 1)
    assert leases_of("w-1", TaskKind(kind)) == []
    assert leased(poll(api, kind, worker_id="w-2", poll_request_id="carried-1")).task_id == theirs.task_id


@EACH_CARRIAGE
def test_c6_does_not_refresh_the_other_workers_heartbeat(
    api: ApiClient, override_durable: Any, completed: str, kind: str
) -> None:
    override_durable(WORKER_SEEN_INTERVAL_SECONDS=3600)
    lease = holding(completed)
    make.register("w-2")
    offer(kind)
    before = WorkerRegistration.objects.get(worker_id="w-2").last_heartbeat_at

    complete_carrying(api, lease, **{f"{kind}_poll": carried(worker_id="w-2")})

    assert WorkerRegistration.objects.get(worker_id="w-2").last_heartbeat_at == before
    assert "w-2" not in {worker_id for _, worker_id in api.runtime._seen}


@EACH_CARRIAGE
def test_c6_leaves_the_task_to_the_workers_own_poll(api: ApiClient, completed: str, kind: str) -> None:
    lease = holding(completed)
    make.register("w-2")
    offer(kind)

    answer = complete_carrying(api, lease, **{f"{kind}_poll": carried(worker_id="w-2")})

    assert members(answer) == {}
    assert ready_attempts() == [("ready", 0)]
    assert poll_receipt("carried-1") is None
    assert poll(api, kind, worker_id="w-2", poll_request_id="carried-1").body["poll_status"] == "leased"
