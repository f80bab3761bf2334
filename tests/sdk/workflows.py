"""Workflows and activities that several tests run, written as a user of the SDK would."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from durable_workflow import ActivityFailed, activity, workflow

Steps = Generator[Any, Any, Any]

FIVE_RESULTS = [10, 20, 30, 40, 50]


@activity.defn(name="step")
def step(number: int) -> int:
    return number * 10


@workflow.defn(name="five")
class Five:
    """Five activities, one after the other."""

    def run(self, ctx: workflow.WorkflowContext) -> Steps:
        results = []
        for number in range(1, 6):
            results.append((yield ctx.schedule_activity("step", [number])))
        return results


@workflow.defn(name="one")
class One:
    """One activity, named by the caller, with options and arguments; its result is the workflow's."""

    def run(self, ctx: workflow.WorkflowContext, name: str, arguments: list[Any], options: dict[str, Any]) -> Steps:
        return (yield ctx.schedule_activity(name, arguments, **options))


@workflow.defn(name="one-or-why-not")
class OneOrWhyNot:
    """The same, but what the code is told of a failure is the workflow's result."""

    def run(self, ctx: workflow.WorkflowContext, name: str, arguments: list[Any], options: dict[str, Any]) -> Steps:
        try:
            return (yield ctx.schedule_activity(name, arguments, **options))
        except ActivityFailed as failure:
            return {
                "message": str(failure),
                "type": failure.exception_type,
                "category": failure.failure_category,
                "non_retryable": failure.non_retryable,
            }
