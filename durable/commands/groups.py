"""List groups: several steps that workflow code started at once (docs/protocol/history.md 6.1 to 6.3).

The worker labels every leaf with its place; every event of the step repeats the label. While a leaf is unresolved the
worker sends the whole group again on every replay, so a group that was unresolved in the claimed history is a repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from durable.commands.fields import Fields, as_whole

GROUP_FIELDS = (
    "parallel_group_id",
    "parallel_group_kind",
    "parallel_group_base_sequence",
    "parallel_group_size",
    "parallel_group_index",
)
_PREFIXES = {
    "activity": "parallel-activities",
    "timer": "parallel-timers",
    "mixed": "parallel-calls",
}
MOST_LEAVES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEntry:
    """One level of a leaf's place: `index` counts the leaves of this group before it."""

    prefix: str
    kind: str
    base: int
    size: int
    index: int

    @property
    def id(self) -> str:
        return f"{self.prefix}:{self.base}:{self.size}"

    def shifted(self, by: int) -> GroupEntry:
        return GroupEntry(prefix=self.prefix, kind=self.kind, base=self.base + by, size=self.size, index=self.index)

    def fields(self) -> dict[str, Any]:
        values = (self.id, self.kind, self.base, self.size, self.index)
        return dict(zip(GROUP_FIELDS, values, strict=True))


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Where a leaf stands: its groups, outermost first."""

    path: tuple[GroupEntry, ...]

    @property
    def outermost(self) -> GroupEntry:
        return self.path[0]

    def rewritten_for(self, step_number: int) -> GroupPlace:
        """The same place in a group whose base is where the server really counts (a worker may predict too low)."""
        by = step_number - (self.outermost.base + self.outermost.index)
        return GroupPlace(tuple(entry.shifted(by) for entry in self.path)) if by else self

    def event_fields(self) -> dict[str, Any]:
        """The block that every event of the step repeats: the innermost entry, and the whole path."""
        return {**self.path[-1].fields(), "parallel_group_path": [entry.fields() for entry in self.path]}


def read_place(fields: Fields) -> GroupPlace | None:
    """The leaf's place from a command; None for a step outside any group."""
    raw_path = fields.raw.get("parallel_group_path")
    if raw_path is None:
        if any(fields.raw.get(name) is not None for name in GROUP_FIELDS):
            fields.fault("parallel_group_path", "This field is required with the other parallel group fields.")
        return None
    if not isinstance(raw_path, list) or not 1 <= len(raw_path) <= 100:
        fields.fault("parallel_group_path", "This must be a list of 1 to 100 groups, outermost first.")
        return None
    path = [_read_entry(raw, fields, f"parallel_group_path.{number}") for number, raw in enumerate(raw_path)]
    if any(entry is None for entry in path):
        return None
    place = GroupPlace(tuple(entry for entry in path if entry is not None))
    top_level = {name: fields.raw.get(name) for name in GROUP_FIELDS}
    if any(value is not None for value in top_level.values()):
        top_level |= {name: as_whole(top_level[name]) for name in GROUP_FIELDS[2:]}
        if top_level != place.path[-1].fields():
            fields.fault("parallel_group_id", "The top-level group fields must repeat the innermost entry of the path.")
    if len({entry.base + entry.index for entry in place.path}) != 1:
        fields.fault("parallel_group_path", "base + index must name the same step in every entry.")
    return place


def _read_entry(raw: Any, fields: Fields, name: str) -> GroupEntry | None:
    if not isinstance(raw, dict):
        fields.fault(name, "This must be an object.")
        return None
    if raw.get("parallel_group_mode") == "select" or str(raw.get("parallel_group_id", "")).startswith("select-calls:"):
        fields.fault(name, "Selects are not supported.")
        return None
    kind = raw.get("parallel_group_kind")
    base, size, index = (as_whole(raw.get(field)) for field in GROUP_FIELDS[2:])
    if not isinstance(kind, str) or kind not in _PREFIXES:
        fields.fault(f"{name}.parallel_group_kind", f"This must be one of: {', '.join(_PREFIXES)}.")
        return None
    if (
        base is None
        or size is None
        or index is None
        or base < 1
        or not 1 <= size <= MOST_LEAVES
        or not 0 <= index < size
    ):
        fields.fault(name, f"base must be at least 1, size 1 to {MOST_LEAVES}, and 0 <= index < size.")
        return None
    entry = GroupEntry(prefix=_PREFIXES[kind], kind=kind, base=base, size=size, index=index)
    if raw.get("parallel_group_id") != entry.id:
        fields.fault(f"{name}.parallel_group_id", f"This must be {entry.id}.")
        return None
    return entry


def incomplete_groups(places: list[tuple[str, GroupPlace | None]]) -> dict[str, list[str]]:
    """Faults by path: each group's leaves must stand side by side, from index 0 to the last, in one batch."""
    errors: dict[str, list[str]] = {}
    expected: tuple[str, int, int] | None = None  # outermost id, size, next index
    for path, place in places:
        if expected is not None and (
            place is None or (place.outermost.id, place.outermost.index) != (expected[0], expected[2])
        ):
            errors[f"{path}.parallel_group_path"] = [f"Leaf {expected[2]} of group {expected[0]} must stand here."]
            return errors
        if expected is None and place is not None and place.outermost.index != 0:
            errors[f"{path}.parallel_group_path"] = [f"Group {place.outermost.id} must begin with leaf 0."]
            return errors
        if place is not None:
            following = place.outermost.index + 1
            done = following == place.outermost.size
            expected = None if done else (place.outermost.id, place.outermost.size, following)
    if expected is not None:
        errors["commands"] = [f"Group {expected[0]} has {expected[1]} leaves; only {expected[2]} were sent."]
    return errors


# -- the run's record of groups that some claim may still see unresolved -----------------------------------------------


def is_repeat(open_groups: dict[str, Any], group_id: str, claimed_sequence: int) -> bool:
    """Whether this group was unresolved in the history that the claim was shown."""
    record = open_groups.get(group_id)
    return record is not None and (record["remaining"] > 0 or record["resolved_sequence"] > claimed_sequence)


def forget_seen(open_groups: dict[str, Any], claimed_sequence: int) -> dict[str, Any]:
    """Drop the groups that the claim saw resolved: no worker sends them again."""
    return {
        group_id: record
        for group_id, record in open_groups.items()
        if is_repeat(open_groups, group_id, claimed_sequence)
    }


def with_group(open_groups: dict[str, Any], group: GroupEntry) -> dict[str, Any]:
    return {**open_groups, group.id: {"remaining": group.size, "resolved_sequence": None}}


def with_leaf_closed(open_groups: dict[str, Any], group_id: str, sequence: int) -> tuple[dict[str, Any], bool]:
    """The record after one more leaf closed by the event at `sequence`, and whether that resolved the group."""
    remaining = open_groups[group_id]["remaining"] - 1
    record = {"remaining": remaining, "resolved_sequence": None if remaining else sequence}
    return {**open_groups, group_id: record}, remaining == 0
