"""A real server process for tests: started on this test's database, killable at any moment."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from django.db import connection

ROOT = Path(__file__).resolve().parent.parent
TOKEN = "test-server-token"


def database_url() -> str:
    """The URL of the database this test runs on, as another process would connect to it."""
    options = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{options['NAME']}"
    scheme = "postgres" if connection.vendor == "postgresql" else "mysql"
    login = options["USER"] + (f":{options['PASSWORD']}" if options["PASSWORD"] else "")
    host = options["HOST"] or "127.0.0.1"
    port = f":{options['PORT']}" if options["PORT"] else ""
    return f"{scheme}://{login}@{host}{port}/{options['NAME']}"


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """`manage.py serve`. `settings` are extra environment variables; a restart keeps port and database."""

    def __init__(self, **settings: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.token = TOKEN
        self.settings = settings
        # What `serve` is told besides the port.
        self.arguments: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.log = Path(os.environ.get("TMPDIR", "/tmp")) / f"durable-test-server-{self.port}.log"
        # Of a server of another day on the same port.
        self.log.unlink(missing_ok=True)

    def environment(self) -> dict[str, str]:
        """What a process of ours needs to use the same database."""
        return {
            **os.environ,
            "DATABASE_URL": database_url(),
            "DURABLE_DEV_TOKEN": TOKEN,
            "SECRET_KEY": "test",
            "LOG_LEVEL": "WARNING",
            **self.settings,
        }

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "manage.py"), "serve", "--port", str(self.port), *self.arguments],
                cwd=ROOT,
                env=self.environment(),
                stdout=log,
                stderr=log,
            )
        self.wait_until_ready()

    def wait_until_ready(self, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"the server ended: {self.log.read_text()[-3000:]}")
            try:
                with urllib.request.urlopen(f"{self.url}/api/ready", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise AssertionError(f"the server is not ready: {self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        """As a crash would: SIGKILL, nothing is tidied up."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
            self.process = None

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """One request over the network."""
        plane = "Protocol" if path.startswith("/api/worker") else "Control-Plane"
        version = "1.20" if plane == "Protocol" else "2"
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Bearer {TOKEN}",
                f"X-Durable-Workflow-{plane}-Version": version,
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=70) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
