"""The serving path of `/api`: Django's request, resolver and response without what only pages need.

The stock ASGI handler costs a thread per request to close the response and two database signals. This one closes it
inline, reads the body within its limit, and stops a waiting view when its client leaves. Middleware for it is listed in
`API_MIDDLEWARE` (async-capable; none by default).
"""

from __future__ import annotations

import asyncio
import io
from typing import Any, Self

from django.conf import settings
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.exception import convert_exception_to_response
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix
from django.utils.module_loading import import_string

from durable import conf

# Where a request carries the size of a body that was too large to keep.
OVERSIZE_ATTRIBUTE = "oversize_bytes"

# A client that sends too much is read this far beyond the limit, so that it sees the answer instead of a reset.
_MOST_DISCARDED_BYTES = 64 * 1024 * 1024


class ApiHandler(ASGIHandler):
    """Serves the API's requests in the event loop."""

    def load_middleware(self, is_async: bool = True) -> None:
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []
        handler = convert_exception_to_response(self._get_response_async)  # type: ignore[attr-defined]  # BaseHandler's
        for path in reversed(getattr(settings, "API_MIDDLEWARE", [])):
            handler = convert_exception_to_response(import_string(path)(handler))
        self._middleware_chain = handler

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            body, oversize = await _read_body(scope, receive)
        except RequestAborted:
            return
        set_script_prefix(get_script_prefix(scope))
        request, error = self.create_request(scope, io.BytesIO(body))
        if request is None:
            if error is not None:
                await self.send_response(error, send)
            return
        setattr(request, OVERSIZE_ATTRIBUTE, oversize)
        await self._serve(request, receive, send)

    async def _serve(self, request: Any, receive: Any, send: Any) -> None:
        with _Watch(receive) as watch:
            try:
                response = await self.run_get_response(request)
            except asyncio.CancelledError:
                if not watch.is_gone:
                    raise
                return
        try:
            await self.send_response(response, send)
        finally:
            _close(response)


class _Watch:
    """Cancels the task that answers a request when its client leaves.

    It looks only after a while: nobody leaves what is answered at once, and looking costs a task of its own.
    """

    AFTER_SECONDS = 0.05

    def __init__(self, receive: Any) -> None:
        self.is_gone = False
        self._receive = receive
        self._watching: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._answering = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self.AFTER_SECONDS, self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()
        if self.is_gone and self._answering is not None:
            # Whoever runs this task did not ask for its end.
            self._answering.uncancel()

    def _begin(self) -> None:
        self._watching = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        await self._receive()
        self.is_gone = True
        if self._answering is not None:
            self._answering.cancel()


def _close(response: HttpResponseBase) -> None:
    """Let go of what the response holds, without the signal on which Django looks after connections of its own."""
    for closer in response._resource_closers:  # type: ignore[attr-defined]  # what close() itself goes through
        closer()
    response.closed = True


async def _read_body(scope: Any, receive: Any) -> tuple[bytes, int | None]:
    """The body, or nothing and its size if it is over the limit; counted as it comes, whatever its header says."""
    limit = conf.current().max_body_bytes
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestAborted
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= limit:
            chunks.append(chunk)
        else:
            chunks.clear()
        if not message.get("more_body", False) or size > _MOST_DISCARDED_BYTES:
            break
    return (b"".join(chunks), None) if size <= limit else (b"", size)
