"""A carried poll that is not valid, or whose capability is off, is not there (docs/protocol/carried-polls.md; rows C8
and C9). Each is compared with the completion without it: the whole answer, and every row of every table.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests import factories as make
from tests.client import ApiClient
from tests.clock import EngineClock
from tests.protocol.carrying import (
    CAPABILITIES,
    CARRIAGES,
    EACH_CARRIAGE,
    Effects,
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
from tests.protocol.reports import ABSENT
from wire.capabilities import CARRY_SETTINGS

SETTINGS = {capability: setting.upper() for capability, setting in CARRY_SETTINGS.items()}
# What makes a carried poll of either kind invalid.
INVALID: dict[str, Any] = {
    "null": None,
    "a text": "carried-1",
    "a list": [carried()],
    "a number": 7,
    "true": True,
    "an empty object": {},
    "no worker_id": carried(worker_id=ABSENT),
    "empty worker_id": carried(worker_id=""),
    "null worker_id": carried(worker_id=None),
    "worker_id a number": carried(worker_id=1),
    "no task_queue": carried(task_queue=ABSENT),
    "empty task_queue": carried(task_queue=""),
    "timeout_seconds 61": carried(timeout_seconds=61),
    "timeout_seconds below 0": carried(timeout_seconds=-1),
    "timeout_seconds a text": carried(timeout_seconds="soon"),
    "over-long poll_request_id": carried("p" * 256),
    "poll_request_id with a control character": carried("p\n1"),
    "poll_request_id a number": carried(1),
    "over-long worker_id": carried(worker_id="w" * 256),
    "over-long build_id": carried(build_id="b" * 256),
    "deliver something else": carried(deliver="push"),
    "deliver empty": carried(deliver=""),
    "deliver true": carried(deliver=True),
}

# What makes a workflow poll invalid besides.
INVALID_WORKFLOW: dict[str, Any] = {
    "history_page_size 0": carried(history_page_size=0),
    "history_page_size 1001": carried(history_page_size=1001),
    "accept_history_encoding a number": carried(accept_history_encoding=1),
    "task_kinds update_validation": carried(task_kinds=["update_validation"]),
    "task_kinds both": carried(task_kinds=["workflow", "update_validation"]),
    "task_kinds empty": carried(task_kinds=[]),
    "task_kinds twice": carried(task_kinds=["workflow", "workflow"]),
    "task_kinds unknown": carried(task_kinds=["query"]),
    "task_kinds a text": carried(task_kinds="workflow"),
    "no poll_request_id": carried(ABSENT),
    "empty poll_request_id": carried(""),
    "null poll_request_id": carried(None),
}

EACH_INVALID = pytest.mark.parametrize(
    ("completed", "kind", "what"),
    [
        (completed, kind, what)
        for completed, kind in CARRIAGES
        for what in [*INVALID, *(INVALID_WORKFLOW if kind == "workflow" else ())]
    ],
)


@pytest.fixture(autouse=True)
def _quiet(override_durable: Any, database: None) -> None:
    """No background write of the process disturbs a comparison, and nobody goes stale under the clock in hand."""
    override_durable(WORKER_SEEN_INTERVAL_SECONDS=3600, WORKER_STALE_AFTER_SECONDS=10**8)


def compared(api: ApiClient, completed: str, **polls: Any) -> tuple[Effects, Effects]:
    """What a completion does without and with polls, while a task of each kind waits for the worker."""

    def scene() -> make.Lease:
        make.register("w-1", capabilities=["update_validation_tasks"])
        offer("activity", "next-activity")
        lease = holding(completed)
        make.register("w-1", capabilities=["update_validation_tasks"])
        offer("workflow", "next-workflow")
        return lease

    plain = effects_of(scene, lambda lease: complete_carrying(api, lease))
    assert (plain.status, plain.body["recorded"]) == (200, True)
    return plain, effects_of(scene, lambda lease: complete_carrying(api, lease, **polls))


# -- validity ----------------------------------------------------------------------------------------------------------


@EACH_INVALID
def test_c8_ignores_an_invalid_poll(clock: EngineClock, api: ApiClient, completed: str, kind: str, what: str) -> None:
    with claim_statements() as executed:
        plain, invalid = compared(api, completed, **{f"{kind}_poll": {**INVALID, **INVALID_WORKFLOW}[what]})

    assert invalid == plain
    assert executed == []


@pytest.mark.parametrize("what", [*INVALID])
def test_c8_takes_an_invalid_activity_poll_for_none(api: ApiClient, what: str) -> None:
    """A workflow poll beside it is served as if it had come alone."""
    lease = holding("workflow")
    offer("workflow")

    answer = complete_carrying(api, lease, activity_poll=INVALID[what], workflow_poll=carried("w-1"))

    assert members(answer) == {"workflow_poll": {"leased": True}}


@pytest.mark.parametrize("what", ["a text", "no worker_id", "no poll_request_id", "task_kinds both"])
def test_c8_takes_an_invalid_workflow_poll_for_none(api: ApiClient, what: str) -> None:
    """Neither does it stand in an activity poll's way, nor does the owner that it names."""
    lease = holding("workflow")
    offer("activity")
    given = {**INVALID, **INVALID_WORKFLOW}[what]
    if isinstance(given, dict) and "worker_id" in given:
        given = {**given, "worker_id": "w-2"}

    answer = complete_carrying(api, lease, activity_poll=carried("a-1"), workflow_poll=given)

    assert members(answer) == {"activity_poll": {"leased": True}}


@pytest.mark.parametrize("poll_request_id", [ABSENT, "", "  ", None])
def test_c8_counts_an_activity_poll_without_an_id_as_carried(
    clock: EngineClock, api: ApiClient, poll_request_id: Any
) -> None:
    """It claims nothing, and keeps the workflow claim from running too."""
    with claim_statements() as executed:
        plain, without_id = compared(
            api, "workflow", activity_poll=carried(poll_request_id), workflow_poll=carried("w-1")
        )

    assert without_id == plain
    assert executed == []


@pytest.mark.parametrize("task_kinds", [ABSENT, None, ["workflow"]])
@pytest.mark.parametrize("completed", ["workflow", "activity"])
def test_c8_takes_task_kinds_of_workflow_alone(api: ApiClient, completed: str, task_kinds: Any) -> None:
    lease = holding(completed)
    offer("workflow")

    answer = complete_carrying(api, lease, workflow_poll=carried(task_kinds=task_kinds))

    assert members(answer) == {"workflow_poll": {"leased": True}}


@pytest.mark.parametrize(
    "fields",
    [
        {"timeout_seconds": ABSENT},
        {"timeout_seconds": None},
        {"timeout_seconds": 0},
        {"timeout_seconds": 60},
        {"build_id": ""},
        {"deliver": None},
        {"unknown": "ignored"},
    ],
    ids=str,
)
@EACH_CARRIAGE
def test_c8_takes_every_valid_form(api: ApiClient, completed: str, kind: str, fields: dict[str, Any]) -> None:
    lease = holding(completed)
    offer(kind)

    answer = complete_carrying(api, lease, **{f"{kind}_poll": carried(**fields)})

    assert members(answer) == {f"{kind}_poll": {"leased": True}}


def test_c8_does_not_look_for_an_activity_poll_on_an_activity_completion(clock: EngineClock, api: ApiClient) -> None:
    with claim_statements() as executed:
        plain, unknown = compared(api, "activity", activity_poll=carried(worker_id="w-2"))

    assert unknown == plain
    assert executed == []


def test_c8_is_served_beside_an_activity_poll_that_an_activity_completion_cannot_carry(api: ApiClient) -> None:
    lease = holding("activity")
    offer("workflow")

    answer = complete_carrying(api, lease, activity_poll=carried(worker_id="w-2"), workflow_poll=carried())

    assert members(answer) == {"workflow_poll": {"leased": True}}


@EACH_CARRIAGE
def test_c8_neither_spoils_nor_mends_a_completion_that_is_not_valid(api: ApiClient, completed: str, kind: str) -> None:
    lease = holding(completed)
    offer(kind)
    wrong = {"commands": [{"type": "no such command"}]} if completed == "workflow" else {"result": "no envelope"}
    path = f"/api/worker/{completed}-tasks/{lease.task_id}/complete"
    names = ("lease_owner", "workflow_task_attempt") if completed == "workflow" else (
        "lease_owner", "activity_attempt_id",
    )  # fmt: skip
    body = {name: lease.body[name] for name in names} | wrong

    plain, carrying, invalid = (
        api.post(path, {**body, **polls})
        for polls in ({}, {f"{kind}_poll": carried()}, {f"{kind}_poll": carried(timeout_seconds=61)})
    )

    assert plain.status == 422
    assert [(answer.status, answer.body) for answer in (carrying, invalid)] == [(422, plain.body)] * 2
    assert poll_receipt("carried-1") is None


# -- capabilities ------------------------------------------------------------------------------------------------------


@EACH_CARRIAGE
@pytest.mark.parametrize(
    "polls",
    [
        {"activity_poll": carried("a-1"), "workflow_poll": carried("w-1")},
        {"activity_poll": carried("a-1", worker_id="w-2"), "workflow_poll": carried("w-1", worker_id="w-2")},
        {"activity_poll": {}, "workflow_poll": "nothing"},
        {"activity_poll": carried("a-1", deliver="inline"), "workflow_poll": carried("w-1", deliver="inline")},
    ],
    ids=["own", "foreign", "invalid", "inline"],
)
def test_c9_does_the_same_as_without_the_field_when_switched_off(
    clock: EngineClock, api: ApiClient, override_durable: Any, completed: str, kind: str, polls: dict[str, Any]
) -> None:
    override_durable(**{SETTINGS[CAPABILITIES[completed, kind]]: False})

    with claim_statements() as executed:
        plain, off = compared(api, completed, **{f"{kind}_poll": polls[f"{kind}_poll"]})

    assert off == plain
    assert executed == []


@pytest.mark.parametrize("off", CAPABILITIES.values())
def test_c9_switches_each_capability_by_itself(api: ApiClient, override_durable: Any, off: str) -> None:
    override_durable(WORKER_SEEN_INTERVAL_SECONDS=3600, **{SETTINGS[off]: False})

    answered = {}
    for (completed, kind), capability in CAPABILITIES.items():
        lease = holding(completed, f"held-{capability}")
        answer = complete_carrying(api, lease, **{f"{kind}_poll": carried(f"p-{capability}")})
        answered[capability] = f"{kind}_poll" in members(answer)

    assert answered == {capability: capability != off for capability in CAPABILITIES.values()}


@pytest.mark.parametrize("off", CAPABILITIES.values())
def test_c9_advertises_only_what_is_on(api: ApiClient, override_durable: Any, off: str) -> None:
    override_durable(**{SETTINGS[off]: False})
    lease = holding("workflow")

    found = [
        api.get("/api/cluster/info").body["worker_protocol"]["server_capabilities"],
        complete_carrying(api, lease).body["server_capabilities"],
    ]

    for capabilities in found:
        advertised = {name: capabilities.get(name, False) for name in CAPABILITIES.values()}
        assert advertised == {name: name != off for name in CAPABILITIES.values()}
        assert capabilities["carried_poll_inline_task"] is True


def test_c9_advertises_nothing_when_all_is_off(api: ApiClient, override_durable: Any) -> None:
    override_durable(**dict.fromkeys(SETTINGS.values(), False))

    capabilities = api.get("/api/cluster/info").body["worker_protocol"]["server_capabilities"]

    assert not {*CAPABILITIES.values(), "carried_poll_inline_task"} & capabilities.keys()


@pytest.mark.parametrize("foreign", [False, True])
def test_c9_serves_a_workflow_poll_beside_an_activity_poll_that_is_off(
    api: ApiClient, override_durable: Any, foreign: bool
) -> None:
    """A field that is off takes no part in the owner's rule, nor in the order of the two."""
    override_durable(CARRY_ACTIVITY_ON_WORKFLOW=False)
    lease = holding("workflow")
    offer("activity", "next-activity")
    offer("workflow")

    answer = complete_carrying(
        api, lease, activity_poll=carried("a-1", worker_id="w-2" if foreign else "w-1"), workflow_poll=carried("w-1")
    )

    assert members(answer) == {"workflow_poll": {"leased": True}}
    assert leases_of("w-1", make.TaskKind.ACTIVITY) == []


def test_c9_leaves_the_workflow_task_when_the_workflow_poll_is_off(api: ApiClient, override_durable: Any) -> None:
    override_durable(CARRY_WORKFLOW_ON_WORKFLOW=False)
    lease = holding("workflow")
    offer("workflow")

    answer = complete_carrying(api, lease, activity_poll=carried("a-1"), workflow_poll=carried("w-1"))

    assert members(answer) == {"activity_poll": {"leased": False}}
    assert ready_attempts() == [("ready", 0)]
