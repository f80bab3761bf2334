"""A worker process: the published SDK, pointed at this server. Stops on SIGTERM or Ctrl-C.

DURABLE_TOKEN=… python examples/demo/worker.py
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal

from durable_workflow import Client, Worker
from workflows import ACTIVITIES, TASK_QUEUE, FulfilOrder


async def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    url = os.environ.get("DURABLE_URL", "http://127.0.0.1:8000")
    async with Client(url, token=os.environ["DURABLE_TOKEN"]) as client:
        worker = Worker(
            client, task_queue=TASK_QUEUE, workflows=[FulfilOrder], activities=ACTIVITIES, shutdown_timeout=3
        )
        running = asyncio.create_task(worker.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, lambda: asyncio.ensure_future(worker.stop()))
        await running


if __name__ == "__main__":
    asyncio.run(main())
