"""Fixtures of the budget tests: an API whose statements are all heard, and which runs none on its own account."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests import factories as make
from tests.budgets.statements import Statements, recorded_statements
from tests.client import ApiClient
from tests.protocol.reports import poll

NEVER = 86_400


@pytest.fixture
def statements(database: None, override_durable: Any) -> Iterator[Statements]:
    """Every statement of the API's pool; its own rounds (probes, signs of life) do not come up during a test."""
    override_durable(PROBE_INTERVAL_SECONDS=NEVER, WORKER_SEEN_INTERVAL_SECONDS=NEVER)
    with recorded_statements() as heard:
        yield heard


@pytest.fixture
def api(statements: Statements) -> Iterator[ApiClient]:
    """The API with a registered worker, its token and namespace looked up already."""
    make.register()
    with ApiClient() as client:
        poll(client, "workflow")
        yield client
