"""Runs: one execution of a workflow, and the row whose lock orders everything that happens to it."""

from __future__ import annotations

from django.db import models

from durable.ids import ID_LENGTH
from durable.models.fields import ExactCharField, JSONTextField
from durable.states import OPEN_RUN, ClosedReason, RunStatus


class Run(models.Model):
    """One run. Whoever appends to its history holds this row's lock; the counters below live here for that reason.

    `running` is never stored: a claim writes no run row, so whether a worker has the run's task is read from the task.
    """

    # Seeds the workers' random generators during replay, so it never changes.
    id = ExactCharField(max_length=ID_LENGTH, primary_key=True)
    namespace = ExactCharField(max_length=128)
    workflow_id = ExactCharField(max_length=128)
    run_number = models.PositiveIntegerField(default=1)
    workflow_type = ExactCharField(max_length=255)
    task_queue = ExactCharField(max_length=255)
    status = models.CharField(max_length=16, choices=RunStatus, default=RunStatus.PENDING)
    # Null while open. A deadline that passed is status `failed` with reason `timed_out`.
    closed_reason = models.CharField(max_length=16, choices=ClosedReason, null=True, blank=True)  # noqa: DJ001 null = open

    # Lower is taken first, 0 to 9; copied to every task of the run.
    priority = models.PositiveSmallIntegerField(default=5)
    # Only workers registered with this build may take the run's workflow tasks; empty = any.
    build_id = ExactCharField(max_length=255, blank=True, default="")
    business_key = ExactCharField(max_length=255, null=True, blank=True)
    memo = JSONTextField(null=True)
    search_attributes = JSONTextField(null=True)
    # Stored for callers, never interpreted: visibility labels, fairness key and weight, trace context.
    labels = JSONTextField(null=True)

    execution_timeout_seconds = models.PositiveIntegerField(null=True)
    run_timeout_seconds = models.PositiveIntegerField(null=True)
    execution_deadline_at = models.DateTimeField(null=True)
    run_deadline_at = models.DateTimeField(null=True)
    # The earlier of the two while the run is open, null once closed: the only key of the deadline sweep.
    deadline_at = models.DateTimeField(null=True)

    created_at = models.DateTimeField()
    # When a worker first took the run; set by the first completion from its claim's `leased_at`.
    started_at = models.DateTimeField(null=True)
    closed_at = models.DateTimeField(null=True)
    last_progress_at = models.DateTimeField()

    last_history_sequence = models.PositiveIntegerField(default=0)
    # Bytes of all payloads in the history: below a page's limit a page needs no byte accounting.
    history_bytes = models.PositiveBigIntegerField(default=0)
    # Events are numbered apart from steps: a step is one durable call of the workflow code.
    next_step_number = models.PositiveIntegerField(default=1)
    # The sequence of the newest event that a worker must still be shown. Whoever ends a claim whose snapshot lies
    # before it creates the next workflow task (docs/concurrency.md 11).
    wake_sequence = models.PositiveIntegerField(default=0)
    # The one workflow task that is ready or leased (docs/concurrency.md 5).
    open_task_id = ExactCharField(max_length=ID_LENGTH, null=True)
    # Events that hold the run's input and its outcome; a payload is stored once, in its event.
    input_sequence = models.PositiveIntegerField(null=True)
    outcome_sequence = models.PositiveIntegerField(null=True)

    pending_activity_count = models.PositiveIntegerField(default=0)
    pending_timer_count = models.PositiveIntegerField(default=0)
    # List groups that some claim may still see unresolved: outermost id -> leaves left, and the sequence that
    # resolved it (docs/protocol/history.md 6.2).
    open_groups = JSONTextField(default=dict)
    # What the workflow code declared it answers to, copied from a worker's registration at the start.
    command_contract = JSONTextField(null=True)
    # Set when a replay failure stopped the run: no task exists until repair or new work wakes it.
    blocked_at = models.DateTimeField(null=True)
    blocked_reason = models.CharField(max_length=1000, blank=True, default="")

    class Meta:
        indexes = (
            models.Index(name="durable_run_list", fields=("namespace", "created_at", "id")),
            models.Index(name="durable_run_by_status", fields=("namespace", "status", "created_at", "id")),
            models.Index(name="durable_run_by_type", fields=("namespace", "workflow_type", "created_at", "id")),
            models.Index(name="durable_run_of_workflow", fields=("workflow_id", "run_number")),
            models.Index(name="durable_run_deadline", fields=("deadline_at",)),
            models.Index(name="durable_run_blocked", fields=("blocked_at",)),
        )
        constraints = (
            models.CheckConstraint(name="durable_run_status_known", condition=models.Q(status__in=RunStatus.values)),
            models.CheckConstraint(
                name="durable_run_closed_as_a_whole",
                condition=(
                    models.Q(status__in=OPEN_RUN, closed_at__isnull=True, closed_reason__isnull=True)
                    | (
                        models.Q(closed_at__isnull=False, closed_reason__isnull=False, deadline_at__isnull=True)
                        & ~models.Q(status__in=OPEN_RUN)
                    )
                ),
            ),
        )

    def __str__(self) -> str:
        return str(self.id)
