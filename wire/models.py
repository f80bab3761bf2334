"""API tokens: hashed, scoped to roles and namespaces, two live ones per client so that they can be rotated."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime

from django.db import models

from durable.models.fields import JSONTextField

ROLES = ("worker", "operator", "admin")
EVERY_NAMESPACE = "*"
MOST_LIVE_PER_CLIENT = 2
_MARK = "dw"


class TooManyTokensError(Exception):
    """The client has two live tokens: revoke one first."""


class ApiToken(models.Model):
    """One credential of one client. The secret is shown once, when it is made; only its SHA-256 is stored.

    The secret has 256 random bits, so a fast hash is enough: there is nothing to guess.
    """

    client = models.CharField(max_length=128)
    prefix = models.CharField(max_length=12, unique=True)
    secret_hash = models.CharField(max_length=64)
    # Some of worker, operator, admin.
    roles = JSONTextField(default=list)
    # Names, or `*` for every namespace.
    namespaces = JSONTextField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    # Written at most once a minute, apart from the request.
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "API token"
        indexes = (models.Index(name="wire_token_of_client", fields=("client",)),)
        constraints = (models.CheckConstraint(name="wire_token_client_named", condition=~models.Q(client="")),)

    def __str__(self) -> str:
        return f"{self.client} ({_MARK}_{self.prefix}_…)"

    def is_live(self, now: datetime) -> bool:
        """Neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


def hash_secret(secret: str) -> str:
    """What is stored and compared instead of a token."""
    return hashlib.sha256(secret.encode()).hexdigest()


def split_prefix(token: str) -> str | None:
    """The lookup prefix of a token of ours; None for any other text."""
    parts = token.split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == _MARK and len(parts[1]) <= 12 and parts[1].isalnum() else None


def new_secret() -> tuple[str, str]:
    """A fresh token and its prefix."""
    prefix = secrets.token_hex(6)
    return f"{_MARK}_{prefix}_{secrets.token_urlsafe(32)}", prefix
