"""Whole transactions: who opens them, and what is tried again (docs/concurrency.md 15)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction

from durable import metrics
from durable.wakeups.hints import publish_locked

P = ParamSpec("P")
R = TypeVar("R")

_TRIES = 3
_TRANSIENT_SQLSTATES = {"40P01", "40001", "55P03"}  # deadlock, serialization failure, lock timeout
_DEADLOCK, _LOCK_WAIT_TIMEOUT = 1213, 1205
_SQLITE_BUSY = {5, 6}  # SQLITE_BUSY, SQLITE_LOCKED; the primary code is the low byte

# Connection refused, failed, or ended by the other side; PostgreSQL's class 08 and 57P, MariaDB's client errors.
_LOST_SQLSTATES = ("08", "57P")
_LOST_ERRNOS = {2002, 2003, 2006, 2013, 2014, 2055, 1040, 1053, 1927, 4031}
_SQLITE_LOST = {10, 13, 14}  # input or output error, disk full, cannot open


def _first_argument(error: BaseException) -> object:
    arguments: tuple[object, ...] = getattr(error.__cause__ or error, "args", ())
    return next(iter(arguments), None)


def is_lock_pressure(error: BaseException) -> bool:
    """Whether the database gave up on a lock, so that the same transaction may well succeed a moment later."""
    cause = error.__cause__ or error
    if getattr(cause, "sqlstate", None) in _TRANSIENT_SQLSTATES:
        return True
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in _SQLITE_BUSY
    return _first_argument(error) in (_DEADLOCK, _LOCK_WAIT_TIMEOUT)


def is_lock_timeout(error: BaseException) -> bool:
    """Whether a lock wait ran out on MariaDB: the statement is undone, the transaction goes on. Not so a deadlock."""
    return _first_argument(error) == _LOCK_WAIT_TIMEOUT


def is_backend_lost(error: BaseException) -> bool:
    """Whether the connection is gone, so that nobody knows whether the transaction committed.

    A statement that the database refuses for what it says is none of that: it is a fault of ours.
    """
    if isinstance(error, InterfaceError):
        return True
    if not isinstance(error, OperationalError):
        return False
    cause = error.__cause__
    if cause is None:
        return True
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in _SQLITE_LOST
    if hasattr(cause, "sqlstate"):
        return cause.sqlstate is None or cause.sqlstate.startswith(_LOST_SQLSTATES)
    return _first_argument(error) in _LOST_ERRNOS


_stopping = threading.Event()


def stop_retrying() -> None:
    """This process is ending: transactions that meet lock pressure give up instead of waiting again."""
    _stopping.set()


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
                if not left or _stopping.is_set() or not is_lock_pressure(error):
                    raise
            finally:
                publish_locked()
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
