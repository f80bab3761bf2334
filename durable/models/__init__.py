"""The engine's tables, one aggregate a module. Public to read; writes go through `durable.operations`."""

from __future__ import annotations

from durable.models.activity import ActivityAttempt, ActivityExecution
from durable.models.command import WorkflowCommand
from durable.models.failure import Failure
from durable.models.history import HistoryEvent
from durable.models.namespace import Namespace
from durable.models.receipt import CheckpointReceipt, CompletionReceipt, PollReceipt
from durable.models.refused_report import RefusedReport
from durable.models.run import Run
from durable.models.task import Task
from durable.models.timer import Timer
from durable.models.upkeep import UpkeepLeader, UpkeepPass
from durable.models.worker import WorkerIncarnation, WorkerRegistration
from durable.models.workflow import Workflow

__all__ = [
    "ActivityAttempt",
    "ActivityExecution",
    "CheckpointReceipt",
    "CompletionReceipt",
    "Failure",
    "HistoryEvent",
    "Namespace",
    "PollReceipt",
    "RefusedReport",
    "Run",
    "Task",
    "Timer",
    "UpkeepLeader",
    "UpkeepPass",
    "WorkerIncarnation",
    "WorkerRegistration",
    "Workflow",
    "WorkflowCommand",
]
