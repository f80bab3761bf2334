"""A refused carried poll leaves no trace, and the completion stands (docs/protocol/carried-polls.md; rows C10, C18 and
C25).

Counterfactual, run once by hand: with a refusal counted as "nothing ready" in `carried_polls._claim`, every
`test_c25_…` fails (37 of 37).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest

from durable import carried_polls, claims
from durable.claims import Claimed, Nothing, PollRequest, Ready
from durable.models import PollReceipt, WorkerRegistration
from durable.refusals import PollRefusal, PollRefusalReason, Reason, Refusal
from durable.sql import claiming
from tests import factories as make
from tests.client import ApiClient
from tests.clock import EngineClock
from tests.concurrency.tools import has_row_locks, in_thread
from tests.protocol.carrying import (
    CAPABILITIES,
    EACH_CARRIAGE,
    all_leases,
    carried,
    complete_carrying,
    counted_outcomes,
    effects_of,
    holding,
    members,
    offer,
    poll_receipt,
    ready_attempts,
)
from tests.protocol.closings import lose
from tests.protocol.reports import leased, poll
from tests.snapshot import nothing_recorded

CLOSED_SET = {
    "worker_not_registered",
    "stale_worker_registration",
    "task_queue_mismatch",
    "build_id_mismatch",
    "worker_draining",
    "poll_request_task_kinds_conflict",
    "poll_cached_task_expired",
    "update_validation_capability_not_advertised",
    "long_poll_capacity_exhausted",
    "poll_request_busy",
}
EACH_REASON = pytest.mark.parametrize("reason", PollRefusalReason)


@pytest.fixture(autouse=True)
def _quiet(override_durable: Any, database: None) -> None:
    override_durable(WORKER_SEEN_INTERVAL_SECONDS=3600)


def worker_1() -> Any:
    return WorkerRegistration.objects.filter(worker_id="w-1")


# -- states that have a poll refused -----------------------------------------------------------------------------------


def unregister(api: ApiClient, kind: str) -> None:
    worker_1().delete()


def let_go_stale(api: ApiClient, kind: str) -> None:
    worker_1().update(last_heartbeat_at=worker_1().get().last_heartbeat_at - timedelta(days=1))


def drain(api: ApiClient, kind: str) -> None:
    worker_1().update(is_draining=True, drain_reason="deploy")


def nothing(api: ApiClient, kind: str) -> None:
    """What is refused is in the poll itself."""


def register_a_build(api: ApiClient, kind: str) -> None:
    make.register(build_id="b-1")


def bind_to_other_kinds(api: ApiClient, kind: str) -> None:
    """The id holds a lease that was granted for other task kinds; for an activity poll, by its row alone."""
    make.register("w-1", capabilities=["update_validation_tasks"])
    kinds = {"task_kinds": ["workflow", "update_validation"]} if kind == "workflow" else {}
    leased(poll(api, kind, poll_request_id="carried-1", **kinds))
    PollReceipt.objects.filter(poll_request_id="carried-1").update(task_kinds=["update_validation", "workflow"])


def lose_its_lease(api: ApiClient, kind: str) -> None:
    """The id was granted a lease that has run out."""
    lose(leased(poll(api, kind, poll_request_id="carried-1")))


REFUSED: dict[str, tuple[Callable[[ApiClient, str], None], dict[str, Any]]] = {
    "worker_not_registered": (unregister, {}),
    "stale_worker_registration": (let_go_stale, {}),
    "task_queue_mismatch": (nothing, {"task_queue": "elsewhere"}),
    "build_id_mismatch": (register_a_build, {"build_id": "b-2"}),
    "worker_draining": (drain, {}),
    "poll_request_task_kinds_conflict": (bind_to_other_kinds, {}),
    "poll_cached_task_expired": (lose_its_lease, {}),
}


@EACH_CARRIAGE
@pytest.mark.parametrize("reason", REFUSED)
def test_c10_records_a_completion_whose_poll_is_refused(
    clock: EngineClock, api: ApiClient, override_durable: Any, completed: str, kind: str, reason: str
) -> None:
    override_durable(WORKER_STALE_AFTER_SECONDS=300)
    arrange, fields = REFUSED[reason]

    def scene() -> make.Lease:
        lease = holding(completed)
        offer(kind)
        arrange(api, kind)
        offer(kind, "another") if kind == "workflow" else make.start("another")
        return lease

    plain = effects_of(scene, lambda lease: complete_carrying(api, lease))
    with counted_outcomes() as counted:
        refused = effects_of(
            scene, lambda lease: complete_carrying(api, lease, **{f"{kind}_poll": carried(**fields, deliver="inline")})
        )

    assert (plain.status, plain.body["recorded"]) == (200, True)
    assert refused == plain
    assert counted == [(CAPABILITIES[completed, kind], "refused", reason)]


@pytest.mark.parametrize("reason", REFUSED)
def test_c25_does_not_take_a_refused_activity_poll_for_an_empty_one(
    clock: EngineClock, api: ApiClient, override_durable: Any, reason: str
) -> None:
    override_durable(WORKER_STALE_AFTER_SECONDS=300)
    arrange, fields = REFUSED[reason]

    def scene() -> make.Lease:
        lease = holding("workflow")
        offer("activity", "next-activity")
        arrange(api, "activity")
        offer("workflow") if worker_1().filter(is_draining=False).exists() else make.start("next")
        return lease

    plain = effects_of(scene, lambda lease: complete_carrying(api, lease))
    with counted_outcomes() as counted:
        refused = effects_of(
            scene,
            lambda lease: complete_carrying(api, lease, activity_poll=carried(**fields), workflow_poll=carried("w-1")),
        )

    assert refused == plain
    assert ready_attempts() == [("ready", 0)]
    assert poll_receipt("w-1") is None
    assert counted == [
        ("workflow_task_completion_activity_poll", "refused", reason),
        ("workflow_task_completion_workflow_poll", "not_attempted", ""),
    ]


# -- each member of the closed set, wherever the claim is --------------------------------------------------------------

# Where a refusal is raised: by the look, before the lock, and after everything was written.
PLACES = {"at the look": "admit", "before the lock": "_lock_best", "after the writes": "task_body"}


@EACH_CARRIAGE
@pytest.mark.parametrize("place", PLACES)
@EACH_REASON
def test_c10_leaves_nothing_of_a_claim_that_is_refused(
    clock: EngineClock, api: ApiClient, completed: str, kind: str, place: str, reason: PollRefusalReason
) -> None:
    def scene() -> make.Lease:
        lease = holding(completed)
        offer(kind)
        return lease

    def complete_refused(lease: make.Lease) -> Any:
        with mock.patch.object(claims, PLACES[place], side_effect=PollRefusal(reason, "Injected.")) as raised:
            answer = complete_carrying(api, lease, **{f"{kind}_poll": carried()})
        assert raised.call_count == 1
        return answer

    plain = effects_of(scene, lambda lease: complete_carrying(api, lease))
    refused = effects_of(scene, complete_refused)

    assert (plain.status, plain.body["recorded"]) == (200, True)
    assert refused == plain


@pytest.mark.parametrize("place", PLACES)
@EACH_REASON
def test_c25_does_not_claim_a_workflow_task_after_a_refusal(
    api: ApiClient, place: str, reason: PollRefusalReason
) -> None:
    lease = holding("workflow")
    offer("activity", "next-activity")
    offer("workflow")

    with mock.patch.object(claims, PLACES[place], side_effect=PollRefusal(reason, "Injected.")) as raised:
        answer = complete_carrying(api, lease, activity_poll=carried("a-1"), workflow_poll=carried("w-1"))

    assert raised.call_count == 1
    assert members(answer) == {}
    assert all_leases() == []
    assert ready_attempts() == [("ready", 0)]
    assert (poll_receipt("a-1"), poll_receipt("w-1")) == (None, None)


@EACH_CARRIAGE
def test_c10_takes_a_poll_id_that_is_being_served_for_a_refusal(api: ApiClient, completed: str, kind: str) -> None:
    lease = holding(completed)
    offer(kind)

    with mock.patch.object(claiming, "reserve_receipt", return_value=False), counted_outcomes() as counted:
        answer = complete_carrying(api, lease, **{f"{kind}_poll": carried()})

    assert members(answer) == {}
    assert ready_attempts() == [("ready", 0)]
    assert counted == [(CAPABILITIES[completed, kind], "refused", "poll_request_busy")]


# -- the closed set is closed ------------------------------------------------------------------------------------------


def test_c10_knows_exactly_the_documented_refusals() -> None:
    assert {str(reason) for reason in PollRefusalReason} == CLOSED_SET
    assert issubclass(PollRefusal, Refusal)


@EACH_CARRIAGE
@pytest.mark.parametrize("reason", sorted({str(reason) for reason in Reason} - CLOSED_SET))
def test_c11_takes_any_other_refusal_for_a_fault(api: ApiClient, completed: str, kind: str, reason: str) -> None:
    lease = holding(completed)
    offer(kind)

    with nothing_recorded(), mock.patch.object(claims, "look", side_effect=Refusal(Reason(reason), "Injected.")):
        answer = complete_carrying(api, lease, **{f"{kind}_poll": carried()})

    assert (answer.status, answer.body["reason"]) == (500, "server_error")
    assert members(complete_carrying(api, lease, **{f"{kind}_poll": carried()})) == {f"{kind}_poll": {"leased": True}}


# -- between admission and claim ---------------------------------------------------------------------------------------

CHANGES: dict[str, tuple[dict[str, Any] | None, str]] = {
    "another queue": ({"task_queue": "elsewhere", "registration_token": "anew"}, "task_queue_mismatch"),
    "another build id": ({"build_id": "b-2", "registration_token": "anew"}, "build_id_mismatch"),
    "the same anew": ({"registration_token": "anew"}, "stale_worker_registration"),
    "draining": ({"is_draining": True}, "worker_draining"),
    "gone": (None, "worker_not_registered"),
}


@EACH_CARRIAGE
@pytest.mark.parametrize("change", [*CHANGES, "stale"])
def test_c18_leases_nothing_once_the_registration_changed_after_admission(
    api: ApiClient, completed: str, kind: str, change: str
) -> None:
    lease = holding(completed)
    make.register(build_id="b-1")
    offer(kind)
    long_ago = worker_1().get().last_heartbeat_at - timedelta(days=1)
    columns, reason = CHANGES.get(change) or ({"last_heartbeat_at": long_ago}, "stale_worker_registration")

    def alter() -> None:
        worker_1().delete() if columns is None else worker_1().update(**columns)

    original = claims.look

    def look(request: PollRequest) -> Claimed | Ready | Nothing:
        seen = original(request)
        # Another connection, where one can write beside this transaction.
        in_thread(alter).result(30) if has_row_locks() else alter()
        return seen

    with mock.patch.object(carried_polls.claims, "look", look), counted_outcomes() as counted:
        answer = complete_carrying(api, lease, **{f"{kind}_poll": carried(build_id="b-1")})

    assert members(answer) == {}
    assert all_leases() == []
    assert ready_attempts() == [("ready", 0)]
    assert poll_receipt("carried-1") is None
    assert counted == [(CAPABILITIES[completed, kind], "refused", reason)]
    assert make.task_of(lease).status == "completed"


@EACH_CARRIAGE
def test_c18_leases_nothing_for_a_worker_that_moved_before(api: ApiClient, completed: str, kind: str) -> None:
    lease = holding(completed)
    offer(kind)
    make.register(task_queue="elsewhere")

    answer = complete_carrying(api, lease, **{f"{kind}_poll": carried()})

    assert members(answer) == {}
    assert ready_attempts() == [("ready", 0)]


@EACH_CARRIAGE
def test_c18_offers_no_task_of_another_build(api: ApiClient, completed: str, kind: str) -> None:
    """A task that is filtered out is no refusal: nothing is ready for this worker."""
    from durable.models import Task

    lease = holding(completed)
    if completed == "activity":
        make.register(supported_workflow_types=["another type"])
    offer_for_another(kind)
    Task.objects.filter(workflow_id="next").update(build_id="b-9")

    answer = complete_carrying(api, lease, **{f"{kind}_poll": carried()})

    assert members(answer) == {f"{kind}_poll": {"leased": False}}
    assert ready_attempts() == [("ready", 0)]


def offer_for_another(kind: str) -> None:
    make.register("w-9")
    make.start("next")
    if kind == "activity":
        make.complete(make.lease_workflow("w-9"), make.schedule())
