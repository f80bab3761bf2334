"""`python -m benchmarks.peers`: what may be asked for, the peers' environment, and the starter's conversation."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import contextmanager

import pytest

from benchmarks.peers import environment
from benchmarks.peers.__main__ import chosen_systems, parse_arguments
from benchmarks.peers.starter_process import WrongOutcome, run_starter
from benchmarks.processes import PROJECT
from benchmarks.steps import Options

# Arguments


def systems_for(*arguments):
    options = Options(
        workflow_count=1,
        worker_count=1,
        activity_ms=1.0,
        deadline_seconds=1.0,
        manage=PROJECT / "manage.py",
        directory=None,
        servers={},
    )
    return chosen_systems(parse_arguments(arguments), options)


def test_compares_every_database_of_ours_with_every_peer_by_default():
    systems = systems_for()

    assert [system.name for system in systems if system.is_ours] == [
        "durable sqlite raw",
        "durable postgres raw",
        "durable mariadb raw",
    ]
    assert [system.name for system in systems if not system.is_ours] == ["dbos-sqlite", "dbos-postgres", "temporal"]


def test_compares_what_is_asked_for_in_that_order():
    names = [system.name for system in systems_for("--ours", "mariadb", "--ours-worker", "sdk,raw", "--peers=temporal")]

    assert names == ["durable mariadb sdk", "durable mariadb raw", "temporal"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--peers", "temporal,celery"),
        ("--peers", "temporal,temporal"),
        ("--peers", ""),
        ("--ours", "mysql"),
        ("--ours-worker", "both"),
        ("--rounds", "0"),
        ("--workflows", "-1"),
    ],
    ids=" ".join,
)
def test_refuses_what_it_does_not_know(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_arguments(arguments)

    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


# The peers' environment


class Installation:
    """An environment in a new directory. The commands that would make it are noted, and end with `exit_code`."""

    def __init__(self, directory):
        self.environment = directory / "environment"
        self.environment.mkdir()
        self.requirements = directory / "requirements.txt"
        self.requirements.write_text("one\n")
        self.commands = []
        self.exit_code = 0

    def run(self, command):
        self.commands.append(command)
        return subprocess.CompletedProcess(command, self.exit_code)

    def install(self):
        environment.install(self.environment, self.requirements)


@pytest.fixture
def installation(monkeypatch, tmp_path):
    installation = Installation(tmp_path)
    monkeypatch.setattr(subprocess, "run", installation.run)
    return installation


def test_makes_the_environment_once(installation):
    installation.install()
    venv, pip = installation.commands

    installation.install()

    assert installation.commands == [venv, pip]
    assert venv[-1] == str(installation.environment)
    assert pip[0].startswith(str(installation.environment))


def test_makes_the_environment_again_when_the_requirements_changed(installation):
    installation.install()
    installation.requirements.write_text("two\n")

    installation.install()

    assert len(installation.commands) == 4


def test_makes_the_environment_again_after_a_failure(installation):
    installation.exit_code = 1
    with pytest.raises(environment.NotInstalled):
        installation.install()
    assert len(installation.commands) == 1
    installation.exit_code = 0

    installation.install()

    assert len(installation.commands) == 3


def test_keeps_a_developers_own_settings_from_the_peers(monkeypatch):
    monkeypatch.setenv("DBOS_CONDUCTOR_KEY", "secret")
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
    monkeypatch.setenv("LANG", "C")

    variables = environment.variables()

    assert variables["LANG"] == "C"
    assert not {"DBOS_CONDUCTOR_KEY", "TEMPORAL_ADDRESS"} & set(variables)


def test_gives_the_peers_programs_only_what_needs_the_standard_library_alone():
    shared = "benchmarks.peers.starter_process, benchmarks.worker_process, benchmarks.workload"
    program = f"import sys; sys.path.insert(0, {str(PROJECT)!r}); import {shared}"

    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


# The starter's conversation


class Recorder:
    def __init__(self, options):
        self.options = options
        self.calls = []

    def start(self, workflow_ids):
        self.calls.append(("start", workflow_ids))

    def check(self, workflow_ids):
        self.calls.append(("check", workflow_ids))
        if "lost" in workflow_ids:
            raise WrongOutcome("lost is gone")
        return 1234.5


def converse(monkeypatch, capsys, words, *workflow_ids):
    """Hold the conversation; the starter that was connected, and what was reported."""
    connected = []

    @contextmanager
    def connect(options):
        connected.append(Recorder(options))
        yield connected[-1]

    monkeypatch.setattr(sys, "argv", ["starter", "--url", "somewhere", "--polling-seconds", "0.5", *workflow_ids])
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{word}\n" for word in words)))
    try:
        run_starter(connect, "A starter.")
    finally:
        reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return connected[0], reports


def test_starts_and_checks_when_told_to(monkeypatch, capsys):
    starter, (ready, started, checked) = converse(monkeypatch, capsys, ["start", "check"], "a", "b")

    assert (starter.options.url, starter.options.polling_seconds) == ("somewhere", 0.5)
    assert starter.calls == [("start", ["a", "b"]), ("check", ["a", "b"])]
    assert ready == {"event": "ready"}
    assert started["event"] == "started"
    assert started["starting_seconds"] >= 0
    assert checked == {"event": "checked", "last_closed_at": 1234.5}


def test_does_nothing_before_it_is_told(monkeypatch, capsys):
    starter, reports = converse(monkeypatch, capsys, [], "a")

    assert starter.calls == []
    assert reports == [{"event": "ready"}]


def test_ends_with_an_error_when_the_outcome_is_wrong(monkeypatch, capsys):
    with pytest.raises(WrongOutcome):
        converse(monkeypatch, capsys, ["start", "check"], "lost")


def test_runs_raw_workers_in_each_way_of_carrying_and_the_sdk_without() -> None:
    names = [
        system.name
        for system in systems_for(
            "--ours", "sqlite", "--ours-worker", "sdk,raw", "--carry", "off,inline", "--peers=temporal"
        )
    ]

    assert names == ["durable sqlite sdk", "durable sqlite raw", "durable sqlite raw carry=inline", "temporal"]


def test_refuses_to_compare_sdk_workers_that_carry() -> None:
    with pytest.raises(SystemExit):
        systems_for("--ours-worker", "sdk", "--carry", "inline")
