"""What one worker has room for: one workflow task and one activity, each held by a reservation.

A reservation is made under a fresh poll request id before a poll is sent, an ordinary one or one carried on a
completion, so that whatever the server leases finds room. It ends when nothing came of the poll, or when the task it
brought is done with.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection
from datetime import datetime
from typing import Literal, Self

from benchmarks.workload import JsonObject

TaskKind = Literal["workflow", "activity"]
KINDS: tuple[TaskKind, ...] = ("workflow", "activity")


class Reservation:
    """Room for one task of one kind.

    `poll` is the ordinary poll that waits for a task to fill it; None while the room is spoken for, be it by a carried
    poll, by a lease that is being fetched, or by the task itself. `is_unsettled`: the server may have leased a task
    under this id without this worker knowing, so that the id must be polled with before it is given up.
    """

    def __init__(self, kind: TaskKind) -> None:
        self.kind = kind
        self.poll: asyncio.Task[None] | None = None
        self.renew()

    def renew(self) -> None:
        """Keep the room, for another task than the one it held."""
        self.poll_request_id = uuid.uuid4().hex
        self.is_unsettled = False


class Reservations:
    """At most one reservation of each kind at a time."""

    def __init__(self) -> None:
        self._held: dict[TaskKind, Reservation] = {}

    def reserve(self, kind: TaskKind) -> Reservation | None:
        """Room under a fresh poll request id, or None when it is taken."""
        if kind in self._held:
            return None
        reservation = self._held[kind] = Reservation(kind)
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Give the room back. Raises KeyError when it is not held by this reservation."""
        if self._held.get(reservation.kind) is not reservation:
            raise KeyError(reservation.kind)
        del self._held[reservation.kind]

    def held(self) -> Collection[Reservation]:
        return self._held.values()

    def waiting(self, kind: TaskKind) -> Reservation | None:
        """The reservation of this kind, if an ordinary poll waits for a task to fill it."""
        reservation = self._held.get(kind)
        return reservation if reservation is not None and reservation.poll is not None else None


class Lease:
    """A leased task, and when its lease ends on the event loop's clock."""

    def __init__(self, task: JsonObject, ends_at: float) -> None:
        self.task = task
        self.ends_at = ends_at

    @classmethod
    def received(cls, body: JsonObject, received_at: float) -> Self:
        """The lease in a poll's answer, or in the member of a completion's answer that delivers a task inline.

        What is left of it is the server's to say: it was granted before this answer, maybe long before, and this
        machine's clock may be wrong. Raises ValueError when nothing is left.
        """
        expires_at = datetime.fromisoformat(body["task"]["lease_expires_at"])
        remaining_seconds = (expires_at - datetime.fromisoformat(body["server_time"])).total_seconds()
        if remaining_seconds <= 0:
            raise ValueError(f"a lease that ended {-remaining_seconds:g} s before it was delivered")
        return cls(body["task"], received_at + remaining_seconds)
