"""The end of a step, of whatever kind: its run is woken, or goes on waiting for the rest of a list (history.md 6.2)."""

from __future__ import annotations

from durable.changes import RunChanges
from durable.commands import groups


def end_step(changes: RunChanges, group_id: str | None, sequence: int) -> None:
    """The step is over with the event at `sequence`. Wakes the run, unless other leaves of its list group are open."""
    if group_id is None:
        changes.wake(sequence)
        return
    open_groups, resolved = groups.with_leaf_closed(changes.run.open_groups, group_id, sequence)
    changes.set(open_groups=open_groups)
    if resolved:
        changes.wake(sequence)
