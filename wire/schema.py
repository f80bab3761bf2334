"""How drf-spectacular describes our views."""

from __future__ import annotations

from drf_spectacular.openapi import AutoSchema


class OperationSchema(AutoSchema):
    """The schema of one route."""
