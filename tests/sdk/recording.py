"""What the SDK puts on the wire: every request that leaves this process through httpx, in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
