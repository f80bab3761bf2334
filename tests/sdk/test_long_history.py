"""It pages a long history to the worker that replays it."""

from __future__ import annotations

from typing import Any

from durable_workflow import workflow

from durable.models import Run
from durable.protocol import SERVED
from tests import factories as make
from tests.sdk.recording import Sent, recorded_requests
from tests.sdk.session import QUEUE, SdkSession
from tests.sdk.workflows import Steps, step

LOCALS = 400
# Start, three events a local activity, and the scheduled one.
EVENTS = 2 + 3 * LOCALS + 1


@workflow.defn(name="long")
class Long:
    """Four hundred recorded results, then one that makes a worker replay them all."""

    def run(self, ctx: workflow.WorkflowContext) -> Steps:
        total = 0
        for number in range(LOCALS):
            total += yield ctx.local_activity("step", [number])
        return total + (yield ctx.schedule_activity("step", [1]))


def local(number: int) -> dict[str, Any]:
    """A `record_local_activity` command of `step`, as the SDK would send it."""
    attempt = {"attempt_id": f"a-{number}", "attempt_number": 1, "outcome": "completed", "duration_ms": 0}
    return {
        "type": "record_local_activity",
        "activity_type": "step",
        "execution_mode": "local",
        "arguments": make.envelope([number]),
        "outcome": "completed",
        "result": make.envelope(number * 10),
        "attempts": [{**attempt, "heartbeats": []}],
    }


def build_up(sdk: SdkSession) -> Run:
    """The run as a worker left it whose first task recorded all local activities at once."""
    handle = sdk.start("long")
    make.register(task_queue=QUEUE, supported_workflow_types=["long"], protocol_version=SERVED)
    first = make.lease_workflow(task_queue=QUEUE)
    make.complete(first, *[local(number) for number in range(LOCALS)], make.schedule(arguments=make.envelope([1])))
    return Run.objects.get(id=handle.run_id)


def test_replays_twelve_hundred_events_page_by_page(sdk: SdkSession) -> None:
    run = build_up(sdk)
    assert run.last_history_sequence == EVENTS

    with recorded_requests() as sent, sdk.worker(workflows=[Long], activities=[step]):
        result = sdk.result(sdk.client.get_workflow_handle(run.workflow_id, run_id=run.id))

    assert result == sum(number * 10 for number in range(LOCALS)) + 10
    # 1,205 events in pages of 500: one with the claim, two more by their tokens.
    assert sent.count(Sent("POST /worker/workflow-tasks/*/history", 200)) == 2
    assert make.event_types(run.id)[-1] == "WorkflowCompleted"


def test_shows_a_client_the_whole_of_it(sdk: SdkSession) -> None:
    run = build_up(sdk)

    first = sdk.run(sdk.client.get_history(run.workflow_id, run.id, page_size=1000))
    second = sdk.run(
        sdk.client.get_history(run.workflow_id, run.id, page_size=1000, next_page_token=first["next_page_token"])
    )

    sequences = [event["sequence"] for page in (first, second) for event in page["events"]]
    assert sequences == list(range(1, EVENTS + 1))
    assert second["next_page_token"] is None
