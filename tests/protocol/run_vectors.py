"""Run the protocol's vectors against any server that speaks it, over plain HTTP (docs/protocol/vectors.md).

    python -m tests.protocol.run_vectors --url http://127.0.0.1:8000 --token … [--lease-seconds 3] [files…]

Exit code 0: every case passed. 1: a case failed, or was not run because the server lacks what it needs (unless
--allow-not-run). 2: the vectors cannot be read, or the server cannot be reached.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.protocol.vector_format import (
    Case,
    Comparison,
    Expectation,
    Observation,
    Request,
    Step,
    Variables,
    VectorError,
    fill,
    fill_path,
    read_cases,
    shown,
)

VECTORS = Path(__file__).parent / "vectors"
PROTOCOL_VERSION = "1.20"
PROTOCOL_HEADER = "X-Durable-Workflow-Protocol-Version"
CONTROL_HEADER = "X-Durable-Workflow-Control-Plane-Version"
# What every answer of the worker plane has besides its own fields.
ENVELOPE = ("protocol_version", "server_capabilities")
REPEAT_SECONDS = 0.05
# How long after its expiry a lease may still stand before the server has taken it back, with room for a slow machine.
RECOVERY_SECONDS = 8.0

quote_segment = partial(urllib.parse.quote, safe="")


class NoAnswer(Exception):
    """The server did not answer, or not with a JSON object."""


class Mismatch(Exception):
    """The server did something else than the vector says. The arguments are lines for people."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass(slots=True)
class Server:
    """A server under test, as the command line names it, and what its discovery says."""

    url: str
    token: str = ""
    namespace: str = "default"
    # How long the server's leases are; None if they are too long to wait for.
    lease_seconds: float | None = None
    capabilities: dict[str, Any] = field(default_factory=dict)

    def discover(self) -> None:
        """Read the capabilities."""
        answer = self.call("GET", "/api/cluster/info")
        try:
            self.capabilities = answer.body["worker_protocol"]["server_capabilities"]
        except (KeyError, TypeError):
            raise NoAnswer(f"discovery has no worker_protocol.server_capabilities: {shown(answer.body)}") from None

    def lacks(self, need: str) -> bool:
        """`short_lease`, `checkpoints`, a capability, or `not` and a capability."""
        if need == "short_lease":
            return self.lease_seconds is None
        if need == "checkpoints":
            return not self._takes_checkpoints()
        name = need.removeprefix("not ")
        return (self.capabilities.get(name) is True) is need.startswith("not ")

    def _takes_checkpoints(self) -> bool:
        """No capability tells of the route, but a server that has it does not know the task."""
        body = {"lease_owner": "-", "workflow_task_attempt": 1, "checkpoint_id": "-", "start_sequence": 1}
        commands = [{"type": "schedule_activity", "activity_type": "-"}]
        path = "/api/worker/workflow-tasks/01NOSUCHTASK/cancellation-scopes/checkpoint"
        return self.call("POST", path, {**body, "commands": commands}).body.get("reason") == "task_not_found"

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        plane = {PROTOCOL_HEADER: PROTOCOL_VERSION} if is_worker_plane(path) else {CONTROL_HEADER: "2"}
        sent = {"Content-Type": "application/json", "X-Namespace": self.namespace, **plane, **(headers or {})}
        if self.token:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url.rstrip("/") + path, data=content, method=method, headers=sent)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return _answer(response.status, response.headers, response.read())
        except urllib.error.HTTPError as error:
            with error:
                return _answer(error.code, error.headers, error.read())
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(f"{method} {path} was not answered: {error}") from error


def _answer(status: int, headers: Any, content: bytes) -> Answer:
    try:
        body = json.loads(content)
    except ValueError:
        raise NoAnswer(f"{status} without JSON: {content[:200]!r}") from None
    if not isinstance(body, dict):
        raise NoAnswer(f"{status} without a JSON object: {content[:200]!r}")
    return Answer(status, {name.lower(): value for name, value in headers.items()}, body)


def is_worker_plane(path: str) -> bool:
    return path.startswith("/api/worker/")


# -- one case ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a case. `lines` say what is wrong, or what the server lacks."""

    case: Case
    verdict: str
    lines: list[str]


def run_case(case: Case, server: Server) -> Result:
    """Bring about the state, send the case's requests, compare the answers, look at what changed."""
    if lacking := [need for need in case.needs if server.lacks(need)]:
        return Result(case, "NOT RUN", [f"needs: {need}" for need in lacking])
    try:
        _run(case, server, Variables(case.variables))
    except (Mismatch, NoAnswer, VectorError) as error:
        return Result(case, "FAIL", [str(line) for line in error.args])
    return Result(case, "PASS", [])


def _run(case: Case, server: Server, variables: Variables) -> None:
    for number, step in enumerate(case.given, 1):
        _take(step, server, variables, f"given {number}")
    observed = [change for change in case.changed if isinstance(change, Observation)]
    before = [_events(change, server, variables) for change in observed]
    for number, step in enumerate(case.when, 1):
        _take(step, server, variables, f"when {number}")
    histories = iter(before)
    for number, change in enumerate(case.changed, 1):
        if isinstance(change, Observation):
            _observe(change, next(histories), server, variables, f"changed {number}")
        else:
            _take(change, server, variables, f"changed {number}")


def _take(step: Step, server: Server, variables: Variables, where: str) -> None:
    """Send a step's request; Mismatch if the answer is another one, or still is when the time is over."""
    path = fill_path(step.send.path, variables, quote_segment)
    deadline = time.monotonic() + _patience(step, server)
    while True:
        answer = _send(step.send, path, server, variables)
        comparison = _compare(step.expect, answer, path, server, variables)
        if not comparison.differences:
            variables.keep(comparison.captured)
            return
        if time.monotonic() >= deadline:
            raise Mismatch(f"{where}: {step.send.method} {path}", *comparison.differences)
        time.sleep(REPEAT_SECONDS)


def _patience(step: Step, server: Server) -> float:
    if step.within == "lease":
        if server.lease_seconds is None:
            raise VectorError('a step within "lease" needs short_lease')
        return server.lease_seconds + RECOVERY_SECONDS
    return float(step.within or 0)


def _send(request: Request, path: str, server: Server, variables: Variables) -> Answer:
    return server.call(request.method, path, fill(request.body, variables), fill(request.headers, variables))


def _compare(expect: Expectation, answer: Answer, path: str, server: Server, variables: Variables) -> Comparison:
    comparison = Comparison.begin(variables)
    if expect.status != answer.status and (expect.status is not None or answer.status // 100 != 2):
        expected = "2xx" if expect.status is None else expect.status
        comparison.differences.append(f"status: expected {expected}, got {answer.status}: {shown(_plain(answer))}")
    if is_worker_plane(path):
        _compare_envelope(answer, server, comparison)
        comparison.compare(expect.body, _plain(answer), "body")
    else:
        comparison.compare(expect.body, answer.body, "body")
    return comparison


def _plain(answer: Answer) -> dict[str, Any]:
    return {key: value for key, value in answer.body.items() if key not in ENVELOPE}


def _compare_envelope(answer: Answer, server: Server, comparison: Comparison) -> None:
    found = {name: answer.body[name] for name in ENVELOPE if name in answer.body}
    comparison.compare({"protocol_version": PROTOCOL_VERSION, "server_capabilities": {"$any": True}}, found, "envelope")
    if found.get("server_capabilities", server.capabilities) != server.capabilities:
        comparison.differences.append("envelope.server_capabilities: not the ones of discovery")
    comparison.compare(PROTOCOL_VERSION, answer.headers.get(PROTOCOL_HEADER.lower()), f"header {PROTOCOL_HEADER}")


# -- what changed ------------------------------------------------------------------------------------------------------


def _run_path(observation: Observation, variables: Variables) -> str:
    workflow_id, run_id = (fill(name, variables) for name in (observation.workflow_id, observation.run_id))
    return f"/api/workflows/{quote_segment(workflow_id)}/runs/{quote_segment(run_id)}"


def _read(server: Server, path: str, *fields: str) -> dict[str, Any]:
    answer = server.call("GET", path)
    if answer.status != 200 or not answer.body.keys() >= set(fields):
        raise Mismatch(
            f"GET {path}", f"expected 200 with {', '.join(fields)}, got {answer.status}: {shown(answer.body)}"
        )
    return answer.body


def _events(observation: Observation, server: Server, variables: Variables) -> list[dict[str, Any]]:
    """The whole history of a run, as the control plane shows it."""
    path = f"{_run_path(observation, variables)}/history?page_size=1000"
    events: list[dict[str, Any]] = []
    next_page = path
    while next_page:
        page = _read(server, next_page, "events", "next_page_token")
        events += page["events"]
        token = page["next_page_token"]
        next_page = f"{path}&next_page_token={quote_segment(token)}" if token else ""
    return events


def _observe(
    observation: Observation, before: list[dict[str, Any]], server: Server, variables: Variables, where: str
) -> None:
    comparison = Comparison.begin(variables)
    path = _run_path(observation, variables)
    comparison.compare(observation.status, _read(server, path, "status")["status"], "run status")
    after = _events(observation, server, variables)
    if after[: len(before)] != before:
        comparison.differences.append("history: what was recorded before has changed")
    appended = [event.get("event_type") for event in after[len(before) :]]
    comparison.compare(observation.appended, appended, "history: events appended")
    sequences = [event.get("sequence") for event in after]
    comparison.compare(list(range(1, len(after) + 1)), sequences, "history: sequences")
    if comparison.differences:
        raise Mismatch(f"{where}: {path}", *comparison.differences)


# -- all cases ---------------------------------------------------------------------------------------------------------


def run_cases(cases: list[Case], server: Server, *, jobs: int = 4) -> Iterator[Result]:
    """The results in the order of the cases. Cases share no names, so several run at once."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda case: run_case(case, server), cases)


def report(results: Iterator[Result], write: Callable[[str], Any]) -> dict[str, int]:
    """A line for each case, and what is wrong below it; the number of cases by verdict."""
    counts = {"PASS": 0, "FAIL": 0, "NOT RUN": 0}
    for result in results:
        counts[result.verdict] += 1
        write(f"{result.verdict:<8}{result.case.id}  {result.case.title}\n")
        for line in result.lines:
            write(f"        {line}\n")
    write(f"{counts['PASS']} passed, {counts['FAIL']} failed, {counts['NOT RUN']} not run\n")
    return counts


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    server = Server(options.url, options.token, options.namespace, options.lease_seconds)
    try:
        cases = [case for path in options.files or sorted(VECTORS.glob("*.json")) for case in read_cases(path)]
        server.discover()
    except (VectorError, NoAnswer) as error:
        print(error, file=sys.stderr)
        return 2
    counts = report(run_cases(cases, server, jobs=options.jobs), sys.stdout.write)
    return 1 if counts["FAIL"] or not cases or (counts["NOT RUN"] and not options.allow_not_run) else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.protocol.run_vectors", description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True, help="the server's origin, without /api")
    parser.add_argument("--token", default="", help="a bearer token for the worker plane and the control plane")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--lease-seconds", type=float, help="how long the server's leases are, if short: cases wait")
    parser.add_argument("--allow-not-run", action="store_true", help="succeed although cases were not run")
    parser.add_argument("--jobs", type=int, default=4, help="how many cases run at once")
    parser.add_argument("files", nargs="*", type=Path, help="vector files; all of tests/protocol/vectors if none")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
