"""Columns whose meaning must not depend on the database: exact text ids, and JSON that is stored as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from durable.jsontext import dump_json

_EXACT_COLLATION = {"postgresql": "C", "sqlite": "BINARY"}


def exact_collation(connection: BaseDatabaseWrapper) -> str:
    """The collation under which `W-1`, `w-1` and `W-1 ` are three different texts on this database."""
    if connection.vendor == "mysql":
        return "utf8mb4_nopad_bin" if getattr(connection, "mysql_is_mariadb", True) else "utf8mb4_0900_bin"
    return _EXACT_COLLATION[connection.vendor]


# For the type checker: what may be assigned to a column, and what is read from it.
_Set = TypeVar("_Set", contravariant=True)
_Get = TypeVar("_Get", covariant=True)

if TYPE_CHECKING:

    class _CharField(models.CharField[_Set, _Get]):
        pass

    class _JSONField(models.TextField[Any, Any]):
        _pyi_private_set_type: Any
        _pyi_private_get_type: Any

else:

    class _CharField(models.CharField, Generic[_Set, _Get]):
        pass

    _JSONField = models.TextField


class ExactCharField(_CharField[_Set, _Get]):
    """Text that is compared byte for byte: ids, owners, queue and type names.

    MariaDB's default collation ignores case and trailing spaces, PostgreSQL's follows a locale; one worker could
    then hold another worker's lease. The collation is chosen per connection, so one migration serves all three.
    """

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        # Under its other name Django does not give each key on PostgreSQL a second index for LIKE: collation C serves
        # that already, and every insert would pay for it.
        name = super().db_type(connection)
        return name.replace("varchar", "character varying") if name and connection.vendor == "postgresql" else name

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        return {**super().db_parameters(connection), "collation": exact_collation(connection)}


class JSONTextField(_JSONField):
    """JSON kept as compact text, so that a history page can be sent as it was stored, without parsing it.

    A database's own JSON type would reorder keys on PostgreSQL and is plain text on MariaDB anyway. Nothing
    queries inside these columns; what is searched for has a column of its own.
    """

    def from_db_value(self, value: str | None, *_: object) -> Any:
        return None if value is None else json.loads(value)

    def to_python(self, value: Any) -> Any:
        return value

    def get_prep_value(self, value: Any) -> str | None:
        return None if value is None else dump_json(value)
