"""Making, finding and revoking API tokens."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from durable.ids import is_id
from durable.models import Namespace
from durable.sql.rows import Columns, fetch_one
from wire.models import (
    EVERY_NAMESPACE,
    MOST_LIVE_PER_CLIENT,
    ROLES,
    ApiToken,
    TooManyTokensError,
    hash_secret,
    new_secret,
    split_prefix,
)

_USED_INTERVAL = timedelta(seconds=60)
_TOKEN = Columns(ApiToken, "k")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a credential allows, and whether the namespace that was named exists."""

    client: str
    roles: frozenset[str]
    namespaces: frozenset[str]
    namespace_exists: bool
    # The token's key if its last use should be noted.
    stale_use_of: int | None = None

    def may_use(self, namespace: str) -> bool:
        return EVERY_NAMESPACE in self.namespaces or namespace in self.namespaces


def create_token(
    client: str, *, roles: Sequence[str], namespaces: Sequence[str], expires_at: datetime | None = None
) -> tuple[ApiToken, str]:
    """Make a token for a client; returns the row and the secret, which nobody can see again.

    Raises TooManyTokensError when the client has two live ones, ValueError for an unknown role or no namespace.
    """
    if not client.strip() or not roles or not set(roles) <= set(ROLES) or not namespaces:
        raise ValueError(f"A token needs a client, roles among {', '.join(ROLES)}, and namespaces.")
    with transaction.atomic():
        others = list(ApiToken.objects.select_for_update().filter(client=client))
        if sum(token.is_live(timezone.now()) for token in others) >= MOST_LIVE_PER_CLIENT:
            raise TooManyTokensError(client)
        secret, prefix = new_secret()
        token = ApiToken.objects.create(
            client=client,
            prefix=prefix,
            secret_hash=hash_secret(secret),
            roles=sorted(set(roles)),
            namespaces=sorted({namespace.lower() for namespace in namespaces}),
            expires_at=expires_at,
        )
    return token, secret


def revoke_token(token: ApiToken) -> None:
    """End a token; requests that cached it notice within ten seconds."""
    ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now())


def find_access(secret: str, namespace: str) -> Access | None:
    """What a token allows; None if it is unknown, expired or revoked. One read, the namespace's existence included."""
    prefix = split_prefix(secret)
    sql = (
        f"SELECT (SELECT 1 FROM {Namespace._meta.db_table} n WHERE n.name = %s), {_TOKEN.sql}"
        f" FROM (SELECT 1 AS one) o LEFT JOIN {ApiToken._meta.db_table} k ON k.prefix = %s"
    )
    row = fetch_one(sql, (namespace if is_id(namespace) else "", prefix or ""))
    token = _TOKEN.decode_joined(row, 1)
    now = timezone.now()
    if token is None or not hmac.compare_digest(token.secret_hash, hash_secret(secret)) or not token.is_live(now):
        return None
    used_lately = token.last_used_at is not None and token.last_used_at > now - _USED_INTERVAL
    return Access(
        client=token.client,
        roles=frozenset(token.roles),
        namespaces=frozenset(token.namespaces),
        namespace_exists=row[0] is not None,
        stale_use_of=None if used_lately else token.pk,
    )


def namespace_exists(namespace: str) -> bool:
    """Whether a namespace is there."""
    return is_id(namespace) and Namespace.objects.filter(name=namespace).exists()


def note_use(token_id: int) -> None:
    """Remember that a token was used."""
    ApiToken.objects.filter(pk=token_id).update(last_used_at=timezone.now())
