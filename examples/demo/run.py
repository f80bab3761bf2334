"""Start ten orders, show how they come in, print what became of each.

DURABLE_TOKEN=… python examples/demo/run.py
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from durable_workflow import Client, DurableWorkflowError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from workflows import TASK_QUEUE

ORDERS = 10
RESULT_SECONDS = 60


async def main() -> int:
    url = os.environ.get("DURABLE_URL", "http://127.0.0.1:8000")
    console = Console()
    batch = f"{time.time():.0f}"
    is_ok = True

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    async with Client(url, token=os.environ["DURABLE_TOKEN"]) as client:
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task("ten orders of five activities", total=ORDERS)
            orders = [asyncio.create_task(run_order(client, f"{batch}-{number}")) for number in range(1, ORDERS + 1)]
            for order in asyncio.as_completed(orders):
                try:
                    progress.print(await order, highlight=False)
                except (DurableWorkflowError, TimeoutError) as error:
                    progress.print(f"failed: {type(error).__name__}: {error}", style="red", markup=False)
                    is_ok = False
                progress.advance(bar)
    return 0 if is_ok else 1


async def run_order(client: Client, order: str) -> str:
    handle = await client.start_workflow(
        workflow_type="fulfil-order", workflow_id=f"order-{order}", task_queue=TASK_QUEUE, input=[order]
    )
    result: str = await handle.result(timeout=RESULT_SECONDS, poll_interval=0.2)
    return result


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
