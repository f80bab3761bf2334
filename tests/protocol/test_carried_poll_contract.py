"""What the API document says of carried polls, and what a missing key means (docs/protocol/carried-polls.md; row C15).

Counterfactual, run once by hand: with the key sent as `{"leased": false}` for every outcome but "leased", every
`test_c15_leaves_…` whose completion carries something fails (10).
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command

from durable.states import TaskKind
from server.management.commands import write_openapi
from tests import factories as make
from tests.client import ApiClient
from tests.openapi import document
from tests.protocol.carrying import (
    CAPABILITIES,
    EACH_CARRIAGE,
    carried,
    complete_carrying,
    holding,
    leases_of,
    members,
    offer,
    poll_receipt,
)
from tests.protocol.reports import poll

REQUESTS = {"workflow": "WorkflowTaskCompleteRequest", "activity": "ActivityTaskCompleteRequest"}
ANSWERS = {"workflow": "WorkflowTaskCompleted", "activity": "ActivityTaskCompleted"}
FILE = "worker-protocol-api.openapi.yaml"


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = document("worker")["components"]["schemas"][name]
    return found


def words(part: dict[str, Any]) -> str:
    return re.sub(r"\s+", " ", part["description"])


def names_in(part: Any) -> set[str]:
    return {found.rpartition("/")[2] for found in re.findall(r"#/components/schemas/\w+", str(part))}


# -- the document ------------------------------------------------------------------------------------------------------


@EACH_CARRIAGE
def test_c15_documents_the_capability_with_its_whole_rule(completed: str, kind: str) -> None:
    part = schema("ServerCapabilities")["properties"][CAPABILITIES[completed, kind]]

    said = words(part)
    assert f"`{kind}_poll`" in said
    assert f"completion of a {completed} task" in said or f"completion of an {completed} task" in said
    for rule in (
        "There only if it is on",
        "An invalid carried poll is ignored",
        "every carried poll must name the lease owner, or none is served",
        "The member of the answer is optional, and a missing one means: no lease was delivered",
        "the capacity reserved for it may be freed",
        "the queue is not thereby known to be empty",
        "the capability stays in use",
    ):
        assert rule in said, rule
    assert CAPABILITIES[completed, kind] not in schema("ServerCapabilities")["required"]


def test_c15_documents_that_activity_goes_first() -> None:
    part = schema("ServerCapabilities")["properties"]["workflow_task_completion_workflow_poll"]

    assert "Activity goes first" in words(part)


@EACH_CARRIAGE
def test_c15_documents_the_field_of_the_request(completed: str, kind: str) -> None:
    request = schema(REQUESTS[completed])
    part = request["properties"][f"{kind}_poll"]

    assert f"{kind}_poll" not in request["required"]
    assert f"Carried{kind.title()}Poll" in names_in(part)
    assert "One that is not valid is ignored and left to the worker's own poll" in words(part)
    body = schema(f"Carried{kind.title()}Poll")
    assert "must be the lease owner of the task that is completed" in words(body)
    ordinary = set(schema(f"{kind.title()}PollRequest")["properties"])
    assert set(body["properties"]) == ordinary | {"deliver"}


@EACH_CARRIAGE
def test_c15_documents_the_optional_member_of_the_answer(completed: str, kind: str) -> None:
    answer = schema(ANSWERS[completed])
    part = answer["properties"][f"{kind}_poll"]

    assert f"{kind}_poll" not in answer["required"]
    assert names_in(part) == {"CarriedPollLeased", "CarriedPollEmpty", f"Carried{kind.title()}Task"}
    assert schema("CarriedPollLeased")["properties"]["leased"]["const"] is True
    assert schema("CarriedPollEmpty")["properties"]["leased"]["const"] is False
    for rule in (
        "No member means that nothing was leased for that poll",
        "the capacity reserved for it may be freed",
        "does not say that the queue is empty",
        "goes on carrying polls",
    ):
        assert rule in words(part), rule


@pytest.mark.parametrize("name", ["WorkflowTaskDuplicate", "ActivityTaskDuplicate"])
def test_c15_gives_a_duplicate_no_member(name: str) -> None:
    found = [one for one in document("worker")["components"]["schemas"] if one == name]
    duplicates = found or [
        one
        for one, part in document("worker")["components"]["schemas"].items()
        if part.get("properties", {}).get("reason", {}).get("const") == "already_completed"
    ]

    assert duplicates
    for one in duplicates:
        assert not {"activity_poll", "workflow_poll"} & schema(one)["properties"].keys()


def test_c15_raised_the_version_when_carried_polls_came() -> None:
    major, minor, _ = (int(part) for part in document("worker")["info"]["version"].split("."))

    assert (major, minor) >= (1, 1)


def test_c15_fails_the_check_and_asks_for_a_version_when_the_contract_changes(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in write_openapi.FILES.values():
        (tmp_path / file).write_text((write_openapi.FOLDER / file).read_text())
    changed = yaml.safe_load((tmp_path / FILE).read_text())
    del changed["components"]["schemas"]["ServerCapabilities"]["properties"]["carried_poll_inline_task"]
    (tmp_path / FILE).write_text(write_openapi.as_yaml(changed))
    monkeypatch.setattr(write_openapi, "FOLDER", tmp_path)
    monkeypatch.setattr("django.conf.settings.BASE_DIR", tmp_path)

    with pytest.raises(CommandError, match="carried_poll_inline_task"):
        call_command("write_openapi", "--check")
    call_command("write_openapi")

    assert "Its contract changed: raise its version" in capsys.readouterr().out


# -- the missing key ---------------------------------------------------------------------------------------------------


def refused(kind: str) -> dict[str, Any]:
    return {f"{kind}_poll": carried(task_queue="elsewhere")}


MISSING: dict[str, Any] = {
    "refused": refused,
    "foreign": lambda kind: {f"{kind}_poll": carried(worker_id="w-2")},
    "invalid": lambda kind: {f"{kind}_poll": carried(timeout_seconds=61)},
    "absent": lambda kind: {},
    "null": lambda kind: {f"{kind}_poll": None},
}


@EACH_CARRIAGE
@pytest.mark.parametrize("why", MISSING)
def test_c15_leaves_no_lease_and_no_end_of_it_behind_a_missing_key(
    api: ApiClient, completed: str, kind: str, why: str
) -> None:
    lease = holding(completed)
    make.register("w-2")
    offer(kind)

    answer = complete_carrying(api, lease, **MISSING[why](kind))

    assert members(answer) == {}
    assert leases_of("w-1", TaskKind(kind)) == []
    assert poll_receipt("carried-1") is None
    # The queue was not empty, the ordinary poll under the same id finds that out, and carrying goes on.
    assert poll(api, kind, poll_request_id="carried-1").body["poll_status"] == "leased"
    assert answer.body["server_capabilities"][CAPABILITIES[completed, kind]] is True


def test_c15_leaves_the_workflow_key_out_when_an_activity_was_leased(api: ApiClient) -> None:
    lease = holding("workflow")
    offer("workflow")

    answer = complete_carrying(api, lease, make.schedule(), activity_poll=carried("a"), workflow_poll=carried("w"))

    assert members(answer) == {"activity_poll": {"leased": True}}
