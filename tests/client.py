"""The API without a network: the real ASGI handler, views, pool and hub, driven from a test's own thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

from django.conf import settings

from durable.wakeups.runtime import Runtime
from wire.asgi import ApiHandler
from wire.process import set_runtime

TOKEN = "test-development-token"

WORKER_VERSION = {"X-Durable-Workflow-Protocol-Version": "1.20"}
CONTROL_VERSION = {"X-Durable-Workflow-Control-Plane-Version": "2"}

# Called with (method, path, status, request body, response body) for every JSON exchange.
exchange_checks: list[Callable[[str, str, int, Any, Any], None]] = []
# Called with (method, path, answer) for every exchange, whatever its content type.
response_checks: list[Callable[[str, str, Response], None]] = []


@dataclass(frozen=True, slots=True)
class Response:
    """An answer; `body` is its JSON object."""

    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.raw)
        return loaded

    @property
    def plain(self) -> dict[str, Any]:
        """The body without the worker envelope."""
        return {
            key: value for key, value in self.body.items() if key not in ("protocol_version", "server_capabilities")
        }


def _json_or_none(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


@contextmanager
def undocumented() -> Iterator[None]:
    """For answers that a test injects: no route can give them, so the API documents do not describe them."""
    checks = exchange_checks.copy()
    exchange_checks.clear()
    try:
        yield
    finally:
        exchange_checks.extend(checks)


class ApiClient:
    """One serving process's insides. Requests may be sent from several threads at once, or left pending."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="api-loop", daemon=True)
        self._dev_token_before = settings.DURABLE_DEV_TOKEN
        self.runtime: Runtime
        self._handler: ApiHandler

    def __enter__(self) -> Self:
        settings.DURABLE_DEV_TOKEN = TOKEN
        self._thread.start()
        self.wait(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.wait(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        settings.DURABLE_DEV_TOKEN = self._dev_token_before

    async def _start(self) -> None:
        self.runtime = Runtime()
        self.runtime.start()
        set_runtime(self.runtime)
        self._handler = ApiHandler()

    async def _stop(self) -> None:
        await self.runtime.stop()
        set_runtime(None)

    def wait(self, work: Coroutine[Any, Any, Any], seconds: float = 60) -> Any:
        """Run a coroutine in the API's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    # -- requests ------------------------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
        token: str | None = TOKEN,
        chunks: list[bytes] | None = None,
    ) -> Response:
        return self.begin(method, path, body, headers=headers, raw=raw, token=token, chunks=chunks).result(90)

    def begin(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
        token: str | None = TOKEN,
        chunks: list[bytes] | None = None,
    ) -> Future[Response]:
        """Send a request without waiting; `.cancel()` on the result is a client that leaves."""
        plane = WORKER_VERSION if path.startswith("/api/worker") else CONTROL_VERSION
        sent = {"content-type": "application/json", "x-namespace": "default", **plane}
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        for name, value in (headers or {}).items():
            sent = {key: kept for key, kept in sent.items() if key.lower() != name.lower()}
            if value is not None:
                sent[name] = value
        content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        chunks = chunks or [content]
        exchange = self._exchange(method, path, sent, chunks, _json_or_none(b"".join(chunks)))
        return asyncio.run_coroutine_threadsafe(exchange, self._loop)

    async def _exchange(
        self, method: str, path: str, headers: dict[str, str], chunks: list[bytes], body: Any
    ) -> Response:
        url = urlsplit(path)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            # A server decodes percent signs once before the application sees the path.
            "path": unquote(url.path),
            "raw_path": quote(url.path, safe="/%").encode(),
            "query_string": url.query.encode(),
            "headers": [(name.lower().encode(), value.encode("latin1")) for name, value in headers.items()],
            "server": ("testserver", 80),
            "client": ("127.0.0.1", 1),
        }
        pending = list(chunks)
        gone = asyncio.Event()
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if pending:
                chunk = pending.pop(0)
                return {"type": "http.request", "body": chunk, "more_body": bool(pending)}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        serving = asyncio.ensure_future(self._handler(scope, receive, send))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            gone.set()
            await asyncio.gather(serving, return_exceptions=True)
            raise
        start = sent[0]
        response = Response(
            status=start["status"],
            headers={name.decode().lower(): value.decode() for name, value in start["headers"]},
            raw=b"".join(message.get("body", b"") for message in sent[1:]),
        )
        for look in response_checks:
            look(method, url.path, response)
        if response.headers.get("content-type", "").startswith("application/json"):
            for check in exchange_checks:
                check(method, url.path, response.status, body, response.body)
        return response

    def get(self, path: str, **options: Any) -> Response:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Response:
        return self.request("POST", path, {} if body is None else body, **options)

    def delete(self, path: str, **options: Any) -> Response:
        return self.request("DELETE", path, **options)
