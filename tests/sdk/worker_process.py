"""A worker in a process of its own, to be killed: the published SDK with activities and workflows that never end well.

python -m tests.sdk.worker_process URL QUEUE ROLE WORKER_ID [WORKER_ID ...]   (the token comes from DURABLE_DEV_TOKEN)

Each further id is a worker in a process forked from this one, which saves its start.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from durable_workflow import Client, Worker, activity, workflow


def die() -> None:
    """As if the kernel had run out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


@activity.defn(name="step")
async def hang(number: int) -> None:
    await asyncio.Event().wait()


@activity.defn(name="step")
def die_in_activity(number: int) -> None:
    die()


@workflow.defn(name="five")
class DieInWorkflow:
    def run(self, ctx: workflow.WorkflowContext) -> None:
        die()


ROLES: dict[str, dict[str, Any]] = {
    "hangs": {"activities": [hang]},
    "dies-in-activity": {"activities": [die_in_activity]},
    "dies-in-workflow": {"workflows": [DieInWorkflow]},
}


async def main(url: str, queue: str, role: str, worker_id: str) -> None:
    async with Client(url, token=os.environ["DURABLE_DEV_TOKEN"]) as client:
        await Worker(client, task_queue=queue, worker_id=worker_id, **ROLES[role]).run()


if __name__ == "__main__":
    *where, first_id = sys.argv[1:5]
    own_id = next((further_id for further_id in sys.argv[5:] if os.fork() == 0), first_id)
    asyncio.run(main(*where, own_id))
