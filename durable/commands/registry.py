"""The registry of command types. A family module registers its types; nothing else lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from durable.commands.fields import Errors, Fields

if TYPE_CHECKING:
    from durable.commands.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandType:
    """One command type: how its fields are read, and what it does to the run.

    `validate` notes faults and returns the typed command; it may refuse the whole completion for a capability that is
    missing. `apply` changes the run in memory only. `owns` are fields that other commands may not carry.
    """

    name: str
    validate: Callable[[Fields], Any]
    apply: Callable[[Batch, Any], None]
    is_terminal: bool = False
    owns: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Command:
    """A validated command and its type."""

    type: CommandType
    value: Any


_TYPES: dict[str, CommandType] = {}


def register(command_type: CommandType) -> None:
    """Make a command type known. Its module is imported by `durable.commands`."""
    _TYPES[command_type.name] = command_type


def supported_types() -> list[str]:
    """What discovery advertises: exactly the registered types, `complete_workflow` first."""
    return sorted(_TYPES, key=lambda name: (name != "complete_workflow", name))


def checkpoint_types() -> list[str]:
    """What a checkpoint may hold: every registered type but those that end the run."""
    return sorted(name for name, command_type in _TYPES.items() if not command_type.is_terminal)


def read_command(raw: Any, path: str, errors: Errors) -> Command | None:
    """One element of `commands`, validated; None if it cannot be."""
    if not isinstance(raw, dict):
        errors.setdefault(path, []).append("This must be an object.")
        return None
    name = raw.get("type")
    if not isinstance(name, str) or name not in _TYPES:
        errors.setdefault(f"{path}.type", []).append(
            "This field is required." if not name else "This command type is not supported."
        )
        return None
    command_type = _TYPES[name]
    fields = Fields(raw, path, errors)
    for field in _owned_by_others(command_type) & raw.keys():
        fields.fault(field, f"{name} does not take this field.")
    return Command(command_type, command_type.validate(fields))


def _owned_by_others(command_type: CommandType) -> set[str]:
    owned = {field for other in _TYPES.values() for field in other.owns}
    return (owned | _FIELDS_OF_OTHER_FAMILIES) - command_type.owns


# Owned by command types that no module registers yet; sent on any other command they are a mistake all the same.
_FIELDS_OF_OTHER_FAMILIES = frozenset(
    {"execution_timeout_seconds", "run_timeout_seconds", "parent_close_policy", "timeout_seconds", "entries"}
)  # fmt: skip
