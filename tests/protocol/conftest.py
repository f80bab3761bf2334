"""Fixtures of the protocol tests: states that a report can meet, on a database where every table has rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests import factories as make
from tests.client import ApiClient
from tests.snapshot import filled_tables


@pytest.fixture
def populated(api: ApiClient, override_durable: Any) -> Iterator[ApiClient]:
    """The API on a database without an empty table, with refused reports left uncounted."""
    # No background write of the process disturbs a comparison.
    override_durable(COUNT_REFUSED_REPORTS=False, WORKER_SEEN_INTERVAL_SECONDS=3600)
    make.register("w-0", task_queue="elsewhere")
    bystander = make.start("bystander", task_queue="elsewhere")
    elsewhere = {"task_queue": "elsewhere"}
    make.complete(make.lease_workflow("w-0", **elsewhere), *make.schedule_list(2))
    make.fail_step(make.lease_activity("w-0", **elsewhere), "one of two fails")
    make.lease_activity("w-0", **elsewhere)
    assert bystander.is_new
    with filled_tables():
        yield api
