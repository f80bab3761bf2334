"""A carried poll may ask for the task in the completion's answer (docs/protocol/carried-polls.md)."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest
from django.db import DatabaseError, OperationalError, connection

from durable import carried_polls, metrics
from durable.history import pages
from durable.models import CompletionReceipt, HistoryEvent, Run
from durable.states import TaskKind
from tests import factories as make
from tests.budgets.routes import local_activity
from tests.client import ApiClient
from tests.protocol.carrying import (
    EACH_CARRIAGE,
    carried,
    complete_carrying,
    holding,
    leases_of,
    members,
    offer,
)
from tests.protocol.reports import ABSENT, leased, poll

SECRET = "sensitive-payload-marker"
INLINE = {"deliver": "inline"}


def member_of(api: ApiClient, lease: make.Lease, kind: str, **fields: Any) -> dict[str, Any]:
    """The member that a completion's answer has for the poll it carried."""
    member: dict[str, Any] = members(complete_carrying(api, lease, **{f"{kind}_poll": carried(**fields)}))[
        f"{kind}_poll"
    ]
    return member


def fetched(api: ApiClient, kind: str, **fields: Any) -> dict[str, Any]:
    """What the ordinary poll under the same id returns, envelope apart."""
    answer = poll(api, kind, poll_request_id="carried-1", **fields)
    assert answer.status == 200
    return answer.plain


def is_replay_of(member: dict[str, Any], body: dict[str, Any]) -> bool:
    """Whether a member is the replay's body and `leased`; the replay was answered later."""
    assert member["server_time"] <= body["server_time"]
    return member == {"leased": True, **body, "server_time": member["server_time"]}


def hold_step_of_long_run() -> make.Lease:
    """W-1 holds an activity whose completion makes a workflow task ready that has more than 50 events."""
    make.register()
    make.start("next")
    make.complete(make.lease_workflow(), *[local_activity() for _ in range(20)], make.schedule())
    return make.lease_activity()


# -- exactly the replay's body -----------------------------------------------------------------------------------------


@EACH_CARRIAGE
def test_delivers_the_body_of_the_replay(api: ApiClient, completed: str, kind: str) -> None:
    lease = holding(completed)
    offer(kind)

    member = member_of(api, lease, kind, **INLINE)

    assert set(member) == {"leased", "poll_status", "server_time", "task"}
    assert is_replay_of(member, fetched(api, kind))
    [task] = leases_of("w-1", TaskKind(kind))
    assert (member["task"]["task_id"], task.attempt_count) == (task.id, 1)


@pytest.mark.parametrize("history_page_size", [1, 2, 500, ABSENT, None])
def test_cuts_the_history_as_the_carried_poll_says(api: ApiClient, history_page_size: Any) -> None:
    lease = hold_step_of_long_run()

    member = member_of(api, lease, "workflow", history_page_size=history_page_size, **INLINE)

    assert is_replay_of(member, fetched(api, "workflow", history_page_size=history_page_size))
    if isinstance(history_page_size, int) and history_page_size < 3:
        assert len(member["task"]["history_events"]) == history_page_size
        assert member["task"]["next_history_page_token"] is not None


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "GZIP", "br", "", None])
def test_packs_the_history_as_the_carried_poll_says(api: ApiClient, encoding: str | None) -> None:
    lease = hold_step_of_long_run()

    member = member_of(api, lease, "workflow", accept_history_encoding=encoding, **INLINE)

    is_packed = (encoding or "").lower() in ("gzip", "deflate")
    assert ("history_events_compressed" in member["task"], "history_events" in member["task"]) == (
        is_packed, not is_packed,
    )  # fmt: skip
    assert is_replay_of(member, fetched(api, "workflow", accept_history_encoding=encoding))


def test_delivers_a_replayed_lease_too(api: ApiClient) -> None:
    lease = holding("workflow")
    offer("activity")
    held = leased(poll(api, "activity", poll_request_id="carried-1"))

    member = member_of(api, lease, "activity", **INLINE)

    assert member["task"] == held.body
    assert is_replay_of(member, fetched(api, "activity"))


def test_goes_on_with_a_task_that_was_delivered(api: ApiClient) -> None:
    lease = holding("workflow")
    answer = complete_carrying(api, lease, make.schedule(), activity_poll=carried(**INLINE))

    step = make.Lease(answer.body["activity_poll"]["task"], [])
    answer = complete_carrying(api, step, workflow_poll=carried("w-1", **INLINE))

    last = make.Lease(answer.body["workflow_poll"]["task"], [])
    types = [event["event_type"] for event in last.body["history_events"]]
    assert types[-2:] == ["ActivityStarted", "ActivityCompleted"]
    assert complete_carrying(api, last).body["run_status"] == "completed"


# -- when it is left to the poll ---------------------------------------------------------------------------------------


@EACH_CARRIAGE
@pytest.mark.parametrize("deliver", [ABSENT, None])
def test_says_only_leased_unless_asked(api: ApiClient, completed: str, kind: str, deliver: Any) -> None:
    lease = holding(completed)
    offer(kind)

    with mock.patch.object(carried_polls, "read_lease") as read:
        member = member_of(api, lease, kind, deliver=deliver)

    assert member == {"leased": True}
    assert not read.called


@EACH_CARRIAGE
@pytest.mark.parametrize("deliver", ["inline", "anything", 7])
def test_is_unknown_when_switched_off(
    api: ApiClient, override_durable: Any, completed: str, kind: str, deliver: Any
) -> None:
    override_durable(CARRY_INLINE_TASK=False)
    lease = holding(completed)
    offer(kind)

    answer = complete_carrying(api, lease, **{f"{kind}_poll": carried(deliver=deliver)})

    assert members(answer) == {f"{kind}_poll": {"leased": True}}
    assert "carried_poll_inline_task" not in answer.body["server_capabilities"]


def test_says_only_empty_when_nothing_is_ready(api: ApiClient) -> None:
    assert member_of(api, holding("workflow"), "activity", **INLINE) == {"leased": False}


@EACH_CARRIAGE
def test_delivers_nothing_to_a_repeat(api: ApiClient, completed: str, kind: str) -> None:
    lease = holding(completed)
    offer(kind)
    first = member_of(api, lease, kind, **INLINE)

    again = complete_carrying(api, lease, **{f"{kind}_poll": carried(**INLINE)})

    assert first["task"]
    assert not {"activity_poll", "workflow_poll"} & again.body.keys()


@EACH_CARRIAGE
def test_leaves_a_task_that_is_too_large_to_the_poll(
    api: ApiClient, override_durable: Any, completed: str, kind: str
) -> None:
    override_durable(INLINE_TASK_BYTES=10)
    lease = holding(completed)
    offer(kind)

    assert member_of(api, lease, kind, **INLINE) == {"leased": True}
    assert fetched(api, kind)["poll_status"] == "leased"


@pytest.mark.parametrize("kind", ["activity", "workflow"])
def test_delivers_up_to_the_limit_and_not_a_byte_more(api: ApiClient, override_durable: Any, kind: str) -> None:
    def delivered(workflow_id: str) -> dict[str, Any]:
        lease = holding("workflow", f"held-{workflow_id}")
        offer(kind, workflow_id)
        answer = complete_carrying(api, lease, **{f"{kind}_poll": carried(f"p-{workflow_id}", **INLINE)})
        member: dict[str, Any] = members(answer)[f"{kind}_poll"]
        return member

    task = delivered("next-1")["task"]
    size = len(json.dumps(task, separators=(",", ":"), ensure_ascii=False).encode())

    override_durable(INLINE_TASK_BYTES=size)
    assert "task" in delivered("next-2")
    override_durable(INLINE_TASK_BYTES=size - 1)
    assert delivered("next-3") == {"leased": True}


def test_does_not_read_a_history_that_is_surely_too_large(api: ApiClient, override_durable: Any) -> None:
    override_durable(INLINE_TASK_BYTES=100)
    lease = hold_step_of_long_run()

    with mock.patch("durable.leases.load_page") as load:
        member = member_of(api, lease, "workflow", **INLINE)

    assert member == {"leased": True}
    assert not load.called


@pytest.mark.parametrize("completed", ["workflow", "activity"])
@pytest.mark.parametrize(
    "error",
    [OperationalError(f"lost: {SECRET}"), DatabaseError(SECRET), ValueError(SECRET), AssertionError(SECRET)],
    ids=lambda error: type(error).__name__,
)
def test_records_a_completion_whose_next_task_cannot_be_read(api: ApiClient, completed: str, error: Exception) -> None:
    lease = holding(completed)
    offer("workflow")
    faults = metrics.FAULTS._value.get()

    with mock.patch("durable.leases.load_page", side_effect=error), mock.patch.object(carried_polls, "log") as log:
        member = member_of(api, lease, "workflow", **INLINE)
        shown = poll(api, "workflow", poll_request_id="carried-1")

    assert member == {"leased": True}
    assert CompletionReceipt.objects.filter(task_id=lease.task_id).count() == 1
    # The poll shows why.
    assert shown.status == (503 if isinstance(error, OperationalError) else 500)
    [call] = log.error.call_args_list
    assert call.args == ("inline_task_unreadable",)
    assert call.kwargs["error"] == type(error).__name__
    assert "read_lease" in call.kwargs["traceback"]
    assert SECRET not in repr(call)
    assert metrics.FAULTS._value.get() > faults
    # And nothing of it stays behind.
    assert fetched(api, "workflow")["poll_status"] == "leased"


@pytest.mark.parametrize("completed", ["workflow", "activity"])
def test_does_not_spoil_the_answer_with_an_event_that_is_no_json(api: ApiClient, completed: str) -> None:
    """The input is read by the claim already; this is another event of the page."""
    lease = holding(completed)
    offer("workflow")
    event = HistoryEvent.objects.get(event_type="StartAccepted", run_id=Run.objects.get(workflow_id="next").id)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE durable_historyevent SET payload = %s WHERE id = %s", ["{", event.id])

    with mock.patch.object(carried_polls, "log") as log:
        member = member_of(api, lease, "workflow", **INLINE)

    assert member == {"leased": True}
    assert [call.args for call in log.error.call_args_list] == [("inline_task_unreadable",)]


def test_records_a_completion_whose_next_task_has_no_json_form(api: ApiClient) -> None:
    lease = holding("workflow")
    offer("activity")

    with mock.patch("worker_api.carried_polls.dump_json", side_effect=ValueError("Out of range float values")):
        member = member_of(api, lease, "activity", **INLINE)

    assert member == {"leased": True}
    assert CompletionReceipt.objects.filter(task_id=lease.task_id).count() == 1


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("completed", ["workflow", "activity"])
def test_replaces_a_connection_that_broke_after_the_commit(api: ApiClient, completed: str) -> None:
    lease = holding(completed)
    offer("workflow")
    original = pages.load_page

    def load(*args: Any, **kwargs: Any) -> Any:
        connection.connection.close()
        return original(*args, **kwargs)

    with mock.patch("durable.leases.load_page", load):
        assert member_of(api, lease, "workflow", **INLINE) == {"leased": True}

    assert fetched(api, "workflow")["poll_status"] == "leased"


def test_counts_what_was_delivered_and_what_was_left(api: ApiClient, override_durable: Any) -> None:
    def counted() -> list[int]:
        return [int(metrics.INLINE_TASKS.labels(outcome=name)._value.get()) for name in ("delivered", "left_to_poll")]

    before = counted()
    first = holding("workflow", "held-1")
    offer("activity", "next-1")
    complete_carrying(api, first, activity_poll=carried("p-1", **INLINE))
    override_durable(INLINE_TASK_BYTES=1)
    second = holding("workflow", "held-2")
    offer("activity", "next-2")
    complete_carrying(api, second, activity_poll=carried("p-2", **INLINE))

    assert counted() == [before[0] + 1, before[1] + 1]
