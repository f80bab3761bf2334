"""One case for every refusal: how it comes about through a route, and its exact answer.

A function below `cases` brings the server into the state and returns the request that is refused; `test_refusals.py`
walks all reasons, fails for one without a case, sends the request and compares the answer with nothing left open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.client import ApiClient, Response


@dataclass(frozen=True, slots=True)
class Case:
    """A request that is refused, with the status and the body (without its envelope) of the refusal."""

    send: Callable[[], Response]
    status: int
    body: dict[str, Any]


# `override` is the fixture override_durable.
Arrange = Callable[[ApiClient, Any], Case]

CASES: dict[str, Arrange] = {}


def case(reason: str) -> Callable[[Arrange], Arrange]:
    """Register the case of a reason; there is one each."""

    def keep(arrange: Arrange) -> Arrange:
        assert reason not in CASES, reason
        CASES[str(reason)] = arrange
        return arrange

    return keep


from tests.protocol.cases import control, polls, registration, reports, transport  # noqa: E402

__all__ = ["CASES", "Case", "case", "control", "polls", "registration", "reports", "transport"]
