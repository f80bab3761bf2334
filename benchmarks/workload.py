"""The work that is measured, as constants shared by the starter, both kinds of worker and the check at the end.

A run of "five" schedules five activities one after another; a run of "local" does the same five steps as local
activities inside its workflow task. Step n (1 to 5) sleeps and returns 10 * n; the run returns the list of results.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

JsonObject = dict[str, Any]
Envelope = Mapping[str, str]
Workload = Literal["five", "local"]

STEP_COUNT: Final = 5
TASK_QUEUE: Final = "bench"
ACTIVITY_TYPE: Final = "bench.step"
FIVE: Final = "bench.five"
LOCAL: Final = "bench.local"
WORKFLOW_TYPES: Final[Mapping[str, str]] = {"five": FIVE, "local": LOCAL}

# An Avro single-object frame of the protocol's Value schema: magic, schema fingerprint, then the datum.
_FRAME: Final = bytes.fromhex("c301e2a33dff55802237")


def _long(value: int) -> bytes:
    """The datum of an integer from 0 to 63, whose zig-zag form is the one byte 2 * value."""
    return bytes((0x04, 2 * value))


def _array(items: Sequence[bytes]) -> bytes:
    """The datum of a non-empty list of fewer than 64 values, in one block."""
    return bytes((0x0C, 2 * len(items))) + b"".join(items) + b"\x00"


def _envelope(datum: bytes) -> Envelope:
    return {"codec": "avro", "blob": base64.b64encode(_FRAME + datum).decode("ascii")}


STEPS: Final = range(1, STEP_COUNT + 1)
NO_ARGUMENTS: Final = _envelope(b"\x0c\x00")
STEP_ARGUMENTS: Final = tuple(_envelope(_array([_long(step)])) for step in STEPS)
STEP_RESULTS: Final = tuple(_envelope(_long(10 * step)) for step in STEPS)
RUN_RESULT: Final = _envelope(_array([_long(10 * step) for step in STEPS]))
RUN_OUTPUT: Final = [10 * step for step in STEPS]

# What the history of one finished run must hold, whoever worked on it.
EXPECTED_EVENT_COUNTS: Final[Mapping[str, int]] = {
    "StartAccepted": 1,
    "WorkflowStarted": 1,
    "ActivityScheduled": STEP_COUNT,
    "ActivityStarted": STEP_COUNT,
    "ActivityCompleted": STEP_COUNT,
    "WorkflowCompleted": 1,
}
