"""Carried polls: a completion's own transaction claims the worker's next task (docs/protocol/carried-polls.md).

Activity first, so that one completion never grants both kinds; both under the owner that the completion's guard has
just checked; each in a savepoint. Only a `PollRefusal` is downgraded to "no answer": everything else goes through and
takes the completion with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import structlog
from django.db import DatabaseError, transaction

from durable import claims, conf, logs, metrics
from durable.claims import Claimed, NothingReadyError, PollRequest, Ready
from durable.history.pages import page_size
from durable.leases import Leased, read_lease
from durable.refusals import PollRefusal, Reason, Refusal
from durable.sql.pool import drop_broken_connection
from durable.states import TaskKind

log = structlog.get_logger("durable.carried_polls")


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedPoll:
    """A valid carried poll. Without a poll request id it claims nothing, though it counts as carried."""

    request: PollRequest
    # Whether the completion's answer may hold the task itself, so that no poll need fetch it.
    wants_task: bool = False
    # How its history is to be cut and packed then; the poll that fetches a lease says that for itself.
    history_page_size: int | None = None
    history_encoding: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedPolls:
    """What a completion carries, once everything invalid is left out."""

    activity: CarriedPoll | None = None
    workflow: CarriedPoll | None = None


NOTHING_CARRIED = CarriedPolls()


class CarriedOutcome(StrEnum):
    """What became of a carried poll. Only the first two are an answer; the key stays away for the others."""

    LEASED = "leased"
    EMPTY = "empty"
    # An activity poll came first and leased, or gave no answer; or the completion is a duplicate.
    NOT_ATTEMPTED = "not_attempted"
    # A carried poll names another worker than the one whose claim was completed.
    FOREIGN = "foreign"
    # There is no poll request id under which the lease could be fetched.
    INVALID = "invalid"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedResult:
    """One carried poll and its outcome."""

    poll: CarriedPoll
    outcome: CarriedOutcome
    # Why, when refused.
    reason: Reason | None = None
    claimed: Claimed | None = None
    # The task itself, when it was asked for and could be read.
    leased: Leased | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedResults:
    """What a completion's carried polls came to; None for what was not carried."""

    activity: CarriedResult | None = None
    workflow: CarriedResult | None = None

    @property
    def leased_task_ids(self) -> set[str]:
        results = (self.activity, self.workflow)
        return {result.claimed.facts.task.id for result in results if result is not None and result.claimed is not None}


NO_RESULTS = CarriedResults()


def claim_carried(carried: CarriedPolls, *, owner: str) -> CarriedResults:
    """Claim for the carried polls, inside the completion's transaction and after all its effects.

    `owner` is the lease owner of the completed claim as the guard read it under the lock. If any carried poll names
    another worker, none is served: no claim, no receipt, no replay, not even a look.
    """
    activity, workflow = carried.activity, carried.workflow
    if any(poll is not None and poll.request.worker_id != owner for poll in (activity, workflow)):
        return unserved(carried, CarriedOutcome.FOREIGN)
    activity_result = None if activity is None else _claim(activity)
    if workflow is None:
        return CarriedResults(activity=activity_result)
    # "No answer" is not "nothing ready": only an activity queue that was seen empty lets the workflow claim run.
    if activity_result is None or activity_result.outcome is CarriedOutcome.EMPTY:
        return CarriedResults(activity=activity_result, workflow=_claim(workflow))
    left = CarriedResult(poll=workflow, outcome=CarriedOutcome.NOT_ATTEMPTED)
    return CarriedResults(activity=activity_result, workflow=left)


def unserved(carried: CarriedPolls, outcome: CarriedOutcome) -> CarriedResults:
    """The same outcome for whatever was carried."""
    results = [
        None if poll is None else CarriedResult(poll=poll, outcome=outcome)
        for poll in (carried.activity, carried.workflow)
    ]
    return CarriedResults(activity=results[0], workflow=results[1])


def _claim(poll: CarriedPoll) -> CarriedResult:
    if poll.request.poll_request_id is None:
        return CarriedResult(poll=poll, outcome=CarriedOutcome.INVALID)
    try:
        with transaction.atomic():
            claimed = _look_and_claim(poll.request)
    except NothingReadyError:
        claimed = None
    except PollRefusal as refusal:
        return CarriedResult(poll=poll, outcome=CarriedOutcome.REFUSED, reason=refusal.reason)
    except Refusal as refusal:
        # A refusal that polls do not have: answered as it stands, it would make the worker drop its completion.
        raise AssertionError(f"a claim refused {refusal.reason}") from refusal
    if claimed is None:
        return CarriedResult(poll=poll, outcome=CarriedOutcome.EMPTY)
    return CarriedResult(poll=poll, outcome=CarriedOutcome.LEASED, claimed=claimed)


def _look_and_claim(request: PollRequest) -> Claimed | None:
    """What an ordinary poll does, once and without waiting."""
    seen = claims.look(request)
    if isinstance(seen, Ready):
        return claims.claim(request, seen)
    return seen if isinstance(seen, Claimed) else None


# -- after the commit --------------------------------------------------------------------------------------------------


def fetch_wanted(results: CarriedResults) -> CarriedResults:
    """Read the task that was asked for with the answer, once the completion has committed: at most one more read."""
    return replace(results, activity=_fetch(results.activity), workflow=_fetch(results.workflow))


def _fetch(result: CarriedResult | None) -> CarriedResult | None:
    if result is None or result.claimed is None or not result.poll.wants_task:
        return result
    if _is_surely_too_large(result.claimed, result.poll):
        return result
    try:
        leased = read_lease(result.claimed, history_page_size=result.poll.history_page_size, is_replay=False)
        # Payloads are sent as they are stored: one that is no JSON would spoil the completion's own answer.
        for event in leased.page.events if leased.page else ():
            event.payload.parse()
    except Exception as error:
        metrics.FAULTS.inc()
        log.error("inline_task_unreadable", error=type(error).__name__, traceback=logs.traceback_without_values(error))
        if isinstance(error, DatabaseError):
            drop_broken_connection()
        return result
    return replace(result, leased=leased)


def _is_surely_too_large(claimed: Claimed, poll: CarriedPoll) -> bool:
    """Whether a history that would be sent whole is over the limit by its payloads alone: then it need not be read."""
    task, run = claimed.facts.task, claimed.facts.run
    is_whole = task.kind == TaskKind.WORKFLOW and task.visible_sequence <= page_size(poll.history_page_size)
    return is_whole and run.history_bytes > conf.current().inline_task_bytes
