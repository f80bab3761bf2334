"""The commands of a completion as serializers, for the API documents (docs/protocol/history.md 5).

They describe and never run: the engine reads commands itself (durable/commands/). A test holds the list against the
registered types.
"""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from durable.commands.activities import CANCELLATION_POLICIES
from durable.commands.fields import MOST_SECONDS
from durable.commands.groups import MOST_LEAVES
from durable.commands.local_activities import MOST_ATTEMPTS, OUTCOMES, RETRY_REASONS, TIMEOUT_KINDS
from durable.commands.markers import MOST_VERSION
from durable.commands.retry import MOST_BACKOFFS
from wire.answer_fields import Const, FreeObject, OneWord, Text, Whole
from wire.validation import EnvelopeField, FlagField, TextField, WholeField

MOST_MESSAGE = 1_000_000


def _text(says: str, *, required: bool = False, longest: int = 255) -> TextField:
    return TextField(
        required=required,
        allow_null=not required,
        allow_controls=True,
        trim_whitespace=False,
        max_length=longest,
        help_text=says,
    )


def _message(says: str, *, required: bool = False) -> Text:
    return Text(says, null=not required, optional=not required, maxLength=MOST_MESSAGE)


def _whole(says: str, *, least: int, most: int = MOST_SECONDS, required: bool = False) -> WholeField:
    return WholeField(min_value=least, max_value=most, required=required, allow_null=not required, help_text=says)


def _flag(says: str) -> FlagField:
    return FlagField(required=False, allow_null=True, help_text=says)


def _payload(says: str) -> EnvelopeField:
    return EnvelopeField(required=False, allow_null=True, help_text=says)


class RetryPolicyBody(serializers.Serializer[Any]):
    """How a failed activity is tried again."""

    max_attempts = _whole("Attempts in all; 1 unless it is said.", least=1, most=1_000_000)
    backoff_seconds = serializers.ListField(
        child=WholeField(min_value=0),
        required=False,
        allow_null=True,
        max_length=MOST_BACKOFFS,
        help_text="Seconds before each further attempt; the last element repeats, none means at once.",
    )
    non_retryable_error_types = serializers.ListField(
        child=Text(),
        required=False,
        allow_null=True,
        max_length=1000,
        help_text="Failures of these types or classes are final.",
    )


class GroupBody(serializers.Serializer[Any]):
    """One list group that a step belongs to."""

    parallel_group_id = Text("`<prefix>:<base>:<size>`.")
    parallel_group_kind = OneWord(("activity", "timer", "mixed"), "What the group's steps are.")
    parallel_group_base_sequence = _whole("The number of the group's first step.", least=1, required=True)
    parallel_group_size = _whole("Steps in the group.", least=1, most=MOST_LEAVES, required=True)
    parallel_group_index = _whole("Steps of the group before this one.", least=0, most=MOST_LEAVES - 1, required=True)


class _TimeOuts(serializers.Serializer[Any]):
    retry_policy = RetryPolicyBody(required=False, allow_null=True)
    start_to_close_timeout = _whole("Seconds an attempt may take.", least=1)
    schedule_to_start_timeout = _whole("Seconds an attempt may wait for a worker.", least=1)
    schedule_to_close_timeout = _whole("Seconds for all attempts together.", least=1)
    heartbeat_timeout = _whole("Seconds between two heartbeats.", least=1)


class _ListLeaf(serializers.Serializer[Any]):
    parallel_group_path = serializers.ListField(
        child=GroupBody(),
        required=False,
        allow_null=True,
        min_length=1,
        max_length=100,
        help_text="The list groups the step belongs to, outermost first.",
    )
    parallel_group_id = Text("Of the innermost group.", null=True, optional=True)
    parallel_group_kind = Text("Of the innermost group.", null=True, optional=True)
    parallel_group_base_sequence = _whole("Of the innermost group.", least=1)
    parallel_group_size = _whole("Of the innermost group.", least=1, most=MOST_LEAVES)
    parallel_group_index = _whole("In the innermost group.", least=0, most=MOST_LEAVES - 1)


class ScheduleActivityCommand(_TimeOuts, _ListLeaf):
    """One step that an activity worker carries out.

    Time-outs must fit into each other: heartbeat, start to close, schedule to close. The group fields at the top repeat
    the innermost entry of `parallel_group_path`; all steps of a group stand side by side in one batch.
    """

    type = Const("schedule_activity")
    activity_type = _text("Which activity.", required=True)
    arguments = _payload("A list of arguments; none unless it is sent.")
    queue = _text("The task queue; the run's own unless it is said.")
    cancellation_policy = OneWord(CANCELLATION_POLICIES, "Only `try_cancel` is offered.", null=True, optional=True)


class HeartbeatBody(serializers.Serializer[Any]):
    """One heartbeat of a local activity; further keys are ignored."""

    elapsed_ms = serializers.IntegerField(min_value=0, help_text="Since the attempt began; never decreases.")
    details = FreeObject("The attempt's own notes on its progress.", null=True, optional=True)


class LocalAttemptBody(serializers.Serializer[Any]):
    """One attempt of a local activity."""

    attempt_id = _text("Unique in the list.", required=True)
    attempt_number = _whole("Counts from 1, in order.", least=1, required=True)
    outcome = OneWord(OUTCOMES, "An attempt that was retried failed or timed out; the last has the command's outcome.")
    duration_ms = _whole("How long it took.", least=0, most=10**12, required=True)
    heartbeats = serializers.ListField(
        child=HeartbeatBody(), required=False, allow_null=True, help_text="At most 1000 in all attempts together."
    )
    message = _message("Why it failed, for people.")
    exception_type = _text("The error's type.", longest=1000)
    non_retryable = _flag("No further attempt, whatever the policy says.")
    timeout_kind = OneWord(TIMEOUT_KINDS, "Which time-out it was.", null=True, optional=True)
    retry_reason = OneWord(RETRY_REASONS, "Why it was tried again; left out for the last.", null=True, optional=True)
    backoff_seconds = _whole("Before the next attempt, as the policy says; left out for the last.", least=0)


class RecordLocalActivityCommand(_TimeOuts):
    """One activity that ran inside the workflow task, recorded whole."""

    type = Const("record_local_activity")
    activity_type = _text("Which activity.", required=True)
    execution_mode = Const("local")
    outcome = OneWord(OUTCOMES, "Of the last attempt.")
    arguments = _payload("A list of arguments; none unless it is sent.")
    result = _payload("Needed if it completed, refused otherwise.")
    message = _message("Why it failed, for people; needed unless it completed.")
    exception_type = _text("The error's type.", longest=1000)
    non_retryable = _flag("The failure was final whatever the policy says.")
    timeout_kind = OneWord(TIMEOUT_KINDS, "Needed if it timed out.", null=True, optional=True)
    attempts = serializers.ListField(
        child=LocalAttemptBody(), min_length=1, max_length=MOST_ATTEMPTS, help_text="In order, at most the policy's."
    )


class StartTimerCommand(_ListLeaf):
    """One step that ends when its time has come; 0 is as soon as can be, though never within this completion."""

    type = Const("start_timer")
    delay_seconds = _whole("Seconds until it fires; never early.", least=0, required=True)


class RecordSideEffectCommand(serializers.Serializer[Any]):
    """A value that the code made outside of what replay can repeat; replay gets it from history."""

    type = Const("record_side_effect")
    result = Text("Base64 of an Avro payload, kept as it was sent.", minLength=1)


class RecordVersionMarkerCommand(serializers.Serializer[Any]):
    """Which version of a change the run goes by; min_supported <= version <= max_supported."""

    type = Const("record_version_marker")
    change_id = _text("Which change.", required=True)
    version = Whole("The version taken.", minimum=-MOST_VERSION, maximum=MOST_VERSION)
    min_supported = Whole("The oldest that the code still knows.", minimum=-MOST_VERSION, maximum=MOST_VERSION)
    max_supported = Whole("The newest that the code knows.", minimum=-MOST_VERSION, maximum=MOST_VERSION)


class CompleteWorkflowCommand(serializers.Serializer[Any]):
    """The run ends with a result."""

    type = Const("complete_workflow")
    result = _payload("None unless it is sent.")


class ExceptionBody(serializers.Serializer[Any]):
    """The exception as its worker sees it; its keys win over the command's, and further ones are kept."""

    type = Text("The error's type.", null=True, optional=True)
    message = Text("For people.", null=True, optional=True)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {**super().get_fields(), "class": Text("The error's class.", null=True, optional=True)}


class FailWorkflowCommand(serializers.Serializer[Any]):
    """The run ends with a failure."""

    type = Const("fail_workflow")
    message = _message("For people; may be empty.", required=True)
    exception_type = _text("The error's type.", longest=1000)
    exception_class = _text("The error's class.", longest=1000)
    exception = ExceptionBody(required=False, allow_null=True)
    non_retryable = _flag("A caller should not try again.")
    failed_step_sequence = _whole("The step whose failure this is.", least=1)
    failed_activity_execution_id = _text("The activity whose failure this is.")


COMMANDS: dict[str, type[serializers.Serializer[Any]]] = {
    "complete_workflow": CompleteWorkflowCommand,
    "fail_workflow": FailWorkflowCommand,
    "record_local_activity": RecordLocalActivityCommand,
    "record_side_effect": RecordSideEffectCommand,
    "record_version_marker": RecordVersionMarkerCommand,
    "schedule_activity": ScheduleActivityCommand,
    "start_timer": StartTimerCommand,
}
