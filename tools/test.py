"""What `make test` runs: the whole suite on SQLite, then every test that uses a database on PostgreSQL and MariaDB.

Exit code 0 means: everything that could run, ran and passed. A database that is not there is reported and left out;
with `--require-all` it is a failure. The last line sums up: `N passed, M failed, K skipped`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from tools.databases import OPENERS, Database, DatabaseMissing

ROOT = Path(__file__).resolve().parent.parent
NO_TEST_SELECTED = 5  # pytest's exit code


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    database: str
    note: str
    is_ok: bool
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        verdict = "ok    " if self.is_ok else "FAILED"
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped in {self.seconds:.0f} s"
        return f"{self.database:<9} {verdict} {counts} ({self.note})"


def main() -> int:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that private servers are stopped

    wanted = list(OPENERS) if arguments.database == "all" else [arguments.database]
    outcomes = [test_on(name, arguments.pytest_arguments, require=arguments.require_all) for name in wanted]

    print()
    for outcome in outcomes:
        print(outcome)
    passed, failed, skipped = (sum(getattr(o, field) for o in outcomes) for field in ("passed", "failed", "skipped"))
    is_ok = all(outcome.is_ok for outcome in outcomes) and passed + skipped > 0
    if not is_ok and failed == 0:
        failed = 1  # a run that broke before it could count anything still counts as one failure
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 0 if is_ok else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make test", description=__doc__)
    parser.add_argument("--database", choices=["all", *OPENERS], default="all")
    parser.add_argument("--require-all", action="store_true", help="a missing database is a failure")
    parser.add_argument("pytest_arguments", nargs="*", help="passed on to pytest, after --")
    return parser.parse_args()


def test_on(name: str, pytest_arguments: list[str], *, require: bool) -> Outcome:
    try:
        with OPENERS[name]() as database:
            print(f"\n--- {name} ({database.origin})", flush=True)
            return run_pytest(database, pytest_arguments)
    except DatabaseMissing as missing:
        print(f"\n--- {name}: {missing}", flush=True)
        return Outcome(database=name, note=f"not tested: {missing}", is_ok=not require)


def run_pytest(database: Database, pytest_arguments: list[str]) -> Outcome:
    only_database_tests = [] if database.name == "sqlite" else ["-m", "django_db or database"]
    with tempfile.TemporaryDirectory(prefix="durable-test-") as directory:
        report = Path(directory) / "report.xml"
        # Tests that share something costly are marked as one group, which stays in one process.
        parallel = ["-n", "auto", "--dist", "loadgroup"]
        command = [sys.executable, "-m", "pytest", *parallel, f"--junitxml={report}", "-o", "junit_logging=no"]
        started = time.monotonic()
        exit_code = subprocess.run(
            [*command, *only_database_tests, *pytest_arguments], cwd=ROOT, env=environment_for(database)
        ).returncode
        seconds = time.monotonic() - started
        passed, failed, skipped = read_counts(report)

    if exit_code == NO_TEST_SELECTED and pytest_arguments:
        return Outcome(database=database.name, note="no test selected", is_ok=True)
    return Outcome(
        database=database.name,
        note=database.origin if exit_code in (0, 1) else f"pytest ended with exit code {exit_code}",
        is_ok=exit_code == 0,
        passed=passed,
        failed=failed,
        skipped=skipped,
        seconds=seconds,
    )


def environment_for(database: Database) -> dict[str, str]:
    """The developer's own DURABLE_… settings must not change what the tests see."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DURABLE_")}
    return {**inherited, "DEBUG": "1", "DATABASE_URL": database.url}


def read_counts(report: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped. pytest writes the report last: without it, the run broke off."""
    if not report.exists():
        return 0, 0, 0
    passed = failed = skipped = 0
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed += 1
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
