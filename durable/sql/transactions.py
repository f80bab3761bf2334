"""Whole transactions: who opens them, and what is tried again (docs/concurrency.md 15)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction

from durable import metrics

P = ParamSpec("P")
R = TypeVar("R")

_TRIES = 3
_TRANSIENT_SQLSTATES = {"40P01", "40001", "55P03"}  # deadlock, serialization failure, lock timeout
_TRANSIENT_ERRNOS = {1213, 1205}  # deadlock, lock wait timeout
_SQLITE_BUSY = {5, 6}  # SQLITE_BUSY, SQLITE_LOCKED; the primary code is the low byte


def is_lock_pressure(error: BaseException) -> bool:
    """Whether the database gave up on a lock, so that the same transaction may well succeed a moment later."""
    cause = error.__cause__ or error
    if getattr(cause, "sqlstate", None) in _TRANSIENT_SQLSTATES:
        return True
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in _SQLITE_BUSY
    arguments: tuple[object, ...] = getattr(cause, "args", ())
    return bool(arguments) and arguments[0] in _TRANSIENT_ERRNOS


def is_backend_lost(error: BaseException) -> bool:
    """Whether the connection is gone, so that nobody knows whether the transaction committed."""
    if isinstance(error, InterfaceError):
        return True
    return isinstance(error, OperationalError) and not is_lock_pressure(error)


def transactional(operation: Callable[P, R]) -> Callable[P, R]:
    """Run a worker-plane operation as one transaction of its own, all of it again on lock pressure.

    Three tries with jitter. A lost connection is not tried again: only a receipt can tell whether it committed.
    Everything else, refusals included, rolls back and goes on to the caller.
    """

    @wraps(operation)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        for left in range(_TRIES - 1, -1, -1):
            try:
                with transaction.atomic(durable=True):
                    outcome = operation(*args, **kwargs)
                metrics.COMMITS.inc()
                return outcome
            except DatabaseError as error:
                if not left or not is_lock_pressure(error):
                    raise
            metrics.TRANSACTION_RETRIES.inc()
            time.sleep(random.uniform(0.002, 0.02) * (_TRIES - left))
        raise AssertionError("unreachable")

    return run


def transactional_or_nested(operation: Callable[P, R]) -> Callable[P, R]:
    """Like `transactional`, but inside a caller's `atomic` block the operation joins that transaction, untried."""
    owned = transactional(operation)

    @wraps(operation)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if connection.in_atomic_block:
            with transaction.atomic():
                return operation(*args, **kwargs)
        return owned(*args, **kwargs)

    return run
