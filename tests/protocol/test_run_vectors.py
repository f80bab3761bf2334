"""The runner of the vectors goes red when a server misbehaves, and says where (docs/protocol/vectors.md)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.answering import answering, tampering
from tests.protocol.run_vectors import CONTROL_HEADER, PROTOCOL_HEADER, VECTORS, Answer, Result, main, run_case
from tests.protocol.vector_format import FORMAT, read_cases
from tests.server import ROOT, ServerProcess

CASES = {case.id: case for path in VECTORS.glob("*.json") for case in read_cases(path)}
# What the fake server below is asked.
BEAT = {"path": "/api/worker/heartbeat", "body": {"worker_id": {"$unique": "w1"}}}

Tamper = Callable[[str, Answer], None]


# -- a real server, misrepresented -------------------------------------------------------------------------------------


def answers(end: str, change: Callable[[dict[str, Any]], Any], **marks: Any) -> Tamper:
    """Change the answers of the routes with this end whose bodies have these values."""

    def tamper(path: str, answer: Answer) -> None:
        if path.partition("?")[0].endswith(end) and marks.items() <= answer.body.items():
            change(answer.body)

    return tamper


def put(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda body: body.update(fields)


def put_in_task(owner: str, **fields: Any) -> Callable[[dict[str, Any]], None]:
    """In the tasks that this worker is given."""

    def change(body: dict[str, Any]) -> None:
        if body["task"] and body["task"]["lease_owner"].startswith(f"{owner}-"):
            body["task"].update(fields)

    return change


def drop(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda body: body.pop(name)


def headers(change: Callable[[dict[str, str]], Any], reason: str) -> Tamper:
    return lambda _, answer: answer.body.get("reason") == reason and change(answer.headers)


def from_the_second_time(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], None]:
    """The first look at a history is from before the case's request."""
    seen: list[None] = []

    def changed(body: dict[str, Any]) -> None:
        if seen:
            change(body)
        seen.append(None)

    return changed


NOT_LEASED: dict[str, Any] = {"reason": "task_not_leased"}
DUPLICATE: dict[str, Any] = {"reason": "already_completed"}
RECEIPT = put(recorded=False, run_id="01J")

# What a server does wrong → the case that must notice, and what must be said. Each entry makes its tampering anew.
MISBEHAVIOURS: dict[str, tuple[str, Callable[[], Tamper], str]] = {
    "names another run in a receipt": (
        "N2b/fail", lambda: answers("/fail", put(run_id="01OTHER"), **NOT_LEASED), "body.run_id: expected"),
    "names another run in a duplicate": (
        "R2", lambda: answers("/complete", put(run_id="01OTHER"), **DUPLICATE), "body.run_id: expected"),
    "says recorded in a refusal": (
        "N2b/complete", lambda: answers("/complete", put(recorded=True), **NOT_LEASED),
        "body.recorded: expected false, got true"),
    "says recorded in a duplicate": (
        "R2", lambda: answers("/complete", put(recorded=True), **DUPLICATE), "body.recorded: expected false, got true"),
    "says recorded in a duplicate of an activity": (
        "R10", lambda: answers("/complete", put(recorded=True), **DUPLICATE),
        "body.recorded: expected false, got true"),
    "leaves a field out": (
        "N2b/fail", lambda: answers("/fail", drop("task_status"), **NOT_LEASED), "body: missing field 'task_status'"),
    "adds a field": (
        "R1", lambda: answers("/complete", put(note="hi")), "body: unexpected field 'note': \"hi\""),
    "adds a field to a refusal that says nothing about recording": (
        "N5-owner/fail", lambda: answers("/fail", put(recorded=False), reason="lease_owner_mismatch"),
        "body: unexpected field 'recorded': false"),
    "gives a heartbeat a receipt": (
        "N6-not_leased/heartbeat", lambda: answers("/heartbeat", RECEIPT, **NOT_LEASED),
        "body: unexpected field 'recorded': false"),
    "gives a history request a receipt": (
        "N6-cancelled/history", lambda: answers("/history", RECEIPT, reason="run_closed"),
        "body: unexpected field 'run_id': \"01J\""),
    "answers an attempt as text": (
        "N9/fail", lambda: answers("/fail", put(workflow_task_attempt="1"), **NOT_LEASED),
        'body.workflow_task_attempt: expected 1, got "1"'),
    "says something else than the heartbeat": (
        "N17-not_leased/fail", lambda: answers("/fail", put(error="No."), **NOT_LEASED), "body.error: expected"),
    "records nothing in the history": (
        "R1", lambda: answers("/history", from_the_second_time(lambda body: body["events"].pop())),
        "history: events appended: expected [\"ActivityScheduled\"], got []"),
    "records something for a refusal": (
        "N2b/fail", lambda: answers("/history", from_the_second_time(
            lambda body: body["events"].append({**body["events"][-1], "event_type": "Surprise", "sequence": 3}))),
        'history: events appended: expected [], got ["Surprise"]'),
    "rewrites its history": (
        "N2b/fail", lambda: answers("/history", from_the_second_time(
            lambda body: body["events"][0].update(payload={}))),
        "history: what was recorded before has changed"),
    "leaves a gap in its history": (
        "N2b/fail", lambda: answers("/history", lambda body: body["events"].pop(0)),
        "history: sequences.0: expected 1, got 2"),
    "shows another status of the run": (
        "R1", lambda: answers("", put(status="completed"), status="waiting"),
        'run status: expected "waiting", got "completed"'),
    "does not count an attempt": (
        "R7", lambda: answers("/poll", put_in_task("w2", workflow_task_attempt=1)),
        "body.task.workflow_task_attempt: expected 2, got 1"),
    "leases a task twice": (
        "R2", lambda: answers("/workflow-tasks/poll", put(task={"task_id": "01J"}), task=None),
        "body.task: expected null"),
    "sends a missing key as false": (
        "C3", lambda: answers("/complete", put(workflow_poll={"leased": False}), outcome="completed"),
        "body: unexpected field 'workflow_poll': {\"leased\": false}"),
    "counts an attempt of a task that was to be left alone": (
        "C25/wrong_queue", lambda: answers("/workflow-tasks/poll", put_in_task("w2", workflow_task_attempt=2)),
        "body.task.workflow_task_attempt: expected 1, got 2"),
    "replays another task than it leased": (
        "C13-activity", lambda: answers(
            "/activity-tasks/poll", from_the_second_time(put_in_task("w1", activity_attempt_id="01OTHER"))),
        "body.task.activity_attempt_id: expected"),
    "answers without the envelope": (
        "N2b/fail", lambda: answers("/fail", drop("server_capabilities"), **NOT_LEASED),
        "envelope: missing field 'server_capabilities'"),
    "answers with other capabilities than discovery": (
        "N2b/fail", lambda: answers("/fail", put(server_capabilities={}), **NOT_LEASED),
        "envelope.server_capabilities: not the ones of discovery"),
    "answers without the version header": (
        "N2b/fail", lambda: headers(lambda sent: sent.pop(PROTOCOL_HEADER.lower()), "task_not_leased"),
        f"header {PROTOCOL_HEADER}: expected \"1.20\", got null"),
}  # fmt: skip


def run_tampered(server: ServerProcess, case_id: str, tamper: Tamper) -> Result:
    with tampering(server.url, server.token, tamper) as tampered:
        return run_case(CASES[case_id], tampered)


@pytest.mark.database
@pytest.mark.parametrize("case_id", sorted({case_id for case_id, _, _ in MISBEHAVIOURS.values()}))
def test_passes_a_server_that_behaves(shared_server: ServerProcess, case_id: str) -> None:
    result = run_tampered(shared_server, case_id, lambda _path, _answer: None)

    assert (result.verdict, result.lines) == ("PASS", [])


@pytest.mark.database
@pytest.mark.parametrize("what", MISBEHAVIOURS)
def test_fails_a_server_that(shared_server: ServerProcess, what: str) -> None:
    case_id, tamper, said = MISBEHAVIOURS[what]

    result = run_tampered(shared_server, case_id, tamper())

    assert result.verdict == "FAIL"
    where, *lines = result.lines
    assert where.startswith(("when ", "changed ")), "what comes before the case's request must not have failed"
    assert any(line.startswith(said) for line in lines), lines


@pytest.mark.database
def test_names_the_case_and_the_difference(shared_server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    _, tamper, said = MISBEHAVIOURS["names another run in a receipt"]
    file = str(VECTORS / "not_recorded_receipts.json")

    with tampering(shared_server.url, shared_server.token, tamper()) as tampered:
        code = main(["--url", tampered.url, "--token", tampered.token, "--allow-not-run", file])

    printed = capsys.readouterr().out.splitlines()
    first = next(number for number, line in enumerate(printed) if line.startswith("FAIL    N2b/fail  "))
    assert code == 1
    assert "when 1: POST /api/worker/workflow-tasks/" in printed[first + 1]
    assert printed[first + 2].strip().startswith(said)


# -- the command -------------------------------------------------------------------------------------------------------


class Fake:
    """A server that is nothing but discovery and a heartbeat. It answers heartbeats with these statuses, then with the
    last one, and keeps what it was sent.
    """

    def __init__(self, *statuses: int, **capabilities: Any) -> None:
        self.capabilities = capabilities
        self.statuses = list(statuses) or [200]
        self.heard: list[tuple[dict[str, str], Any]] = []

    def respond(self, method: str, path: str, headers: dict[str, str], body: Any) -> Answer:
        if path == "/api/cluster/info":
            return Answer(200, {}, {"worker_protocol": {"server_capabilities": self.capabilities}})
        self.heard.append((headers, body))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        answered = {"protocol_version": "1.20", "server_capabilities": self.capabilities, "status": status}
        return Answer(status, {PROTOCOL_HEADER: "1.20"}, answered)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., int]:
    """`run(fake, case, …, options=[…])`: the exit code of the command on a file with these cases."""

    def run(fake: Fake, *cases: dict[str, Any], options: list[str] | None = None, **file: Any) -> int:
        path = tmp_path / "some.json"
        path.write_text(json.dumps({"format": FORMAT, "chapter": 12, "title": "some", "cases": cases, **file}))
        with answering(fake.respond) as url:
            return main(["--url", url, *(options or []), str(path)])

    return run


def case(case_id: str = "X1", **fields: Any) -> dict[str, Any]:
    return {"id": case_id, "title": "beats", "when": BEAT, "then": {"status": 200}, **fields}


def test_succeeds_when_every_case_passes(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    code = run(Fake(), case("X1"), case("X2"))

    assert code == 0
    assert capsys.readouterr().out.splitlines() == [
        "PASS    X1  beats",
        "PASS    X2  beats",
        "2 passed, 0 failed, 0 not run",
    ]


def test_fails_when_one_case_fails(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    code = run(Fake(), case("X1"), case("X2", then={"status": 200, "body": {"status": 201}}))

    assert code == 1
    assert capsys.readouterr().out.splitlines() == [
        "PASS    X1  beats",
        "FAIL    X2  beats",
        "        when 1: POST /api/worker/heartbeat",
        "        body.status: expected 201, got 200",
        "1 passed, 1 failed, 0 not run",
    ]


def test_fails_when_there_is_nothing_to_run(run: Callable[..., int]) -> None:
    assert run(Fake()) == 1


@pytest.mark.parametrize("need", ["short_lease", "some_capability", "not some_other"])
def test_reports_a_case_that_it_cannot_run(
    run: Callable[..., int], need: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Fake(some_other=True, some_capability=False)

    code = run(fake, case(needs=[need]))

    assert (code, fake.heard) == (1, [])
    assert capsys.readouterr().out.splitlines() == [
        "NOT RUN X1  beats",
        f"        needs: {need}",
        "0 passed, 0 failed, 1 not run",
    ]


def test_succeeds_without_such_a_case_only_if_told_so(run: Callable[..., int]) -> None:
    cases = [case("X1"), case("X2", needs=["some_capability"])]

    assert run(Fake(), *cases) == 1
    assert run(Fake(), *cases, options=["--allow-not-run"]) == 0
    assert run(Fake(500), *cases, options=["--allow-not-run"]) == 1


def test_runs_a_case_whose_needs_are_met(run: Callable[..., int]) -> None:
    needs = ["short_lease", "some_capability", "not some_other", "not some_third"]
    fake = Fake(some_capability=True, some_other=False)

    assert run(fake, case(needs=needs), options=["--lease-seconds", "1"]) == 0
    assert len(fake.heard) == 1


@pytest.mark.parametrize(("reason", "code"), [("task_not_found", 0), ("not_found", 1)])
def test_asks_the_route_itself_whether_there_are_checkpoints(
    run: Callable[..., int], monkeypatch: pytest.MonkeyPatch, reason: str, code: int
) -> None:
    fake = Fake()
    respond = fake.respond

    def respond_to_checkpoints(method: str, path: str, headers: dict[str, str], body: Any) -> Answer:
        if path.endswith("/cancellation-scopes/checkpoint"):
            return Answer(404, {}, {"reason": reason})
        return respond(method, path, headers, body)

    monkeypatch.setattr(fake, "respond", respond_to_checkpoints)

    assert run(fake, case(needs=["checkpoints"])) == code
    assert len(fake.heard) == 1 - code


def test_takes_only_true_for_a_capability(run: Callable[..., int]) -> None:
    assert run(Fake(some_capability={"supported": True}), case(needs=["some_capability"])) == 1


def test_refuses_an_unknown_format(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    fake = Fake()

    code = run(fake, case(), format="durable.vectors.v2")

    assert (code, fake.heard) == (2, [])
    said = "some.json: unknown vector format 'durable.vectors.v2'; this runner reads 'durable.vectors.v1'"
    assert capsys.readouterr().err.strip() == said


def test_says_so_when_the_server_cannot_be_reached(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(Fake().respond) as url:
        pass

    assert main(["--url", url]) == 2
    assert "GET /api/cluster/info was not answered" in capsys.readouterr().err


def test_fails_a_case_that_uses_what_nothing_set(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    code = run(Fake(), case(when={"path": "/api/worker/{task}", "body": {}}))

    assert code == 1
    assert "'task' is used before anything set it" in capsys.readouterr().out


def test_says_who_it_is_and_where(run: Callable[..., int]) -> None:
    fake = Fake()

    run(fake, case(), options=["--token", "secret", "--namespace", "elsewhere"])

    ((headers, _),) = fake.heard
    sent = {name.lower(): value for name, value in headers.items()}
    assert sent["authorization"] == "Bearer secret"
    assert sent["x-namespace"] == "elsewhere"
    assert sent[PROTOCOL_HEADER.lower()] == "1.20"
    assert CONTROL_HEADER.lower() not in sent


def test_makes_fresh_names_for_each_case_and_each_run(run: Callable[..., int]) -> None:
    fake = Fake()

    run(fake, case("X1"), case("X2"))
    run(fake, case("X1"), case("X2"))

    assert len({body["worker_id"] for _, body in fake.heard}) == 4


def test_repeats_a_step_within_its_time(run: Callable[..., int]) -> None:
    waiting = {"send": BEAT, "expect": {"status": 200}, "within": 10}
    fake = Fake(409, 409, 200)

    assert run(fake, case(given=[waiting])) == 0
    assert len(fake.heard) == 4


def test_fails_a_step_whose_time_is_over(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    waiting = {"send": BEAT, "expect": {"status": 200}, "within": 0.1}

    assert run(Fake(409), case(given=[waiting])) == 1
    assert "given 1: POST /api/worker/heartbeat" in capsys.readouterr().out


def test_asks_once_where_no_time_is_given(run: Callable[..., int]) -> None:
    fake = Fake(409, 200)

    assert run(fake, case()) == 1
    assert len(fake.heard) == 1


def test_needs_nothing_of_the_server_s_own_code() -> None:
    look = "import sys, tests.protocol.run_vectors; print(sorted({name.partition('.')[0] for name in sys.modules}))"

    shown = subprocess.run(
        [sys.executable, "-c", look], cwd=ROOT, env={"PATH": ""}, capture_output=True, text=True, check=True
    ).stdout

    assert "tests" in shown
    assert not {"django", "durable", "wire", "worker_api", "control_api", "server"} & set(
        json.loads(shown.replace("'", '"'))
    )
