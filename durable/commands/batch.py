"""A batch: the commands of one completion, validated as a whole and then applied in order (history.md 4.1, 4.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from durable import conf
from durable.changes import RunChanges
from durable.commands import groups
from durable.commands.fields import Errors
from durable.commands.groups import GroupPlace
from durable.commands.registry import Command, read_command
from durable.models import Task
from durable.refusals import Reason, Refusal, invalid

MOST_OF_A_CHECKPOINT = 100


class StructuralLimitError(Exception):
    """A limit of docs/protocol/history.md 14 was passed.

    A completion fails the run visibly instead of being refused; a checkpoint is refused, since its claim goes on.
    """

    def __init__(self, limit_kind: str, value: int, configured: int) -> None:
        super().__init__(f"{limit_kind}: {value} is more than {configured}")
        self.limit_kind = limit_kind
        self.value = value
        self.configured = configured


@dataclass(slots=True)
class Batch:
    """What applying commands may look at: the run's pending changes, the claim's task, and the tasks made so far."""

    changes: RunChanges
    task: Task
    # List groups that this very batch opens: their later leaves belong to them.
    new_groups: set[str] = field(default_factory=set)

    def check_payload(self, envelope_bytes: int) -> None:
        check_limit("payload_size_bytes", envelope_bytes, conf.current().payload_size_bytes)

    def repeats(self, place: GroupPlace | None) -> bool:
        """Whether a command only repeats a group that the claim saw unresolved: then it changes nothing."""
        if place is None or place.outermost.id in self.new_groups:
            return False
        return groups.is_repeat(self.changes.run.open_groups, place.outermost.id, self.task.claimed_history_sequence)

    def enter_group(self, place: GroupPlace | None, step_number: int) -> GroupPlace | None:
        """The leaf's place with the real base; its group is opened with its first leaf."""
        if place is None:
            return None
        self.new_groups.add(place.outermost.id)
        rewritten = place.rewritten_for(step_number)
        self.new_groups.add(rewritten.outermost.id)
        if rewritten.outermost.index == 0:
            self.changes.set(open_groups=groups.with_group(self.changes.run.open_groups, rewritten.outermost))
        return rewritten


def check_limit(limit_kind: str, value: int, configured: int) -> None:
    """Raise StructuralLimitError above a configured limit; 0 switches the limit off."""
    if configured and value > configured:
        raise StructuralLimitError(limit_kind, value, configured)


def read_batch(raw: Any) -> list[Command]:
    """Validate all commands of a completion; refuses `validation_failed` or `structural_limit_exceeded`."""
    if not isinstance(raw, list) or not raw:
        raise invalid({"commands": ["This must be a non-empty list of objects."]})
    _check_size(len(raw))
    errors: Errors = {}
    commands = [read_command(element, f"commands.{number}", errors) for number, element in enumerate(raw)]
    known = [command for command in commands if command is not None]
    _check_terminals(commands, errors)
    if not errors:
        places = [(f"commands.{number}", getattr(command.value, "place", None)) for number, command in enumerate(known)]
        errors.update(groups.incomplete_groups(places))
    if errors:
        raise invalid(errors)
    return known


def read_prefix(raw: Any) -> list[Command]:
    """Validate the commands of a checkpoint: as a completion's, but at most 100, and none that ends the run."""
    if isinstance(raw, list) and len(raw) > MOST_OF_A_CHECKPOINT:
        raise invalid(
            {"commands": [f"A checkpoint may hold {MOST_OF_A_CHECKPOINT} commands; this one has {len(raw)}."]}
        )
    commands = read_batch(raw)
    if terminal := [f"commands.{number}.type" for number, c in enumerate(commands) if c.type.is_terminal]:
        raise invalid({path: ["A checkpoint may not end the run."] for path in terminal})
    return commands


def _check_size(count: int) -> None:
    most = conf.current().command_batch_size
    if most and count > most:
        raise Refusal(
            Reason.STRUCTURAL_LIMIT_EXCEEDED,
            f"A batch may hold {most} commands; this one has {count}.",
            outcome="rejected",
            limit_kind="command_batch_size",
            current_value=count,
            configured_limit=most,
        )


def _check_terminals(commands: list[Command | None], errors: Errors) -> None:
    terminals = [n for n, command in enumerate(commands) if command is not None and command.type.is_terminal]
    if terminals and terminals != [len(commands) - 1]:
        errors.setdefault(f"commands.{terminals[0]}.type", []).append(
            "A batch may hold one terminal command, and it must be the last."
        )


def apply_batch(batch: Batch, commands: list[Command]) -> None:
    """Apply in order, in memory. Raises StructuralLimitError; the caller drops the changes then."""
    run = batch.changes.run
    batch.changes.set(open_groups=groups.forget_seen(run.open_groups, batch.task.claimed_history_sequence))
    for command in commands:
        command.type.apply(batch, command.value)
    check_limit("history_transaction_size", len(batch.changes.events), conf.current().history_transaction_size)
