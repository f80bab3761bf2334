"""It refuses what is too large without sending the published SDK into a loop, and the run goes on."""

from __future__ import annotations

import pytest
from durable_workflow import InvalidArgument, ServerError, WorkflowFailed, WorkflowTerminated, activity, workflow

from durable.models import Run, Task
from tests.invariants import check_invariants
from tests.sdk.recording import Sent, recorded_requests
from tests.sdk.session import SdkSession, wait_until
from tests.sdk.workflows import OneOrWhyNot, Steps

MIB = 1024 * 1024
COMPLETE_ACTIVITY = "POST /worker/activity-tasks/*/complete"
COMPLETE_WORKFLOW = "POST /worker/workflow-tasks/*/complete"


@activity.defn(name="produce")
def produce(size: int) -> str:
    return "x" * size


@workflow.defn(name="returns")
class Returns:
    """A workflow whose result has a size."""

    def run(self, ctx: workflow.WorkflowContext, size: int) -> Steps:
        yield from ()
        return "x" * size


def test_fails_an_activity_whose_result_is_over_the_payload_limit(sdk: SdkSession) -> None:
    with recorded_requests() as sent, sdk.worker(workflows=[OneOrWhyNot], activities=[produce]):
        handle = sdk.start("one-or-why-not", "produce", [int(1.5 * MIB)], {})
        told = sdk.result(handle)

    assert told["category"] == "structural_limit"
    assert [request for request in sent if request.route == COMPLETE_ACTIVITY] == [Sent(COMPLETE_ACTIVITY, 200)]
    check_invariants()


def test_is_sent_an_oversized_body_once_and_ends_the_step_by_its_time_out(sdk: SdkSession) -> None:
    with recorded_requests() as sent, sdk.worker(workflows=[OneOrWhyNot], activities=[produce]):
        handle = sdk.start("one-or-why-not", "produce", [4 * MIB], {"start_to_close_timeout": 2})
        told = sdk.result(handle)

    assert told["category"] == "timeout"
    assert [request for request in sent if request.route == COMPLETE_ACTIVITY] == [Sent(COMPLETE_ACTIVITY, 413)]
    check_invariants()


def test_fails_a_workflow_whose_result_is_over_the_payload_limit(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[Returns]):
        handle = sdk.start("returns", int(1.5 * MIB))

        with pytest.raises(WorkflowFailed, match="payload_size_bytes"):
            sdk.result(handle)

    check_invariants()


def test_blocks_a_workflow_whose_completion_is_over_the_body_limit(sdk: SdkSession) -> None:
    """The SDK reports that its completion was refused; trying again would be refused for ever."""
    with recorded_requests() as sent, sdk.worker(workflows=[Returns]):
        handle = sdk.start("returns", 4 * MIB)
        wait_until(lambda: Run.objects.get(id=handle.run_id).blocked_at)

    assert [request for request in sent if request.route == COMPLETE_WORKFLOW] == [Sent(COMPLETE_WORKFLOW, 413)]
    assert Task.objects.filter(run_id=handle.run_id).count() == 1


def test_lets_an_operator_end_a_run_that_an_oversized_completion_blocked(sdk: SdkSession) -> None:
    with sdk.worker(workflows=[Returns]):
        handle = sdk.start("returns", 4 * MIB)
        wait_until(lambda: Run.objects.get(id=handle.run_id).blocked_at)
    sdk.run(handle.terminate(reason="too large"))

    with pytest.raises(WorkflowTerminated):
        sdk.result(handle)


def test_refuses_an_input_over_the_payload_limit(sdk: SdkSession) -> None:
    with pytest.raises(InvalidArgument):
        sdk.start("returns", "x" * int(1.5 * MIB))

    assert not Run.objects.exists()


def test_refuses_a_start_over_the_body_limit_and_names_limit_and_size(sdk: SdkSession) -> None:
    with recorded_requests() as sent, pytest.raises(ServerError) as refused:
        sdk.start("returns", "x" * 4 * MIB)

    assert refused.value.status == 413
    assert refused.value.body["limit"] == 3 * MIB
    assert refused.value.body["size"] > 4 * MIB
    assert [request.route for request in sent].count("POST /workflows") == 1
