"""The published SDK in tests: its own Client and Worker, unmodified, in an event loop beside the test's thread.

A test stays plain code that may use the database, while workers poll a real server over the network.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from durable_workflow import Client, Worker, WorkflowHandle

R = TypeVar("R")

QUEUE = "sdk"
SECONDS = 30.0


class SdkSession:
    """One client of the server, and as many workers as a test starts."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sdk-loop", daemon=True)
        self.client: Client

    def __enter__(self) -> Self:
        self._loop.set_default_executor(ThreadPoolExecutor(max_workers=8))
        self._thread.start()
        self.client = self.new_client()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.client.aclose())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, R], seconds: float = SECONDS) -> R:
        """Run a coroutine beside the workers and wait for it."""
        return self.begin(work).result(seconds)

    def begin(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Run a coroutine beside the workers without waiting for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Callable[[], object]) -> None:
        """Call something that belongs to the workers' event loop, such as the `set` of one of its events."""
        self._loop.call_soon_threadsafe(work)

    def new_client(self, **options: Any) -> Client:
        async def make() -> Client:
            return Client(self.url, **{"token": self.token, **options})

        return self.run(make())

    # -- workflows -----------------------------------------------------------------------------------------------------

    def start(
        self, workflow_type: str, *arguments: Any, workflow_id: str | None = None, **options: Any
    ) -> WorkflowHandle:
        """Start a workflow with these arguments."""
        values = {"task_queue": QUEUE, "input": list(arguments), **options}
        workflow_id = workflow_id or f"{workflow_type}-{uuid.uuid4().hex[:8]}"
        return self.run(self.client.start_workflow(workflow_type=workflow_type, workflow_id=workflow_id, **values))

    def result(self, handle: WorkflowHandle, *, seconds: float = SECONDS) -> Any:
        """What the workflow returned; raises what the SDK makes of any other end."""
        return self.run(handle.result(poll_interval=0.02, timeout=seconds), seconds + 5)

    # -- workers -------------------------------------------------------------------------------------------------------

    @contextmanager
    def worker(
        self,
        *,
        workflows: Iterable[type] = (),
        activities: Iterable[Callable[..., Any]] = (),
        client: Client | None = None,
        **options: Any,
    ) -> Iterator[Worker]:
        """A worker that runs until the block ends; it then stops as a worker that is told to, and deregisters."""
        values = {"task_queue": QUEUE, "shutdown_timeout": 10.0, **options}
        made: list[Worker] = []

        async def begin() -> asyncio.Task[None]:
            made.append(Worker(client or self.client, workflows=workflows, activities=activities, **values))
            return asyncio.create_task(made[0].run())

        running = self.run(begin())

        async def end() -> None:
            await made[0].stop()
            await running

        try:
            yield made[0]
        finally:
            self.run(end())


def wait_until(condition: Callable[[], R], seconds: float = SECONDS) -> R:
    """The first true value of a condition that another process or thread brings about."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return value
