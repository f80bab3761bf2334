"""Which statements a request costs: everything the pool's connections execute between two points, and what counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self
from unittest import mock

from durable.models import PollReceipt
from durable.sql import pool

WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE", "SET")
TRANSACTION_VERBS = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement as the database got it."""

    sql: str
    parameters: tuple[Any, ...]

    @property
    def verb(self) -> str:
        return self.sql.split(None, 1)[0].upper()

    @property
    def is_write(self) -> bool:
        return self.verb in WRITES

    @property
    def is_reservation(self) -> bool:
        """Holding a poll id: the one write of a claim that the budget leaves out (docs/design.md 4)."""
        return "pg_try_advisory_xact_lock" in self.sql or (
            self.is_write and f"INTO {PollReceipt._meta.db_table} " in self.sql
        )

    @property
    def is_counted(self) -> bool:
        return self.verb not in TRANSACTION_VERBS and not self.is_reservation

    def __str__(self) -> str:
        return self.sql[:180]


class Statements:
    """Everything the pool executed, in order."""

    def __init__(self) -> None:
        self._seen: list[Statement] = []

    def __len__(self) -> int:
        return len(self._seen)

    def note(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        self._seen.append(Statement(sql, tuple(params or ())))
        return execute(sql, params, many, context)

    @contextmanager
    def during(self) -> Iterator[Cost]:
        """Collect what runs inside."""
        cost, start = Cost([]), len(self._seen)
        yield cost
        cost.statements.extend(self._seen[start:])


@dataclass(frozen=True, slots=True)
class Cost:
    """What one step cost."""

    statements: list[Statement]

    @property
    def counted(self) -> list[Statement]:
        return [statement for statement in self.statements if statement.is_counted]

    @property
    def writes(self) -> list[Statement]:
        return [statement for statement in self.statements if statement.is_write]

    def __len__(self) -> int:
        return len(self.counted)

    def __str__(self) -> str:
        return "\n".join(f"{number:>3}. {statement}" for number, statement in enumerate(self.counted[:40], 1))

    def within(self, budget: int) -> Self:
        """Fail with the statements themselves when there are more than the budget allows."""
        assert len(self) <= budget, f"{len(self)} statements, budget {budget}:\n{self}"
        return self


@contextmanager
def recorded_statements() -> Iterator[Statements]:
    """Hear every statement of pools that start inside."""
    statements = Statements()
    with mock.patch.object(pool, "_count_statement", statements.note):
        yield statements
