"""The example histories of docs/protocol/history.md 16, and what it means that a real one has the same shape.

The examples stand in `examples/`, one event a line, with two differences from the page: `ActivityStarted` is where
docs/design.md rule 3 puts it, directly before its attempt's outcome; and `parallel` begins with a local activity where
the page has a side effect, which takes a step number in the same way.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parent / "examples"

# Made by the server; what matters is which of them are the same.
_IDS = {
    "id", "workflow_command_id", "workflow_run_id", "workflow_task_id", "activity_execution_id", "idempotency_key",
    "activity_attempt_id", "worker_attempt_id", "retry_task_id", "retry_of_task_id", "retry_after_attempt_id",
}  # fmt: skip


def example(name: str) -> list[dict[str, Any]]:
    """An example's events."""
    return [json.loads(line) for line in (EXAMPLES / f"{name}.jsonl").read_text().splitlines()]


def check_shape(real: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Same events in the same order; every key of an example is there and says the same. Further keys are allowed."""
    assert [event["event_type"] for event in real] == [event["event_type"] for event in expected]
    ids: dict[str, str] = {}
    for event, wanted in zip(real, expected, strict=True):
        assert event["sequence"] == wanted["sequence"]
        _check_value(event["payload"], wanted["payload"], f"{wanted['sequence']} {wanted['event_type']}", ids)
    assert len(set(ids.values())) == len(ids), "two names of the example are one id in the real history"


def _check_value(real: Any, wanted: Any, path: str, ids: dict[str, str]) -> None:
    if isinstance(wanted, dict):
        assert isinstance(real, dict), path
        for key, value in wanted.items():
            _check_key(key, real, value, f"{path}.{key}", ids)
    elif isinstance(wanted, list):
        assert len(real) == len(wanted), path
        for index, value in enumerate(wanted):
            _check_value(real[index], value, f"{path}.{index}", ids)
    else:
        assert real == wanted, path


def _check_key(key: str, real: dict[str, Any], wanted: Any, path: str, ids: dict[str, str]) -> None:
    # Null and absent are equivalent (docs/protocol/history.md 8).
    value = real.get(key)
    if key in _IDS:
        assert value, path
        assert ids.setdefault(wanted, value) == value, path
    elif key.endswith("_at"):
        assert datetime.fromisoformat(value), path
    else:
        _check_value(value, wanted, path, ids)
