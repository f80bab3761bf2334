"""It tells a client of the published SDK how its workflow ended, or why it did not begin."""

from __future__ import annotations

import pytest
from durable_workflow import (
    InvalidArgument,
    WorkflowAlreadyStarted,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowHandle,
    WorkflowNotFound,
    WorkflowTerminated,
    WorkflowTimedOut,
    workflow,
)

from durable.models import Run, Task
from durable.states import OPEN_TASK
from tests.invariants import check_invariants
from tests.sdk.session import SdkSession, wait_until
from tests.sdk.workflows import FIVE_RESULTS, Five, One, Steps, step


class OrderError(Exception):
    """What the workflow code below raises."""


@workflow.defn(name="raises")
class Raises:
    def run(self, ctx: workflow.WorkflowContext) -> Steps:
        yield ctx.schedule_activity("step", [1])
        raise OrderError("out of stock")


def waiting_run(sdk: SdkSession) -> WorkflowHandle:
    """A workflow that waits for an activity that nobody does."""
    handle = sdk.start("one", "nobody-does-this", [], {})
    wait_until(lambda: Run.objects.get(id=handle.run_id).pending_activity_count == 1)
    return handle


# -- ended from outside ------------------------------------------------------------------------------------------------


def test_raises_workflow_cancelled_with_the_reason(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[One]):
        handle = waiting_run(sdk)
        sdk.run(handle.cancel(reason="changed my mind"))

        with pytest.raises(WorkflowCancelled, match="changed my mind"):
            sdk.result(handle)

    check_invariants()


def test_raises_workflow_terminated_with_the_reason(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[One]):
        handle = waiting_run(sdk)
        sdk.run(handle.terminate(reason="runs amok"))

        with pytest.raises(WorkflowTerminated, match="runs amok"):
            sdk.result(handle)

    check_invariants()


def test_cancels_a_run_that_no_worker_has_seen(sdk: SdkSession) -> None:
    handle = sdk.start("one", "nobody-does-this", [], {})
    sdk.run(handle.cancel(reason="never mind"))

    with pytest.raises(WorkflowCancelled):
        sdk.result(handle)

    assert not Task.objects.filter(status__in=OPEN_TASK).exists()


@pytest.mark.parametrize(
    ("options", "timeout_kind"),
    [
        pytest.param({"run_timeout_seconds": 1}, "run_timeout", id="run"),
        pytest.param({"run_timeout_seconds": 1, "execution_timeout_seconds": 1}, "execution_timeout", id="execution"),
    ],
)
def test_raises_workflow_timed_out(sdk: SdkSession, options: dict[str, int], timeout_kind: str) -> None:
    handle = sdk.start("one", "nobody-does-this", [], {}, **options)

    with pytest.raises(WorkflowTimedOut):
        sdk.result(handle)

    history = sdk.run(handle.get_history(page_size=1000))
    assert history["events"][-1]["payload"]["timeout_kind"] == timeout_kind
    assert Run.objects.get(id=handle.run_id).closed_reason == "timed_out"
    check_invariants()


# -- ended by its own code ---------------------------------------------------------------------------------------------


def test_raises_workflow_failed_with_message_and_class(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[Raises], activities=[step]):
        handle = sdk.start("raises")
        with pytest.raises(WorkflowFailed) as failed:
            sdk.result(handle)

    assert str(failed.value) == "out of stock"
    assert failed.value.exception_class.endswith("OrderError")


def test_shows_a_failed_run_as_failed_with_the_type(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[Raises], activities=[step]):
        handle = sdk.start("raises")
        with pytest.raises(WorkflowFailed):
            sdk.result(handle)

    seen = sdk.run(handle.describe())
    history = sdk.run(handle.get_history(page_size=1000))
    assert seen.status == "failed"
    assert history["events"][-1]["payload"]["exception_type"] == "OrderError"


# -- starting ----------------------------------------------------------------------------------------------------------


def test_raises_workflow_already_started_for_an_id_in_use(sdk: SdkSession) -> None:
    sdk.start("five", workflow_id="order-1")

    with pytest.raises(WorkflowAlreadyStarted):
        sdk.start("five", workflow_id="order-1")


def test_raises_workflow_already_started_for_the_id_of_a_closed_run(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[Five], activities=[step]):
        sdk.result(sdk.start("five", workflow_id="order-1"))

        for policy in (None, "use-existing"):
            with pytest.raises(WorkflowAlreadyStarted):
                sdk.start("five", workflow_id="order-1", duplicate_policy=policy)


def test_gives_two_callers_that_use_existing_the_same_run(sdk: SdkSession) -> None:
    first, second = (sdk.start("five", workflow_id="order-1", duplicate_policy="use-existing") for _ in range(2))

    with sdk.worker(workflows=[Five], activities=[step]):
        assert sdk.result(second) == FIVE_RESULTS

    assert first.run_id == second.run_id


def test_raises_invalid_argument_for_an_id_that_cannot_be_one(sdk: SdkSession) -> None:
    with pytest.raises(InvalidArgument):
        sdk.start("five", workflow_id="order 1")


def test_raises_workflow_not_found_for_an_unknown_id(sdk: SdkSession) -> None:
    with pytest.raises(WorkflowNotFound):
        sdk.run(sdk.client.describe_workflow("order-1"))
