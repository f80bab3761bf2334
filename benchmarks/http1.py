"""A light HTTP/1.1 client: one request at a time on each kept-alive connection, plain TCP, JSON in and bytes out.

It exists because the client's own cost is part of every number measured on a small machine. It knows exactly what a
local JSON server sends: a status line, headers, and a body with a length or in chunks. It follows no redirects,
decompresses nothing, and resends a request only when a kept-alive connection turns out to be closed before one byte
of the answer arrived.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from benchmarks.workload import JsonObject


class ConnectionLost(Exception):
    """The connection, or the time allowed, ended before the answer was complete."""


class UnexpectedAnswer(Exception):
    """The server answered with a status the caller has no use for."""


class _StaleConnection(Exception):
    """A kept-alive connection was closed by the server before it answered anything."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    def json(self) -> JsonObject:
        """The body as a JSON object.

        Raises UnexpectedAnswer when it is anything else.
        """
        try:
            decoded = json.loads(self.body)
        except ValueError as error:
            raise UnexpectedAnswer(f"status {self.status}, not JSON: {self.body[:200]!r}") from error
        if not isinstance(decoded, dict):
            raise UnexpectedAnswer(f"status {self.status}, not a JSON object: {self.body[:200]!r}")
        return decoded

    def expect(self, *statuses: int) -> JsonObject:
        """The body as a JSON object if the status is one of these.

        Raises UnexpectedAnswer otherwise, with the start of the body.
        """
        if self.status not in statuses:
            raise UnexpectedAnswer(f"status {self.status}: {self.body[:500].decode(errors='replace')}")
        return self.json()


class _Connection(asyncio.Protocol):
    """One connection. `exchange` must not be called again before it returned."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._received = bytearray()
        self.is_reusable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_reusable = False
        if self._received:
            self._fail(ConnectionLost(str(exc or "closed in the middle of an answer")))
        else:
            self._fail(_StaleConnection())

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            answer = self._parse()
        except ValueError as error:
            self.close()
            self._fail(ConnectionLost(f"unreadable answer: {error}"))
            return
        if answer is None or self._waiting is None or self._waiting.done():
            return
        self._received.clear()
        self._waiting.set_result(answer)

    async def exchange(self, message: bytes, timeout_seconds: float) -> Answer:
        """Send one request and wait for its answer.

        Raises ConnectionLost or _StaleConnection; after both, and after a cancellation, the connection is closed.
        """
        if self._transport is None or not self.is_reusable:
            raise _StaleConnection
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        self._transport.write(message)
        deadline = loop.call_later(timeout_seconds, self._expire, timeout_seconds)
        try:
            return await self._waiting
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            deadline.cancel()
            self._waiting = None

    def close(self) -> None:
        self.is_reusable = False
        if self._transport is not None:
            self._transport.abort()

    def _expire(self, timeout_seconds: float) -> None:
        self._fail(ConnectionLost(f"no answer within {timeout_seconds:g} s"))
        self.close()

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def _parse(self) -> Answer | None:
        """The answer, or None while it is incomplete."""
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            return None
        head = bytes(self._received[:head_end]).lower()
        status = int(head[9:12])
        if b"\r\nconnection: close" in head:
            self.is_reusable = False
        if b"\r\ntransfer-encoding: chunked" in head:
            body = _unchunk(self._received, head_end + 4)
            return None if body is None else Answer(status, body)
        at = head.find(b"\r\ncontent-length:")
        length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._received) < head_end + 4 + length:
            return None
        return Answer(status, bytes(self._received[head_end + 4 : head_end + 4 + length]))


def _unchunk(received: bytearray, at: int) -> bytes | None:
    """The body that starts at this offset in chunked form, or None while it is incomplete."""
    body = bytearray()
    while True:
        line_end = received.find(b"\r\n", at)
        if line_end < 0:
            return None
        size = int(bytes(received[at:line_end]).split(b";")[0], 16)
        chunk_end = line_end + 2 + size
        if len(received) < chunk_end + 2:
            return None
        if size == 0:
            return bytes(body)
        body += received[line_end + 2 : chunk_end]
        at = chunk_end + 2


class Client:
    """A pool of connections to one server. As many are opened as requests are under way at once."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None or parts.port is None:
            raise ValueError(f"need an address like http://127.0.0.1:8000, not {url!r}")
        self._host = parts.hostname
        self._port = parts.port
        lines = [f"Host: {parts.hostname}:{parts.port}", "Accept: application/json", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._headers = "\r\n".join(lines)
        self._idle: list[_Connection] = []

    async def request(
        self, method: str, path: str, body: JsonObject | None = None, *, timeout_seconds: float = 30.0
    ) -> Answer:
        """Send one request; the time-out starts anew when a closed kept-alive connection made a resend necessary.

        Raises ConnectionLost when no complete answer came in time, OSError when the server cannot be reached.
        """
        content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        head = f"{method} {path} HTTP/1.1\r\n{self._headers}\r\nContent-Length: {len(content)}\r\n\r\n"
        message = head.encode() + content
        while True:
            is_kept_alive = bool(self._idle)
            connection = self._idle.pop() if is_kept_alive else await self._connect()
            try:
                answer = await connection.exchange(message, timeout_seconds)
            except _StaleConnection:
                if is_kept_alive:
                    continue
                raise ConnectionLost("the server closed the connection without an answer") from None
            if connection.is_reusable:
                self._idle.append(connection)
            else:
                connection.close()
            return answer

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, self._host, self._port)
        return connection
