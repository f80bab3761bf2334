"""Run the server for a developer: `make up`, and `make demo` with a worker and ten workflows besides.

Both migrate the database, make an admin user and tokens, start `manage.py serve`, and stay until Ctrl-C or SIGTERM.
What must be the same next time (token, password) is kept in `.dev-…` files beside manage.py, which git ignores.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
CLIENT = "demo"
READY_SECONDS = 30
STOP_SECONDS = 5


class CannotGoOn(Exception):
    """The message is for people and says what to do."""


class Stopped(BaseException):
    """Ctrl-C, SIGTERM or SIGHUP. Like KeyboardInterrupt, not an Exception: no `except Exception` may swallow it."""


@dataclass(slots=True)
class Children:
    """The processes we started, stopped in the reverse order of their start."""

    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, *command: str | Path, environment: dict[str, str], log: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Each child gets its own session: Ctrl-C reaches only us, and `stop` reaches its children too."""
        output = log.open("wb") if log else None
        child = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        if output:
            output.close()
        self.running.append(child)
        return child

    def stop(self) -> None:
        while self.running:
            child = self.running.pop()
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(timeout=STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    print(f"process {child.pid} did not stop within {STOP_SECONDS} s and was killed", flush=True)
            kill_session(child.pid)
            child.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=["up", "demo"])
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()

    restore_terminal = take_terminal()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)

    children = Children()
    try:
        run(arguments.mode, arguments.port, children)
        return 0
    except Stopped:
        print("\nstopping", flush=True)
        return 0
    except CannotGoOn as problem:
        print(f"make {arguments.mode}: {problem}", file=sys.stderr, flush=True)
        return 1
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave a child behind
        children.stop()
        restore_terminal()


def run(mode: str, port: int, children: Children) -> None:
    url = f"http://{HOST}:{port}"
    environment = development_environment()
    require_free_port(port)

    say("migrating the database")
    manage("migrate", "--no-input", environment=environment)
    ensure_admin(environment)

    log = ROOT / ".dev-server.log" if mode == "demo" else None
    server = children.start("manage.py", "serve", "--host", HOST, "--port", str(port), environment=environment, log=log)
    wait_until_ready(url, server, log)
    token = ensure_client_token(url, environment)

    if mode == "demo":
        client_environment = {**os.environ, "DURABLE_URL": url, "DURABLE_TOKEN": token}
        worker_log = ROOT / ".dev-worker.log"
        children.start("examples/demo/worker.py", environment=client_environment, log=worker_log)
        demo = children.start("examples/demo/run.py", environment=client_environment)
        if demo.wait() != 0:
            raise CannotGoOn(f"the demo failed; see {log} and {worker_log}")

    print_addresses(url, environment, token)
    if server.wait() != 0:
        said = f"its log is {log}" if log else "it says why above"
        raise CannotGoOn(f"the server ended with exit code {server.returncode}; {said}")


def development_environment() -> dict[str, str]:
    return {
        **os.environ,
        "DEBUG": "1",
        "DURABLE_DEV_TOKEN": os.environ.get("DURABLE_DEV_TOKEN") or keep(".dev-token", secrets.token_urlsafe),
        "DJANGO_SUPERUSER_USERNAME": "admin",
        "DJANGO_SUPERUSER_EMAIL": "admin@localhost",
        "DJANGO_SUPERUSER_PASSWORD": keep(".dev-admin-password", lambda: secrets.token_urlsafe(9)),
    }


def keep(name: str, make: Callable[[], str]) -> str:
    """The secret kept in this file; made, and readable for its owner alone, the first time."""
    path = ROOT / name
    if not path.exists():
        write_secret(path, make())
    return path.read_text().strip()


def write_secret(path: Path, secret: str) -> None:
    path.touch(mode=0o600)
    path.write_text(f"{secret}\n")


def manage(*command: str, environment: dict[str, str]) -> str:
    done = try_manage(*command, environment=environment)
    if done.returncode != 0:
        raise CannotGoOn(f"manage.py {command[0]} failed:\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def try_manage(*command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *command],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def ensure_admin(environment: dict[str, str]) -> None:
    done = try_manage("createsuperuser", "--noinput", environment=environment)
    if done.returncode != 0 and "already taken" not in done.stderr:
        raise CannotGoOn(f"manage.py createsuperuser failed:\n{done.stderr}")


def ensure_client_token(url: str, environment: dict[str, str]) -> str:
    """The token kept from the last run on this database while the server still knows it, else a new one."""
    database = hashlib.sha256(environment.get("DATABASE_URL", "").encode()).hexdigest()[:8]
    path = ROOT / f".dev-client-token-{database}"
    if path.exists() and is_known_token(url, path.read_text().strip()):
        return path.read_text().strip()

    roles = ("--role", "worker", "--role", "operator")
    done = try_manage("create_token", "--client", CLIENT, *roles, "--namespace", "default", environment=environment)
    if done.returncode != 0:
        say(f"no token for {CLIENT}, so its dev token stands in: {done.stderr.strip().splitlines()[-1]}")
        return environment["DURABLE_DEV_TOKEN"]
    write_secret(path, done.stdout.strip().splitlines()[-1])
    return path.read_text().strip()


def is_known_token(url: str, token: str) -> bool:
    return status_of(f"{url}/api/cluster/info", token) == 200


def status_of(url: str, token: str | None = None) -> int | None:
    """The HTTP status, None when nothing answers."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=2) as response:
            status: int = response.status
            return status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def require_free_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise CannotGoOn(f"port {port} cannot be used ({error.strerror}); choose another: PORT=8001") from None


def wait_until_ready(url: str, server: subprocess.Popen[bytes], log: Path | None) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while status_of(f"{url}/api/ready") != 200:
        if server.poll() is not None or time.monotonic() > deadline:
            end = "ended" if server.poll() is not None else f"was not ready after {READY_SECONDS} s"
            said = f"; its log {log} ends:\n{log.read_text()[-2000:]}" if log else "; it says why above"
            raise CannotGoOn(f"the server {end}{said}")
        time.sleep(0.1)


def print_addresses(url: str, environment: dict[str, str], token: str) -> None:
    print(
        f"""
  Admin      {url}/admin/
  Login      {environment["DJANGO_SUPERUSER_USERNAME"]} / {environment["DJANGO_SUPERUSER_PASSWORD"]}
  API        {url}/api/
  Token      {token}   (client "{CLIENT}": worker and operator in namespace default)
  Dev token  {environment["DURABLE_DEV_TOKEN"]}   (every role in every namespace; never in production)

  Ctrl-C stops everything.
""",
        flush=True,
    )


def say(message: str) -> None:
    print(f"- {message}", flush=True)


def stop(signal_number: int, frame: object) -> None:
    raise Stopped


def kill_session(session: int) -> None:
    """End what a child may have left behind in the session it led."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)


def take_terminal() -> Callable[[], None]:
    """Become the terminal's foreground process group, so that Ctrl-C reaches us and not make, which would report an
    error and exit with 130. Returns what gives the terminal back. Without a terminal, nothing is done.
    """
    if not sys.stdin.isatty():
        return lambda: None

    terminal = sys.stdin.fileno()
    before = os.tcgetpgrp(terminal)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # else a background group that calls tcsetpgrp is stopped
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # Ctrl-Z would hang the terminal: make does not know we stopped
    os.setpgid(0, 0)
    os.tcsetpgrp(terminal, os.getpgrp())
    return lambda: os.tcsetpgrp(terminal, before)


if __name__ == "__main__":
    sys.exit(main())
