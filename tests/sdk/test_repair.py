"""It keeps a run that its worker cannot replay for somebody to repair, and lets nothing else suffer."""

from __future__ import annotations

from typing import Any

import pytest
from durable_workflow import PassthroughWorkerInterceptor, Worker, WorkflowHandle, WorkflowTerminated, workflow

from durable.models import Run, Task
from tests.invariants import check_invariants
from tests.sdk.session import SdkSession, wait_until
from tests.sdk.workflows import FIVE_RESULTS, Five, One, Steps, step


@workflow.defn(name="five")
class FiveRewritten:
    """The same type after a careless deployment: it begins with another activity."""

    def run(self, ctx: workflow.WorkflowContext) -> Steps:
        return (yield ctx.schedule_activity("leap", [1]))


def blocked(run_id: str | None) -> bool:
    return Run.objects.get(id=run_id).blocked_at is not None


class Forgetful(PassthroughWorkerInterceptor):
    """Its worker forgets what it registered for as soon as it is given a task."""

    worker: Worker

    async def execute_workflow_task(self, context: Any, next: Any) -> Any:
        self.worker.workflows.clear()
        return await next(context)


def block_by_missing_type(sdk: SdkSession) -> WorkflowHandle:
    """A run whose worker promised its type and then turned out not to know it."""
    forgetful = Forgetful()
    with sdk.worker(workflows=[Five], interceptors=[forgetful]) as forgetful.worker:
        handle = sdk.start("five")
        wait_until(lambda: blocked(handle.run_id))
    return handle


def test_leaves_a_run_for_the_worker_that_knows_its_type(sdk: SdkSession) -> None:
    handle = sdk.start("five")

    with sdk.worker(workflows=[One], activities=[step], worker_id="another"):
        untouched = Run.objects.get(id=handle.run_id).status
    with sdk.worker(workflows=[Five], activities=[step]):
        result = sdk.result(handle)

    assert (untouched, result) == ("pending", FIVE_RESULTS)
    assert not Task.objects.filter(status="failed").exists()


def test_goes_on_after_repair_with_a_worker_that_knows_the_type(sdk: SdkSession) -> None:
    handle = block_by_missing_type(sdk)

    with sdk.worker(workflows=[Five], activities=[step]):
        repaired = sdk.run(handle.repair())
        result = sdk.result(handle)

    assert repaired.outcome == "repair_dispatched"
    assert result == FIVE_RESULTS
    check_invariants()


def test_does_not_retry_a_run_whose_code_changed_under_it(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[Five]):
        handle = sdk.start("five")
        wait_until(lambda: Run.objects.get(id=handle.run_id).pending_activity_count == 1)
    with sdk.worker(workflows=[FiveRewritten], activities=[step]):
        wait_until(lambda: blocked(handle.run_id))

    failed = Task.objects.get(run_id=handle.run_id, status="failed")
    assert "replay" in failed.last_error["message"]
    assert Run.objects.get(id=handle.run_id).open_task_id is None


def test_goes_on_after_repair_with_the_code_that_began_it(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[Five]):
        handle = sdk.start("five")
        wait_until(lambda: Run.objects.get(id=handle.run_id).pending_activity_count == 1)
    with sdk.worker(workflows=[FiveRewritten], activities=[step]):
        wait_until(lambda: blocked(handle.run_id))

    with sdk.worker(workflows=[Five], activities=[step]):
        sdk.run(handle.repair())

        assert sdk.result(handle) == FIVE_RESULTS


def test_terminates_a_blocked_run(sdk: SdkSession) -> None:
    handle = block_by_missing_type(sdk)

    sdk.run(handle.terminate(reason="given up"))

    with pytest.raises(WorkflowTerminated):
        sdk.result(handle)


def test_repairs_nothing_where_nothing_is_broken(sdk: SdkSession) -> None:
    handle = sdk.start("five")

    answer = sdk.run(handle.repair())

    assert answer.outcome == "repair_not_needed"
    assert Task.objects.filter(run_id=handle.run_id).count() == 1
