"""Who calls: bearer tokens, cached for a few seconds (docs/protocol/worker-protocol.md 1.5).

The order of checks is fixed: token, role, version, namespace. A caller with the wrong role must not learn whether a
namespace exists, and a token that may not use a namespace is answered as if there were none.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from dataclasses import dataclass, replace
from typing import Any

import structlog
from django.conf import settings
from django.http import HttpRequest
from rest_framework.permissions import BasePermission

from durable.principals import Principal
from durable.sql.pool import Work
from wire.errors import HttpError
from wire.models import EVERY_NAMESPACE, ROLES
from wire.process import runtime
from wire.tokens import Access, find_access, namespace_exists, note_use

log = structlog.get_logger("durable.api")

CACHE_SECONDS = 10.0
_MOST_CACHED = 10_000


class NobodyByDefault(BasePermission):
    """A view that is not one of ours, and says nothing about access, is closed."""

    def has_permission(self, request: Any, view: Any) -> bool:
        return False


class Anybody(BasePermission):
    """For the pages that show the API's description."""

    def has_permission(self, request: Any, view: Any) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class _Cached:
    access: Access | None
    until: float


_cache: dict[tuple[str, str], _Cached] = {}


def forget_cached_access() -> None:
    """Look every token up again at its next use."""
    _cache.clear()


def bearer_token(request: HttpRequest) -> str:
    """The token of a request, or an empty text."""
    scheme, _, token = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


async def authenticate(request: HttpRequest, namespace: str) -> Access:
    """What the caller's token allows, with the existence of the namespace it names. Raises 401."""
    token = bearer_token(request)
    if not token:
        raise _unauthorized()
    key = (token, namespace)
    cached = _cache.get(key)
    if cached is None or cached.until < time.monotonic():
        cached = _Cached(await _look_up(token, namespace), time.monotonic() + CACHE_SECONDS)
        if len(_cache) >= _MOST_CACHED:
            _cache.clear()
        _cache[key] = cached
    if cached.access is None:
        raise _unauthorized()
    return cached.access


async def _look_up(token: str, namespace: str) -> Access | None:
    pool = runtime().pool
    dev_token = settings.DURABLE_DEV_TOKEN
    if dev_token and hmac.compare_digest(token.encode(), dev_token.encode()):
        return Access(
            client="development",
            roles=frozenset(ROLES),
            namespaces=frozenset({EVERY_NAMESPACE}),
            namespace_exists=await pool.run(Work.READ, namespace_exists, namespace),
        )
    access = await pool.run(Work.READ, find_access, token, namespace)
    if access is not None and access.stale_use_of is not None:
        _keep(asyncio.create_task(pool.run(Work.WRITE, note_use, access.stale_use_of)))
        access = replace(access, stale_use_of=None)
    return access


_background: set[asyncio.Task[Any]] = set()


def _keep(task: asyncio.Task[Any]) -> None:
    """Let a task finish by itself; whether it could is of no consequence for the answer."""
    _background.add(task)
    task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    _background.discard(task)
    if not task.cancelled() and task.exception() is not None:
        log.warning("token_use_not_noted", error=type(task.exception()).__name__)


def _unauthorized() -> HttpError:
    return HttpError(401, "unauthorized", "Invalid or missing authentication token.")


def check_role(access: Access, allowed: frozenset[str]) -> None:
    """Raises 403 unless one of the caller's roles fits."""
    if not access.roles & allowed:
        raise HttpError(
            403,
            "forbidden",
            "This token may not use this route.",
            role=",".join(sorted(access.roles)),
            allowed_roles=sorted(allowed),
        )


def check_namespace(access: Access, namespace: str) -> None:
    """Raises 404 for a namespace that is not there, or that the caller may not use."""
    if not access.namespace_exists or not access.may_use(namespace):
        raise HttpError(
            404,
            "namespace_not_found",
            "There is no such namespace.",
            namespace=namespace,
            remediation="Create the namespace, or name another one in the X-Namespace header.",
        )


def principal_of(access: Access) -> Principal:
    """Who is written into the record of a command."""
    return Principal(type="token", id=access.client)
