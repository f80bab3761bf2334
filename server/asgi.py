"""The ASGI application: `/api` through the lean handler, everything else through Django's, and the process's life.

Starting up makes the pool, the hub and the upkeep loop; shutting down answers parked polls, lets operations end and
gives up what this process holds. Nothing is kept that another process would need.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "server.settings")

import django

django.setup()

import structlog
from django.conf import settings
from django.core.asgi import get_asgi_application

from durable.sql.transactions import stop_retrying
from durable.upkeep.loop import UpkeepLoop
from durable.wakeups.runtime import Runtime
from wire.asgi import ApiHandler
from wire.process import runtime, set_runtime

log = structlog.get_logger("durable.server")

_PAGES_BELOW_API = ("/api/docs", "/api/schema")


class Application:
    """Routes a connection to its handler."""

    def __init__(self) -> None:
        self._api = ApiHandler()
        self._pages = get_asgi_application()
        self._upkeep: UpkeepLoop | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http" and _is_api(scope["path"]):
            await self._api(scope, receive, send)
        else:
            await self._pages(scope, receive, send)

    async def _live(self, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _start(self) -> None:
        if settings.DURABLE_DEV_TOKEN:
            log.warning(
                "development_token_in_force", advice="DURABLE_DEV_TOKEN opens every namespace; never in production."
            )
        running = Runtime()
        running.start()
        set_runtime(running)
        self._upkeep = UpkeepLoop(running.pool, may_lead=os.environ.get("DURABLE_NO_UPKEEP") != "1")
        self._upkeep.start()
        _end_polls_on(signal.SIGTERM, signal.SIGINT)

    async def _stop(self) -> None:
        if self._upkeep is not None:
            await self._upkeep.stop()
        await runtime().stop()
        set_runtime(None)


def _is_api(path: str) -> bool:
    return (f"{path}/".startswith("/api/") and not path.startswith(_PAGES_BELOW_API)) or path == "/metrics"


def _end_polls_on(*signals: signal.Signals) -> None:
    """Answer parked polls as soon as the process is told to stop; the server waits for open requests."""
    hub = runtime().hub
    for number in signals:
        before = signal.getsignal(number)

        def handle(received: int, frame: FrameType | None, before: Any = before) -> None:
            hub.close()
            stop_retrying()
            if callable(before):
                before(received, frame)

        signal.signal(number, handle)


application = Application()
