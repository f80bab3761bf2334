"""`record_side_effect` and `record_version_marker`: values that replay must see again (history.md 5.9 and 5.10).

Each is a step that is over as soon as it is recorded: the code that recorded it has gone on in the same task.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from durable.commands.batch import Batch
from durable.commands.fields import Fields
from durable.commands.registry import CommandType, register
from durable.history import events

MOST_VERSION = 2_147_483_647


@dataclass(frozen=True, slots=True)
class RecordSideEffect:
    """A validated `record_side_effect`."""

    result: str


def _validate_side_effect(fields: Fields) -> RecordSideEffect | None:
    result = fields.raw.get("result")
    if not isinstance(result, str) or not _is_base64(result):
        fields.fault("result", "This must be the base64 text of an Avro payload.")
        return None
    if fields.raw.get("workflow_stream") is not None:
        fields.fault("workflow_stream", "Streams are not supported.")
    return RecordSideEffect(result)


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return False


def _apply_side_effect(batch: Batch, command: RecordSideEffect) -> None:
    batch.check_payload(len(command.result))
    changes = batch.changes
    changes.append(events.side_effect_recorded(changes.take_step_number(), command.result))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordVersionMarker:
    """A validated `record_version_marker`."""

    change_id: str
    version: int
    min_supported: int
    max_supported: int


def _validate_version_marker(fields: Fields) -> RecordVersionMarker | None:
    change_id = fields.text("change_id", required=True)
    least, version, most = (
        fields.signed(name, most=MOST_VERSION) for name in ("min_supported", "version", "max_supported")
    )
    if change_id is None or least is None or version is None or most is None:
        return None
    if not least <= version <= most:
        fields.fault("version", "This must lie between min_supported and max_supported.")
    return RecordVersionMarker(change_id=change_id, version=version, min_supported=least, max_supported=most)


def _apply_version_marker(batch: Batch, command: RecordVersionMarker) -> None:
    marker = {
        "change_id": command.change_id,
        "version": command.version,
        "min_supported": command.min_supported,
        "max_supported": command.max_supported,
    }
    changes = batch.changes
    changes.append(events.version_marker_recorded(changes.take_step_number(), marker))


register(CommandType(name="record_side_effect", validate=_validate_side_effect, apply=_apply_side_effect))
register(CommandType(name="record_version_marker", validate=_validate_version_marker, apply=_apply_version_marker))
