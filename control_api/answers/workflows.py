"""Answers of workflow operations (docs/protocol/control-plane.md 6 and 7)."""

from __future__ import annotations

from durable.refusals import Reason
from durable.states import STATUS_BUCKETS
from wire.answer_fields import (
    Answers,
    AnyJSON,
    Body,
    Const,
    Flag,
    FreeObject,
    Id,
    Moment,
    Name,
    Nothing,
    OneWord,
    Text,
    Whole,
    listed,
)
from wire.answers import ControlRefusal, closed_reason, run_status
from wire.validation import EnvelopeField


class InstanceNotFound(ControlRefusal):
    """There is no workflow with this id in the namespace."""

    reason = Const(Reason.INSTANCE_NOT_FOUND)
    workflow_id = Text()


class RunNotFound(ControlRefusal):
    """The workflow has no such run."""

    reason = Const(Reason.RUN_NOT_FOUND)
    workflow_id = Text()
    run_id = Text()


class RunItem(Body):
    """A run in a list."""

    workflow_id = Name(maxLength=128)
    run_id = Id()
    run_number = Whole("Counts a workflow's runs.", minimum=1)
    namespace = Name()
    workflow_type = Name()
    business_key = Name("The caller's own key.", null=True)
    status = run_status()
    status_bucket = OneWord(STATUS_BUCKETS, "The coarse status that lists filter by.")
    is_terminal = Flag("Whether the run is closed.")
    closed_reason = closed_reason()
    task_queue = Name()
    compatibility = Name("The build id the run is pinned to.", null=True)
    payload_codec = Const("avro")
    started_at = Moment("When a worker first took the run; until then, when it was made.")
    closed_at = Moment(null=True)
    last_progress_at = Moment()
    search_attributes = FreeObject("By name: a scalar or a list of strings, as the caller gave them.")


class ListedRun(RunItem):
    """A run in the list of a workflow's runs."""

    is_current_run = Flag()


class WorkflowList(Body):
    """A page of runs, newest first, one row a run."""

    workflows = listed(RunItem(), "At most `page_size`.")
    workflow_count = Whole("Runs on this page.", minimum=0)
    next_page_token = Text("Where the next page begins; null on the last one.", null=True)


class RunList(Body):
    """All runs of a workflow, oldest first."""

    workflow_id = Text()
    run_count = Whole(minimum=1)
    runs = listed(ListedRun(), "By run number.")


class RunActions(Body):
    """Which commands the run would take now."""

    can_signal = Flag()
    can_query = Flag()
    can_update = Flag()
    can_cancel = Flag()
    can_terminate = Flag()
    can_repair = Flag()
    can_archive = Flag()


class DescribedRun(RunItem):
    """Everything about one run."""

    memo = FreeObject("As the caller gave it at the start; lists leave it out.")
    run_count = Whole("Runs of the workflow so far.", minimum=1)
    is_current_run = Flag()
    execution_timeout_seconds = Whole("For all runs of the workflow.", null=True, minimum=1)
    run_timeout_seconds = Whole("For this run.", null=True, minimum=1)
    execution_deadline_at = Moment(null=True)
    run_deadline_at = Moment(null=True)
    input = AnyJSON("The decoded input; null where it has no exact JSON form.", null=True)
    output = AnyJSON("The decoded result; null where it has no exact JSON form.", null=True)
    input_envelope = EnvelopeField(help_text="The input as it is stored.", allow_null=True)
    output_envelope = EnvelopeField(help_text="The result as it is stored; null until there is one.", allow_null=True)
    wait_kind = OneWord(("activity", "timer"), "What an open run waits for.", null=True)
    wait_reason = Text("The same in words, for people.", null=True)
    blocked_reason = Text("The workflow task failure that blocks the run until repair or new work.", null=True)
    actions = RunActions()


class Principal(Body):
    """Who gave a command."""

    type = Text("`token`.")
    id = Text("The client the token belongs to.")
    label = Text("For people.")


class RunEvent(Body):
    """One event of a run's history."""

    sequence = Whole("Counts a run's events from 1, without gaps.", minimum=1)
    event_type = Text("What happened (docs/protocol/history.md 8).", minLength=1, maxLength=64)
    timestamp = Moment()
    principal = Principal(allow_null=True, help_text="Who gave the command that caused it; null if none did.")
    payload = FreeObject("The event's own fields, by its type (docs/protocol/history.md 8).")


class RunHistory(Body):
    """A page of a run's history, oldest event first."""

    workflow_id = Text()
    run_id = Id()
    compatibility = Name("The build id the run is pinned to.", null=True)
    events = listed(RunEvent(), "Ends at the page size or at 4 MiB, with at least one event.")
    next_page_token = Text("Where the next page begins; null at the end.", null=True)


class InvalidPageToken(ControlRefusal):
    """The page token is not one of this server's."""

    reason = Const(Reason.INVALID_PAGE_TOKEN)


class _Started(Body):
    workflow_id = Name(maxLength=128)
    run_id = Id()
    workflow_type = Name()
    namespace = Name()
    status = run_status()
    business_key = Name(null=True)
    payload_codec = Const("avro")
    command_status = Const("accepted")
    command_source = Const("control_plane")
    reason = Nothing()
    rejection_reason = Nothing()
    message = Text("What happened, for people.")


class WorkflowStarted(_Started):
    """The workflow, its first run, two events and a workflow task exist now."""

    http_status = 201
    outcome = Const("started_new")
    command_id = Id()


class WorkflowFound(_Started):
    """`use-existing`: a workflow with this id and type is open; nothing was changed."""

    outcome = Const("returned_existing_active")
    command_id = Nothing()


class InstanceAlreadyStarted(ControlRefusal):
    """A workflow with this id exists, and the policy is `fail` or its current run is closed."""

    reason = Const(Reason.INSTANCE_ALREADY_STARTED)
    outcome = Const("rejected_duplicate")
    workflow_id = Text()
    run_id = Id("The current run.")
    workflow_type = Name()


class WorkflowIdReserved(ControlRefusal):
    """The id is taken in another namespace."""

    reason = Const(Reason.WORKFLOW_ID_RESERVED_IN_NAMESPACE)
    outcome = Const("rejected_workflow_id_reserved_in_namespace")
    workflow_id = Text()


class _CommandAccepted(Body):
    workflow_id = Text()
    run_id = Id("The run it was carried out on.")
    requested_run_id = Text("The run the path names, if it names one.", null=True)
    resolved_run_id = Id("The run it was carried out on.")
    command_id = Id()
    command_status = Const("accepted")
    command_source = Const("control_plane")
    target_scope = OneWord(("instance", "run"), "Whether the path names a run.")
    workflow_type = Name()
    run_status = run_status("The run's status after the command.")
    reason = Text("The reason given, without white space around it.", null=True, maxLength=1000)
    rejection_reason = Nothing()


class WorkflowCancelled(_CommandAccepted):
    """The run is closed as cancelled; its code does not run again."""

    outcome = Const("cancelled")


class WorkflowTerminated(_CommandAccepted):
    """The run is closed as terminated; its code does not run again."""

    outcome = Const("terminated")


class WorkflowRepaired(_CommandAccepted):
    """A run without a workflow task that needs one has one again; any other is left as it is."""

    outcome = OneWord(("repair_dispatched", "repair_not_needed"))


class HistoricalRunRefused(ControlRefusal):
    """The path names a run that is not the workflow's current one."""

    reason = Const(Reason.HISTORICAL_RUN_COMMAND_REJECTED)
    target_scope = Const("run")
    outcome = Const("rejected_not_current")
    workflow_id = Text()
    run_id = Text()


class RunNotActive(ControlRefusal):
    """The run is closed."""

    reason = Const(Reason.RUN_NOT_ACTIVE)
    workflow_id = Text()
    run_id = Id()
    run_status = run_status()
    is_terminal = Const(True)
    outcome = Const("rejected_not_active")


class RunKeptMoving(ControlRefusal):
    """The workflow moved to a new run each of the three times it was tried: send the command again."""

    reason = Const(Reason.RUN_NOT_ACTIVE)
    workflow_id = Text()
    is_terminal = Const(False)


_TARGET: Answers = (InstanceNotFound, RunNotActive, RunKeptMoving)
_RUN_TARGET: Answers = (*_TARGET, RunNotFound, HistoricalRunRefused)

LIST: Answers = (WorkflowList,)
START: Answers = (WorkflowStarted, WorkflowFound, InstanceAlreadyStarted, WorkflowIdReserved)
DESCRIBE: Answers = (DescribedRun, InstanceNotFound)
DESCRIBE_RUN: Answers = (DescribedRun, InstanceNotFound, RunNotFound)
LIST_RUNS: Answers = (RunList, InstanceNotFound)
HISTORY: Answers = (RunHistory, InstanceNotFound, RunNotFound, InvalidPageToken)
CANCEL: Answers = (WorkflowCancelled, *_TARGET)
CANCEL_RUN: Answers = (WorkflowCancelled, *_RUN_TARGET)
TERMINATE: Answers = (WorkflowTerminated, *_TARGET)
TERMINATE_RUN: Answers = (WorkflowTerminated, *_RUN_TARGET)
REPAIR: Answers = (WorkflowRepaired, *_TARGET)
