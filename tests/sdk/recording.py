"""What the SDK puts on the wire: every request that leaves this process through httpx, in order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import httpx

_IDS = re.compile(r"(?<=/workflows/)[^/]+|(?<=/runs/)[^/]+|(?<=-tasks/)(?!poll)[^/]+|(?<=/registrations/)[^/]+")


@dataclass(frozen=True, slots=True)
class Sent:
    """A request by its route, ids replaced by `*`, and the status it was answered with."""

    route: str
    status: int


@contextmanager
def recorded_requests() -> Iterator[list[Sent]]:
    """The requests that are sent inside the block; one is added when its answer arrives."""
    sent: list[Sent] = []
    original = httpx.AsyncHTTPTransport.handle_async_request

    async def handle(transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        response = await original(transport, request)
        path = _IDS.sub("*", request.url.path.removeprefix("/api"))
        sent.append(Sent(f"{request.method} {path}", response.status_code))
        return response

    with mock.patch.object(httpx.AsyncHTTPTransport, "handle_async_request", handle):
        yield sent


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its answer in full, headers of the protocol included."""

    request: str
    headers: dict[str, str]
    sent: Any
    status: int
    received: Any


@contextmanager
def recorded_exchanges() -> Iterator[list[Exchange]]:
    """Every exchange inside the block in full; one is added when its answer arrives."""
    exchanges: list[Exchange] = []
    original = httpx.AsyncHTTPTransport.handle_async_request

    async def handle(transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        response = await original(transport, request)
        await response.aread()
        exchanges.append(
            Exchange(
                request=f"{request.method} {request.url.raw_path.decode()}",
                headers={name: value for name, value in request.headers.items() if name != "host"},
                sent=json.loads(request.content) if request.content else None,
                status=response.status_code,
                received=json.loads(response.content),
            )
        )
        return response

    with mock.patch.object(httpx.AsyncHTTPTransport, "handle_async_request", handle):
        yield exchanges


# What differs from run to run: ULIDs, UUIDs and other random texts, times, and the processes' own numbers.
_RANDOM = re.compile(r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b|\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b|[0-9a-f]{12,64}")
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:\d{2})")


def masked(text: str) -> str:
    """A text without what differs from run to run."""
    return _RANDOM.sub("<id>", _MOMENT.sub("<time>", text))


class Comparable:
    """Values without ids and times: each random text becomes its number, in the order of first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, str] = {}

    def of(self, value: Any, *, without: frozenset[str] = frozenset()) -> Any:
        if isinstance(value, dict):
            return {self.of(key): self.of(inner, without=without) for key, inner in value.items() if key not in without}
        if isinstance(value, list | tuple):
            return [self.of(inner, without=without) for inner in value]
        if isinstance(value, str):
            value = _MOMENT.sub("<time>", value)
            return _RANDOM.sub(lambda found: self._numbers.setdefault(found[0], f"<{len(self._numbers)}>"), value)
        return value
