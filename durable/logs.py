"""Structured logs: one line an event, with the ids that lead to the run. Never payloads, never tokens.

Ids are bound per request or duty with `bind`; whatever is logged below carries them.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any

import structlog

BOUND = ("request_id", "namespace", "workflow_id", "run_id", "task_id", "worker_id")


def traceback_without_values(error: BaseException) -> str:
    """Where an error came from, without its text: a database's message may quote the row it is about."""
    return "".join(traceback.format_tb(error.__traceback__))


def bind(**ids: str | None) -> None:
    """Add ids to every log line of the current request; None leaves one out."""
    structlog.contextvars.bind_contextvars(**{name: value for name, value in ids.items() if value})


def configure_logging(*, level: str, as_json: bool) -> None:
    """Route the standard library's and structlog's records through one renderer, to standard error."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    renderer: Any = structlog.processors.JSONRenderer()
    if not as_json:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    logging.getLogger("uvicorn.access").disabled = True
    # Under DEBUG it writes every statement with its parameters, and those are payloads.
    logging.getLogger("django.db.backends").setLevel("INFO")
    # Our own line tells of refused requests; Django's would repeat them, path and all.
    logging.getLogger("django.request").setLevel("ERROR")
