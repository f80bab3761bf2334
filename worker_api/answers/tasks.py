"""The tasks that polls hand out (docs/protocol/worker-protocol.md 7.1 and 8.1)."""

from __future__ import annotations

from wire.answer_fields import Body, Const, FreeObject, Id, Moment, Name, Nothing, OneWord, Text, Whole, listed
from wire.answers import run_status
from wire.validation import EnvelopeField


class HistoryEvent(Body):
    """One event of a run's history."""

    id = Id()
    sequence = Whole("Counts a run's events from 1, without gaps.", minimum=1)
    event_type = Text("What happened (docs/protocol/history.md 8).", minLength=1, maxLength=64)
    payload = FreeObject("The event's own fields, by its type (docs/protocol/history.md 8).")
    recorded_at = Moment()
    workflow_task_id = Id("The workflow task that recorded it.", null=True)
    workflow_command_id = Id("The command from outside that caused it.", null=True)


class _HistoryPage(Body):
    next_history_page_token = Text("Where the next page begins; null at the end of what the claim may see.", null=True)


class PlainPage(_HistoryPage):
    history_events = listed(HistoryEvent(), "Ends at the page size or at 4 MiB, with at least one event.")


class CompressedPage(_HistoryPage):
    history_events_compressed = Text("Base64 of the compressed JSON list of events.")
    history_events_encoding = OneWord(("gzip", "deflate"), "As asked for in `accept_history_encoding`.")


def _no_context() -> Nothing:
    """Resume context that some servers fill in to spare workers a replay."""
    return Nothing("Resume context; null is always right.")


class _WorkflowTask(Body):
    task_id = Id("Names the task in every report.")
    task_kind = Const("workflow")
    workflow_task_attempt = Whole("Counts the task's claims; fences reports of earlier ones.", minimum=1)
    workflow_id = Name(maxLength=128)
    run_id = Id()
    workflow_type = Name("Which workflow code to run.")
    namespace = Name()
    task_queue = Name()
    payload_codec = Const("avro")
    arguments = EnvelopeField(help_text="The run's input.", allow_null=True)
    lease_owner = Name("The worker that holds the lease.")
    lease_expires_at = Moment()
    total_history_events = Whole("Events this claim may see; later ones belong to a later claim.", minimum=1)
    last_history_sequence = Whole("The newest of them.", minimum=1)
    run_status = run_status()
    compatibility = Name("The build id the run is pinned to.", null=True)
    cancel_requested = Const(False)
    sticky_replay_mode = Const("cold_replay")
    connection = _no_context()
    workflow_wait_kind = _no_context()
    open_wait_id = _no_context()
    resume_source_kind = _no_context()
    resume_source_id = _no_context()
    workflow_signal_id = _no_context()
    signal_name = _no_context()
    signal_wait_id = _no_context()
    activity_execution_id = _no_context()
    activity_attempt_id = _no_context()
    activity_type = _no_context()
    child_call_id = _no_context()
    child_workflow_run_id = _no_context()
    workflow_sequence = _no_context()
    workflow_event_type = _no_context()
    timer_id = _no_context()
    condition_wait_id = _no_context()
    condition_key = _no_context()
    condition_definition_fingerprint = _no_context()
    workflow_update_id = _no_context()
    workflow_command_id = _no_context()


class ClaimedWorkflowTask(_WorkflowTask, PlainPage):
    """A workflow task and the first page of its history."""


class CompressedWorkflowTask(_WorkflowTask, CompressedPage):
    """The same with a compressed page: asked for, and at least `history_compression.compression_threshold` events."""


class RetryPolicy(Body):
    """How the activity is retried and how long it may take, frozen when it was scheduled."""

    snapshot_version = Const(1)
    max_attempts = Whole("Attempts in all.", minimum=1)
    backoff_seconds = listed(Whole(minimum=0), "Seconds before each further attempt; the last element repeats.")
    non_retryable_error_types = listed(Text(), "Failures of these types or classes are final.")
    start_to_close_timeout = Whole("Seconds an attempt may take.", null=True, minimum=1)
    schedule_to_start_timeout = Whole("Seconds an attempt may wait for a worker.", null=True, minimum=1)
    schedule_to_close_timeout = Whole("Seconds for all attempts together.", null=True, minimum=1)
    heartbeat_timeout = Whole("Seconds between two heartbeats.", null=True, minimum=1)


class ActivityDeadlines(Body):
    """The moments that bound the running attempt; a deadline that is not set is left out."""

    start_to_close = Moment(optional=True)
    schedule_to_close = Moment(optional=True)
    heartbeat = Moment(optional=True)
    run = Moment(optional=True)
    execution = Moment(optional=True)


class ClaimedActivityTask(Body):
    """An activity task: one attempt of one step."""

    task_id = Id("Names the task in every report.")
    task_kind = Const("activity")
    activity_attempt_id = Id("Names this attempt; fences reports of earlier ones.")
    activity_execution_id = Id("The step, the same for all its attempts.")
    activity_type = Name("Which activity code to run.")
    attempt_number = Whole(minimum=1)
    idempotency_key = Text("The same for all attempts of the step.")
    workflow_id = Name(maxLength=128)
    run_id = Id()
    workflow_type = Name()
    namespace = Name()
    task_queue = Name()
    payload_codec = Const("avro")
    arguments = EnvelopeField(help_text="A list of arguments.")
    lease_owner = Name("The worker that holds the lease.")
    lease_expires_at = Moment("At most 24 hours after `server_time`.")
    connection = Nothing()
    retry_policy = RetryPolicy(required=False, help_text="Left out when the step has neither policy nor time-outs.")
    deadlines = ActivityDeadlines(required=False, help_text="Left out when there are none.")
