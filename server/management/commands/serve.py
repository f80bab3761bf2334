"""`manage.py serve`: the API, the admin and upkeep in one process, or several (docs/design.md, "Ways to run it")."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import uvicorn
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

# The API answers parked polls at once when told to stop; whatever else is open has this long.
STOP_SECONDS = 3


class Command(BaseCommand):
    help = "Serve the API and the admin, and run upkeep. Ready when GET /api/ready answers 200."
    requires_system_checks = ["durable"]

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--processes", type=int, default=1)
        parser.add_argument("--no-upkeep", action="store_true", help="Take back expired leases, do nothing else.")

    def handle(self, *_: Any, **options: Any) -> None:
        processes = options["processes"]
        if processes < 1:
            raise CommandError("--processes must be at least 1.")
        if processes > 1 and connection.vendor == "sqlite":
            raise CommandError("SQLite has one writer: --processes above 1 needs PostgreSQL or MariaDB.")
        if options["no_upkeep"]:
            os.environ["DURABLE_NO_UPKEEP"] = "1"
        # uvicorn repeats the signal that stopped it once all is tidied up; that must not make it a death by signal.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        uvicorn.run(
            "server.asgi:application",
            host=options["host"],
            port=options["port"],
            workers=processes if processes > 1 else None,
            loop="uvloop",
            http="httptools",
            ws="none",
            lifespan="on",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
            timeout_keep_alive=75,
        )
