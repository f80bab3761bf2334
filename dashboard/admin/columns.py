"""Which cell shows which column: one function per model field, made once, for lists and for the page of one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.db.models import CharField, DateTimeField, Field, Model
from django.db.models.functions import Substr

from dashboard.admin import cells
from durable.models import (
    ActivityAttempt,
    ActivityExecution,
    HistoryEvent,
    Run,
    Task,
    WorkerIncarnation,
    WorkerRegistration,
    Workflow,
    WorkflowCommand,
)
from durable.models.fields import JSONTextField

Cell = Callable[[Any], Any]

# Columns that hold the key of another table's row, foreign key or not.
_KEYS: dict[str, type[Model]] = {
    "activity_attempt_id": ActivityAttempt,
    "activity_execution_id": ActivityExecution,
    "current_run_id": Run,
    "open_task_id": Task,
    "registration_token": WorkerIncarnation,
    "run_id": Run,
    "task_id": Task,
    "workflow_command_id": WorkflowCommand,
    "workflow_id": Workflow,
    "workflow_task_id": Task,
}
_GENERATED_KEYS = _KEYS.keys() - {"workflow_id"}
# Columns that name a worker within the row's namespace, and columns that name an event within the row's run.
_WORKERS = ("lease_owner", "worker_id")
_SEQUENCES = ("input_sequence", "outcome_sequence", "scheduled_sequence", "sequence")


def heading_cell(field: Field[Any, Any]) -> Cell | str:
    """What shows the first column of a list, which links to the row already."""
    return _text_cell(field, cells.MOST_LIST_CHARACTERS)


def list_cell(field: Field[Any, Any]) -> Cell | str:
    """What shows a column in a list; the field's name where Django's own display is right."""
    if isinstance(field, JSONTextField):
        return _cell(field, lambda row, value: ", ".join(str(entry) for entry in value))
    if isinstance(field, DateTimeField):
        return _cell(field, lambda row, value: cells.moment(value))
    if field.attname in _GENERATED_KEYS and not field.primary_key:
        return _cell(field, lambda row, value: cells.row_link(_KEYS[field.attname], value, cells.ending(value)))
    return _shared_cell(field, cells.MOST_LIST_CHARACTERS)


def detail_cell(field: Field[Any, Any]) -> Cell | str:
    """The same on the page of one row. JSON is read here, by the key and not to its end: it may be megabytes."""
    if isinstance(field, JSONTextField):
        return _json_cell(field)
    if isinstance(field, DateTimeField):
        return _cell(field, lambda row, value: cells.exact_moment(value))
    return _shared_cell(field, cells.MOST_DETAIL_CHARACTERS)


def _shared_cell(field: Field[Any, Any], most: int) -> Cell | str:
    name = field.attname
    if name in _KEYS and not field.primary_key:
        return _cell(field, lambda row, value: cells.row_link(_KEYS[name], value, cells.shortened(value, most)))
    if name in _WORKERS:
        return _cell(field, lambda row, value: _worker_link(row, value, cells.shortened(value, most)))
    if name in _SEQUENCES and field.model is not HistoryEvent:
        return _cell(field, _event_link)
    return _text_cell(field, most)


def _text_cell(field: Field[Any, Any], most: int) -> Cell | str:
    if isinstance(field, CharField) and not field.choices:
        return _cell(field, lambda row, value: cells.shortened(value, most))
    return field.name


def _cell(field: Field[Any, Any], show: Callable[[Any, Any], Any]) -> Cell:
    @admin.display(description=field.verbose_name)
    def cell(row: Any) -> Any:
        value = getattr(row, field.attname)
        return cells.NOTHING if value is None or value == "" else show(row, value)

    cell.__name__ = field.attname
    return cell


def _json_cell(field: Field[Any, Any]) -> Cell:
    beginning = Substr(field.name, 1, cells.MOST_PARSED_CHARACTERS + 1)

    @admin.display(description=field.verbose_name)
    def cell(row: Any) -> Any:
        text = field.model._default_manager.filter(pk=row.pk).values_list(beginning, flat=True).first()
        return cells.payload(text)

    cell.__name__ = field.attname
    return cell


def _worker_link(row: Any, worker_id: str, text: object) -> Any:
    return cells.list_link(WorkerRegistration, text, namespace=row.namespace, worker_id=worker_id)


def _event_link(row: Any, sequence: int) -> Any:
    run_id = row.pk if isinstance(row, Run) else row.run_id
    return cells.list_link(HistoryEvent, sequence, run_id=run_id, sequence=sequence)
