"""Namespaces: the walls between teams that share a server."""

from __future__ import annotations

from django.db import models

from durable.models.fields import ExactCharField


class Namespace(models.Model):
    """A name under which ids, queues, workers and tokens live. Hot tables hold the name as text, without a key."""

    # Lower case, `[a-z0-9._-]`; the wire lowers what it receives before it looks here.
    name = ExactCharField(max_length=128, primary_key=True)
    description = models.CharField(max_length=1000, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(
                name="durable_namespace_named", condition=~models.Q(name="") & ~models.Q(name__regex=r"[^a-z0-9._-]")
            ),
        )

    def __str__(self) -> str:
        return str(self.name)
