"""Lost answers, repeats and refusals of completions that carried polls (docs/protocol/carried-polls.md; rows C12 to
C14, C19, C20 and C23).

Counterfactual, run once by hand: with `claim_carried` in place of `unserved` for a duplicate, every `test_c12_…` fails
(25 of 26) but the one that only compares bodies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from durable.models import PollReceipt, Task
from durable.states import TaskKind
from tests import factories as make
from tests.client import ApiClient, Response
from tests.protocol.carrying import (
    CAPABILITIES,
    EACH_CARRIAGE,
    all_leases,
    carried,
    complete_carrying,
    counted_outcomes,
    holding,
    leases_of,
    members,
    offer,
    poll_receipt,
    ready_attempts,
)
from tests.protocol.closings import CLOSINGS, closed_claim, leased_task, lose, pass_deadline
from tests.protocol.reports import leased, poll, send
from tests.server import ServerProcess
from tests.snapshot import nothing_recorded


def both(activity_id: str = "a-1", workflow_id: str = "w-1") -> dict[str, Any]:
    return {"activity_poll": carried(activity_id), "workflow_poll": carried(workflow_id)}


@pytest.fixture(autouse=True)
def _quiet(override_durable: Any, database: None) -> None:
    override_durable(WORKER_SEEN_INTERVAL_SECONDS=3600, COUNT_REFUSED_REPORTS=False)


# -- repeats -----------------------------------------------------------------------------------------------------------


@EACH_CARRIAGE
@pytest.mark.parametrize("poll_request_id", ["carried-1", "carried-2"])
@pytest.mark.parametrize("had_leased", [True, False])
@pytest.mark.parametrize("deliver", [None, "inline"])
def test_c12_leases_nothing_for_a_repeat(
    populated: ApiClient, completed: str, kind: str, poll_request_id: str, had_leased: bool, deliver: str | None
) -> None:
    lease = holding(completed)
    if had_leased:
        offer(kind)
    # The task that an activity's result makes ready is kept from the empty case by its type.
    elif completed == "activity":
        make.register(supported_workflow_types=["another"])
    first = complete_carrying(populated, lease, **{f"{kind}_poll": carried()})
    assert members(first) == {f"{kind}_poll": {"leased": had_leased}}
    make.register()
    offer(kind, "another") if kind == "workflow" or not had_leased else None

    with nothing_recorded(), counted_outcomes() as counted:
        again = complete_carrying(populated, lease, **{f"{kind}_poll": carried(poll_request_id, deliver=deliver)})

    assert (again.status, again.body["recorded"], again.body["reason"]) == (200, False, "already_completed")
    assert not {"activity_poll", "workflow_poll"} & again.body.keys()
    assert counted == [(CAPABILITIES[completed, kind], "not_attempted", "")]


def test_c12_leases_nothing_for_a_repeat_that_carries_what_the_first_did_not(populated: ApiClient) -> None:
    lease = holding("workflow")
    offer("workflow")
    offer("workflow", "another")
    complete_carrying(populated, lease)

    with nothing_recorded():
        again = complete_carrying(populated, lease, **both())

    assert again.body["reason"] == "already_completed"
    assert not {"activity_poll", "workflow_poll"} & again.body.keys()


def test_c12_compares_repeats_without_what_they_carry(populated: ApiClient) -> None:
    lease = holding("workflow")
    complete_carrying(populated, lease, **both())

    with nothing_recorded():
        answers = [
            complete_carrying(populated, lease),
            complete_carrying(populated, lease, activity_poll="nothing", workflow_poll=[1]),
            complete_carrying(populated, lease, make.finish("another result"), **both()),
        ]

    assert [answer.body["reason"] for answer in answers] == [
        "already_completed", "already_completed", "conflicting_completion",
    ]  # fmt: skip


# -- lost answers ------------------------------------------------------------------------------------------------------


def resend_and_fetch(api: ApiClient, lease: make.Lease, kind: str, *commands: Any, **polls: Any) -> make.Lease:
    """What a worker does whose answer was lost: the same completion, then the poll under the id that it carried."""
    assert complete_carrying(api, lease, *commands, **polls).body["reason"] == "already_completed"
    return leased(poll(api, kind, poll_request_id=polls[f"{kind}_poll"]["poll_request_id"]))


@EACH_CARRIAGE
def test_c13_finds_the_lease_of_a_lost_answer(api: ApiClient, completed: str, kind: str) -> None:
    lease = holding(completed)
    offer(kind)
    polls = {f"{kind}_poll": carried()}
    complete_carrying(api, lease, **polls)
    [granted] = leases_of("w-1", TaskKind(kind))

    with nothing_recorded():
        found = [resend_and_fetch(api, lease, kind, **polls) for _ in range(3)]

    assert {(one.task_id, one.body["lease_owner"]) for one in found} == {(granted.id, "w-1")}
    attempts = {one.body["attempt_number" if kind == "activity" else "workflow_task_attempt"] for one in found}
    assert attempts == {1}
    assert len({one.body["lease_expires_at"] for one in found}) == 1
    assert len({one.body.get("activity_attempt_id") for one in found}) == 1


def test_c13_finds_the_activity_of_a_lost_answer_that_came_first(api: ApiClient) -> None:
    lease = holding("workflow")
    offer("workflow")
    answer = complete_carrying(api, lease, make.schedule(), **both())
    assert members(answer) == {"activity_poll": {"leased": True}}

    found = resend_and_fetch(api, lease, "activity", make.schedule(), **both())

    [attempt] = Task.objects.get(id=found.task_id).attempts.all()
    assert (attempt.id, attempt.attempt_number) == (found.body["activity_attempt_id"], 1)
    # The workflow poll's id was never bound: under it an ordinary poll claims the task that was left.
    claimed = leased(poll(api, "workflow", poll_request_id="w-1"))
    assert (claimed.body["workflow_id"], claimed.body["workflow_task_attempt"]) == ("next", 1)


@EACH_CARRIAGE
def test_c13_polls_ordinarily_under_the_id_of_an_empty_poll(api: ApiClient, completed: str, kind: str) -> None:
    lease = holding(completed)
    if completed == "activity":
        make.register(supported_workflow_types=["another"])
    assert members(complete_carrying(api, lease, **{f"{kind}_poll": carried()})) == {f"{kind}_poll": {"leased": False}}
    assert poll_receipt("carried-1") is None
    assert poll(api, kind, poll_request_id="carried-1").body["poll_status"] == "empty"
    make.register()
    if completed == "workflow":
        offer(kind)

    claimed = leased(poll(api, kind, poll_request_id="carried-1"))

    assert claimed.body["attempt_number" if kind == "activity" else "workflow_task_attempt"] == 1


@EACH_CARRIAGE
def test_c13_replays_a_carried_lease_to_a_carried_poll(api: ApiClient, completed: str, kind: str) -> None:
    """A live lease of the id is an answer: leased, and nothing is granted besides."""
    lease = holding(completed)
    offer(kind)
    held = leased(poll(api, kind, poll_request_id="carried-1"))
    offer(kind, "another")

    answer = complete_carrying(api, lease, **{f"{kind}_poll": carried()})

    assert members(answer) == {f"{kind}_poll": {"leased": True}}
    assert [task.id for task in leases_of("w-1", TaskKind(kind))] == [held.task_id]
    assert ready_attempts("another") == [("ready", 0)]


def test_c13_counts_a_replayed_activity_as_leased(api: ApiClient) -> None:
    lease = holding("workflow")
    offer("activity", "next-activity")
    leased(poll(api, "activity", poll_request_id="a-1"))
    offer("workflow")

    answer = complete_carrying(api, lease, **both())

    assert members(answer) == {"activity_poll": {"leased": True}}
    assert ready_attempts() == [("ready", 0)]


@EACH_CARRIAGE
def test_c23_replays_a_carried_lease_after_a_restart(server: ServerProcess, completed: str, kind: str) -> None:
    lease = holding(completed)
    offer(kind)
    names = ("activity_attempt_id",) if completed == "activity" else ("workflow_task_attempt",)
    body = {name: lease.body[name] for name in ("lease_owner", *names)} | {f"{kind}_poll": carried()}
    body |= {"result": make.envelope(1)} if completed == "activity" else {"commands": [make.finish()]}
    path = f"/api/worker/{completed}-tasks/{lease.task_id}/complete"
    asked = {**carried(), "timeout_seconds": 0}
    status, answer = server.call("POST", path, body)
    assert (status, answer[f"{kind}_poll"]) == (200, {"leased": True})
    _, before = server.call("POST", f"/api/worker/{kind}-tasks/poll", asked)

    server.kill()
    server.start()

    status, again = server.call("POST", path, body)
    assert (status, again["recorded"], f"{kind}_poll" in again) == (200, False, False)
    _, after = server.call("POST", f"/api/worker/{kind}-tasks/poll", asked)
    assert after["poll_status"] == "leased"
    assert after["task"] == before["task"]


@EACH_CARRIAGE
def test_c23_replays_a_carried_lease_from_another_pool(database: None, completed: str, kind: str) -> None:
    with ApiClient() as api:
        lease = holding(completed)
        offer(kind)
        complete_carrying(api, lease, **{f"{kind}_poll": carried()})
    [granted] = leases_of("w-1", TaskKind(kind))

    with ApiClient() as api:
        found = resend_and_fetch(api, lease, kind, **{f"{kind}_poll": carried()})

    assert found.task_id == granted.id


# -- expiry ------------------------------------------------------------------------------------------------------------


@EACH_CARRIAGE
@pytest.mark.parametrize("taken_over", [False, True])
def test_c14_does_not_resurrect_a_carried_lease(api: ApiClient, completed: str, kind: str, taken_over: bool) -> None:
    lease = holding(completed)
    offer(kind)
    complete_carrying(api, lease, **{f"{kind}_poll": carried()})
    [granted] = leases_of("w-1", TaskKind(kind))
    late = leased(poll(api, kind, poll_request_id="carried-1"))
    lose(late)
    if taken_over:
        make.register("w-2")
        again = leased(poll(api, kind, poll_request_id="w-2-poll", worker_id="w-2"))
        if again.task_id != granted.id:
            again = leased(poll(api, kind, poll_request_id="w-2-again", worker_id="w-2"))
        assert again.task_id == granted.id

    with nothing_recorded():
        answer = poll(api, kind, poll_request_id="carried-1")
        resent = complete_carrying(api, lease, **{f"{kind}_poll": carried()})

    assert (answer.status, answer.body["reason"]) == (409, "poll_cached_task_expired")
    assert resent.body["reason"] == "already_completed"
    with nothing_recorded():
        fenced = complete_carrying(api, late)
    assert fenced.status == 409
    assert Task.objects.get(id=granted.id).attempt_count == (2 if taken_over else 1)


# -- whose run, and which completion -----------------------------------------------------------------------------------


@EACH_CARRIAGE
@pytest.mark.parametrize("end", ["complete_workflow", "fail_workflow"])
def test_c19_carries_a_poll_with_the_completion_that_closes_the_run(
    api: ApiClient, completed: str, kind: str, end: str
) -> None:
    lease = holding("workflow")
    offer(kind)
    last = make.finish() if end == "complete_workflow" else {"type": "fail_workflow", "message": "no stock"}

    answer = complete_carrying(api, lease, last, **{f"{kind}_poll": carried()})

    assert answer.body["run_status"] == end.removesuffix("_workflow") + ("d" if end.startswith("complete") else "ed")
    assert members(answer) == {f"{kind}_poll": {"leased": True}}
    assert [task.workflow_id for task in leases_of("w-1", TaskKind(kind))] == ["next"]


def late(verb: Callable[[make.Lease], object]) -> Callable[[ApiClient], tuple[make.Lease, dict[str, Any]]]:
    def arrange(api: ApiClient) -> tuple[make.Lease, dict[str, Any]]:
        lease = leased_task()
        verb(lease)
        return lease, {"commands": [make.finish()]}

    return arrange


def with_fields(**fields: Any) -> Callable[[ApiClient], tuple[make.Lease, dict[str, Any]]]:
    def arrange(api: ApiClient) -> tuple[make.Lease, dict[str, Any]]:
        return leased_task(), {"commands": [make.finish()], **fields}

    return arrange


def closed(how: str) -> Callable[[ApiClient], tuple[make.Lease, dict[str, Any]]]:
    return lambda api: (closed_claim(api, how), {"commands": [make.finish()]})


def activity(
    verb: Callable[[make.Lease], object] = lambda lease: None, **fields: Any
) -> Callable[[ApiClient], tuple[make.Lease, dict[str, Any]]]:
    def arrange(api: ApiClient) -> tuple[make.Lease, dict[str, Any]]:
        make.complete(leased_task(), make.schedule())
        lease = make.lease_activity()
        verb(lease)
        return lease, {"result": make.envelope(1), **fields}

    return arrange


def take_over(lease: make.Lease) -> None:
    lose(lease)
    (make.lease_activity if lease.body["task_kind"] == "activity" else make.lease_workflow)("w-2")


# Completions that are refused, workflow tasks first: what brings them about.
REFUSALS: dict[str, Callable[[ApiClient], tuple[make.Lease, dict[str, Any]]]] = {
    **{f"run closed: {how}": closed(how) for how in CLOSINGS},
    "completed otherwise": late(lambda lease: make.complete(lease, make.schedule())),
    "waiting": late(make.report_waiting),
    "failed": late(make.report_failure),
    "lost": late(lose),
    "taken over": late(take_over),
    "expired": late(lambda lease: make.expire_lease(lease.task_id)),
    "another owner": with_fields(lease_owner="w-2"),
    "another epoch": with_fields(workflow_task_attempt=2),
    "no commands": with_fields(commands=[]),
    "unknown command": with_fields(commands=[{"type": "no such command"}]),
    "no fence": with_fields(workflow_task_attempt=None),
    "activity completed otherwise": activity(lambda lease: make.complete_step(lease, "another")),
    "activity failed": activity(make.fail_step),
    "activity lost": activity(lose),
    "activity taken over": activity(take_over),
    "activity expired": activity(lambda lease: make.expire_lease(lease.task_id)),
    "activity of another owner": activity(lease_owner="w-2"),
    "activity of another attempt": activity(activity_attempt_id="01UNKNOWN"),
    "activity without an envelope": activity(result="plain"),
}


@pytest.mark.parametrize("how", REFUSALS)
@pytest.mark.parametrize("deliver", [None, "inline"])
def test_c20_leases_nothing_with_a_completion_that_is_refused(
    populated: ApiClient, how: str, deliver: str | None
) -> None:
    lease, fields = REFUSALS[how](populated)
    make.register()
    make.start("next")
    polls = {name: {**poll, "deliver": deliver} for name, poll in both().items()}

    with nothing_recorded(), counted_outcomes() as counted:
        plain = send(populated, lease, "complete", **fields)
        carrying = send(populated, lease, "complete", **fields, **polls)

    assert plain.status in (404, 409, 422), plain.plain
    assert (carrying.status, but_for_times(carrying)) == (plain.status, but_for_times(plain))
    assert counted == []


def but_for_times(answer: Response) -> dict[str, Any]:
    return {key: value for key, value in answer.plain.items() if not key.endswith("_at")}


def test_c20_leases_nothing_when_the_run_turns_out_to_be_past_its_deadline(populated: ApiClient) -> None:
    lease = leased_task(run_timeout_seconds=60)
    pass_deadline(lease)
    make.start("next")
    before, receipts = all_leases(), PollReceipt.objects.count()

    answer = complete_carrying(populated, lease, **both())

    assert (answer.status, answer.body["reason"]) == (409, "run_closed")
    assert not {"activity_poll", "workflow_poll"} & answer.body.keys()
    assert ready_attempts() == [("ready", 0)]
    assert set(all_leases()) <= set(before)
    assert PollReceipt.objects.count() == receipts
