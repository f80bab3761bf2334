"""Polls that completions carry: read from the body, and answered in it (docs/protocol/carried-polls.md).

Whatever is wrong with a carried poll never touches the completion: the poll is left out, and the worker polls itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import structlog
from rest_framework.serializers import Serializer

from durable import conf, logs, metrics
from durable.carried_polls import CarriedOutcome, CarriedPoll, CarriedPolls, CarriedResult, CarriedResults
from durable.jsontext import JSONText, dump_json
from durable.refusals import Refusal
from durable.states import TaskKind
from wire.capabilities import CARRY_SETTINGS
from wire.process import runtime
from wire.views import ApiView, Call
from worker_api.leases import lease_fields
from worker_api.poll_requests import poll_request
from worker_api.requests import CarriedActivityPoll, CarriedWorkflowPoll

log = structlog.get_logger("durable.api")


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """One kind of completion that may carry one kind of poll."""

    capability: str
    kind: Literal["activity", "workflow"]
    request_serializer: type[Serializer[Any]]

    @property
    def field(self) -> str:
        """The key in the request, and in the answer."""
        return f"{self.kind}_poll"

    @property
    def is_on(self) -> bool:
        return bool(getattr(conf.current(), CARRY_SETTINGS[self.capability]))


ON_WORKFLOW_TASK = (
    Carrier(
        capability="workflow_task_completion_activity_poll", kind="activity", request_serializer=CarriedActivityPoll
    ),
    Carrier(
        capability="workflow_task_completion_workflow_poll", kind="workflow", request_serializer=CarriedWorkflowPoll
    ),
)
ON_ACTIVITY_TASK = (
    Carrier(capability="activity_completion_workflow_poll", kind="workflow", request_serializer=CarriedWorkflowPoll),
)


def read_carried_polls(call: Call, carriers: tuple[Carrier, ...]) -> CarriedPolls:
    """The polls that this completion carries; one that is off or not valid is not there."""
    polls = {carrier.kind: _read(call, carrier) for carrier in carriers if _is_carried(call, carrier)}
    return CarriedPolls(**polls)


def _is_carried(call: Call, carrier: Carrier) -> bool:
    return call.body.get(carrier.field) is not None and carrier.is_on


def _read(call: Call, carrier: Carrier) -> CarriedPoll | None:
    given = call.body[carrier.field]
    if not isinstance(given, dict):
        return None
    may_want_task = conf.current().carry_inline_task
    if not may_want_task:
        given = {key: value for key, value in given.items() if key != "deliver"}
    try:
        data = ApiView.checked(carrier.request_serializer, given)
    except Refusal:
        return None
    request = poll_request(call, TaskKind(carrier.kind), data)
    if carrier.kind == TaskKind.WORKFLOW and (request.poll_request_id is None or request.task_kinds != ("workflow",)):
        return None
    return CarriedPoll(
        request=request,
        wants_task=data.get("deliver") == "inline",
        history_page_size=data.get("history_page_size"),
        history_encoding=data.get("accept_history_encoding"),
    )


def carried_fields(call: Call, carriers: tuple[Carrier, ...], results: CarriedResults) -> dict[str, Any]:
    """The keys that a recorded completion's answer has for the polls it carried; the outcomes are counted."""
    fields = {}
    for carrier in carriers:
        if not _is_carried(call, carrier):
            continue
        result = results.activity if carrier.kind == TaskKind.ACTIVITY else results.workflow
        _count(carrier, result)
        if result is None or result.outcome not in (CarriedOutcome.LEASED, CarriedOutcome.EMPTY):
            continue
        # A poll that was answered is a sign of life, carried or not.
        runtime().note_seen(result.poll.request.namespace, result.poll.request.worker_id)
        fields[carrier.field] = _member(result)
    return fields


def _count(carrier: Carrier, result: CarriedResult | None) -> None:
    outcome = CarriedOutcome.INVALID if result is None else result.outcome
    reason = (result and result.reason) or ""
    metrics.CARRIED_POLLS.labels(capability=carrier.capability, outcome=outcome, reason=reason).inc()
    if outcome is CarriedOutcome.LEASED:
        metrics.CLAIMS.labels(kind=carrier.kind).inc()


def _member(result: CarriedResult) -> dict[str, Any]:
    if result.outcome is CarriedOutcome.EMPTY:
        return {"leased": False}
    if not result.poll.wants_task:
        return {"leased": True}
    inline = _inline(result)
    metrics.INLINE_TASKS.labels(outcome="delivered" if inline else "left_to_poll").inc()
    return {"leased": True, **inline}


def _inline(result: CarriedResult) -> dict[str, Any]:
    """What the poll would answer, envelope apart; nothing if it could not be read or is too large for here."""
    if result.leased is None:
        return {}
    fields = lease_fields(result.leased, history_encoding=result.poll.history_encoding)
    try:
        text = dump_json(fields["task"])
    except ValueError as error:
        # Something stored has no JSON form. The completion is recorded all the same; the poll shows the fault.
        metrics.FAULTS.inc()
        log.error("inline_task_unreadable", error=type(error).__name__, traceback=logs.traceback_without_values(error))
        return {}
    if len(text.encode()) > conf.current().inline_task_bytes:
        return {}
    return {**fields, "task": JSONText(text)}
