"""What the raw worker answers to each task of the workload, from a count of history events, without replay."""

from __future__ import annotations

import asyncio
import uuid

from benchmarks.workload import (
    ACTIVITY_TYPE,
    FIVE,
    LOCAL,
    RUN_RESULT,
    STEP_ARGUMENTS,
    STEP_COUNT,
    STEP_RESULTS,
    Envelope,
    JsonObject,
)

_RESULT_OF_ARGUMENTS = {
    arguments["blob"]: result for arguments, result in zip(STEP_ARGUMENTS, STEP_RESULTS, strict=True)
}


class WrongHistory(Exception):
    """A task's history cannot have come from this workload."""


async def commands_of(task: JsonObject, step_seconds: float) -> list[JsonObject]:
    """The commands that answer a workflow task; none while the activity it waits for is under way.

    Raises WrongHistory when the recorded results are not those of the steps, in order.
    """
    if task["workflow_type"] == FIVE:
        return _commands_of_five(task)
    if task["workflow_type"] == LOCAL:
        return await _commands_of_local(step_seconds)
    raise WrongHistory(f"workflow type {task['workflow_type']!r}")


async def result_of(task: JsonObject, step_seconds: float) -> Envelope:
    """Sleep and return what this step returns."""
    result = _RESULT_OF_ARGUMENTS[task["arguments"]["blob"]]
    await asyncio.sleep(step_seconds)
    return result


def _commands_of_five(task: JsonObject) -> list[JsonObject]:
    if task.get("next_history_page_token") is not None:
        raise WrongHistory("a history of five steps fits on one page")
    events = task["history_events"]
    scheduled = sum(event["event_type"] == "ActivityScheduled" for event in events)
    results = [event["payload"]["result"]["blob"] for event in events if event["event_type"] == "ActivityCompleted"]
    if results != [result["blob"] for result in STEP_RESULTS[: len(results)]]:
        raise WrongHistory(f"{task['workflow_id']}: results {results}")
    if scheduled > len(results):
        return []
    if len(results) == STEP_COUNT:
        return [{"type": "complete_workflow", "result": RUN_RESULT}]
    return [
        {
            "type": "schedule_activity",
            "activity_type": ACTIVITY_TYPE,
            "queue": task["task_queue"],
            "arguments": STEP_ARGUMENTS[len(results)],
        }
    ]


async def _commands_of_local(step_seconds: float) -> list[JsonObject]:
    commands: list[JsonObject] = []
    for arguments, result in zip(STEP_ARGUMENTS, STEP_RESULTS, strict=True):
        await asyncio.sleep(step_seconds)
        attempt = {
            "attempt_id": uuid.uuid4().hex,
            "attempt_number": 1,
            "outcome": "completed",
            "duration_ms": round(step_seconds * 1000),
            "heartbeats": [],
        }
        commands.append(
            {
                "type": "record_local_activity",
                "activity_type": ACTIVITY_TYPE,
                "execution_mode": "local",
                "arguments": arguments,
                "outcome": "completed",
                "result": result,
                "attempts": [attempt],
            }
        )
    commands.append({"type": "complete_workflow", "result": RUN_RESULT})
    return commands
