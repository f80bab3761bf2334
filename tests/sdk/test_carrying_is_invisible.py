"""A client that knows nothing of carried polls sees no difference with carrying on (row C22 of
docs/protocol/carried-polls.md): the same requests in full, the same answers, the same rows.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.apps import apps
from django.db import models
from durable_workflow import Client, Worker

from tests.conftest import clean_database
from tests.sdk.recording import Comparable, Exchange, masked, recorded_exchanges
from tests.sdk.workflows import FIVE_RESULTS, Five, step
from tests.server import ServerProcess

SWITCHES = (
    "DURABLE_CARRY_ACTIVITY_ON_WORKFLOW",
    "DURABLE_CARRY_WORKFLOW_ON_ACTIVITY",
    "DURABLE_CARRY_WORKFLOW_ON_WORKFLOW",
    "DURABLE_CARRY_INLINE_TASK",
)
CAPABILITIES = {
    "workflow_task_completion_activity_poll",
    "workflow_task_completion_workflow_poll",
    "activity_completion_workflow_poll",
    "carried_poll_inline_task",
}


async def run_five(server: ServerProcess) -> Any:
    async with Client(server.url, token=server.token) as client:
        worker = Worker(client, task_queue="q", workflows=[Five], activities=[step], worker_id="w-1")
        handle = await client.start_workflow(workflow_type="five", workflow_id="five-1", task_queue="q", input=[])
        await worker.run_until(workflow_id="five-1", timeout=30.0)
        return await client.get_result(handle)


def recorded_run(is_on: bool) -> tuple[list[Exchange], dict[str, list[str]]]:
    """One run on a server of its own: what went over the network, and what is stored at its end."""
    clean_database()
    server = ServerProcess(**dict.fromkeys(SWITCHES, "1" if is_on else "0"))
    server.start()
    try:
        with recorded_exchanges() as exchanges:
            assert asyncio.run(run_five(server)) == FIVE_RESULTS
    finally:
        server.stop()
    return exchanges, stored_rows()


def stored_rows() -> dict[str, list[str]]:
    """Every row of every table without ids and times, in no order; upkeep's own notes apart."""
    found: dict[str, list[str]] = {}
    for model in apps.get_models(include_auto_created=True):
        if model._meta.db_table.startswith("durable_upkeep"):
            continue
        names = [
            field.attname
            for field in model._meta.concrete_fields
            if not isinstance(field, models.AutoField | models.DateTimeField)
        ]
        rows = model._base_manager.values(*names)
        found[model._meta.db_table] = sorted(masked(repr(row)) for row in rows)
    return found


def comparable(exchanges: list[Exchange]) -> list[Any]:
    same = Comparable()
    # The SDK's own measurements are not the server's doing.
    unsteady = frozenset({"server_capabilities", "process_metrics", "user-agent"})
    return [
        same.of(
            [one.request, one.headers, one.sent, one.status, one.received],
            without=unsteady,
        )
        for one in exchanges
    ]


def advertised(exchanges: list[Exchange]) -> set[str]:
    """Every capability of carrying that any answer named."""
    return {name for one in exchanges for name in one.received.get("server_capabilities", {}).keys() & CAPABILITIES}


@pytest.mark.usefixtures("database")
def test_c22_the_sdk_sees_no_difference_with_carrying_on() -> None:
    off, rows_off = recorded_run(is_on=False)
    on, rows_on = recorded_run(is_on=True)

    assert (advertised(off), advertised(on)) == (set(), CAPABILITIES)
    assert len(on) > 40
    for number, (one, other) in enumerate(zip(comparable(off), comparable(on), strict=True)):
        assert one == other, number
    assert rows_on == rows_off
    assert rows_on["durable_pollreceipt"]
