"""Create `.venv` with everything to run and test. Runs on the system's Python, with its standard library alone.

The PostgreSQL driver comes as a wheel. The MySQL driver must be compiled: when that fails and we are root on Debian,
its headers are installed with apt; otherwise one line says what is missing, and everything else works.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"

OLDEST_PYTHON = (3, 11)
MYSQL_BUILD_PACKAGES = ["libmariadb-dev", "pkg-config", "gcc", "python3-dev"]


def main() -> None:
    if sys.version_info < OLDEST_PYTHON:
        sys.exit(
            f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}. Use: make install PYTHON=python3.12"
        )

    create_venv()
    pip("requirements.txt", "requirements-dev.txt")
    install_mysql_driver()


def create_venv() -> None:
    if (
        VENV_PYTHON.exists()
        and subprocess.run([VENV_PYTHON, "-m", "pip", "--version"], capture_output=True).returncode == 0
    ):
        return

    if not can_create_venv():
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        if not apt_install([package]) or not can_create_venv():
            sys.exit(f"This Python cannot create virtual environments. Install its venv module (Debian: {package}).")

    say("creating .venv")
    subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)


def can_create_venv() -> bool:
    """Debian ships Python without ensurepip; ask in a new process, since a package may just have been installed."""
    return subprocess.run([sys.executable, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0


def pip(*requirement_files: str) -> None:
    say(f"installing {' and '.join(requirement_files)}")
    if pip_install(*requirement_files, quiet=False) != 0:
        sys.exit("pip could not install the requirements; its reasons are above.")


def pip_install(*requirement_files: str, quiet: bool) -> int:
    files = [argument for name in requirement_files for argument in ("-r", str(ROOT / name))]
    command = [str(VENV_PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *files]
    return subprocess.run(command, capture_output=quiet).returncode


def install_mysql_driver() -> None:
    say("installing requirements-mysql.txt (compiles mysqlclient)")
    if pip_install("requirements-mysql.txt", quiet=True) == 0:
        return
    if apt_install(MYSQL_BUILD_PACKAGES) and pip_install("requirements-mysql.txt", quiet=True) == 0:
        return
    say(
        "MySQL support is missing: mysqlclient could not be compiled. SQLite and PostgreSQL work. "
        f"To add it: apt-get install {' '.join(MYSQL_BUILD_PACKAGES)} && make -B install"
    )


def apt_install(packages: list[str]) -> bool:
    """Install Debian packages if this is root on a machine with apt. False when they could not be installed."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False

    say(f"apt-get install {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],
    ):
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            say(f"{' '.join(command[:2])} failed: {(done.stderr or done.stdout).strip()}")
            return False
    return True


def say(message: str) -> None:
    print(f"install: {message}", flush=True)


if __name__ == "__main__":
    main()
