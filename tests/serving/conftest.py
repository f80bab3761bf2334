"""Fixtures of the serving tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.budgets.statements import Statements, recorded_statements


@pytest.fixture
def statements(database: None) -> Iterator[Statements]:
    """Every statement of pools that start after this: name it before `api`."""
    with recorded_statements() as heard:
        yield heard
