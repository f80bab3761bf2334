"""Retry policies: reading one from a command, and deciding what follows a failure (docs/protocol/history.md 9.2)."""

from __future__ import annotations

from typing import Any

from durable.commands.fields import Fields, as_whole

Policy = dict[str, Any]

MOST_BACKOFFS = 1000


def read_policy(fields: Fields, time_outs: dict[str, int | None]) -> Policy | None:
    """The policy to freeze with the execution; None if the command names neither policy nor time-outs."""
    raw = fields.mapping("retry_policy")
    if raw is None and not any(time_outs.values()):
        return None
    raw = raw or {}
    policy = Fields(raw, f"{fields.path}.retry_policy", fields.errors)
    return {
        "snapshot_version": 1,
        "max_attempts": policy.whole("max_attempts", least=1, most=1_000_000) or 1,
        "backoff_seconds": _read_backoffs(policy),
        "non_retryable_error_types": _read_error_types(policy),
        **time_outs,
    }


def _read_backoffs(policy: Fields) -> list[int]:
    raw = policy.raw.get("backoff_seconds")
    if raw is None:
        return []
    values = [as_whole(value) for value in (raw if isinstance(raw, list) else [raw])]
    if len(values) > MOST_BACKOFFS or any(value is None or value < 0 for value in values):
        policy.fault("backoff_seconds", f"This must be a list of at most {MOST_BACKOFFS} whole numbers of seconds.")
        return []
    return [value for value in values if value is not None]


def _read_error_types(policy: Fields) -> list[str]:
    raw = policy.raw.get("non_retryable_error_types")
    if raw is None:
        return []
    if not isinstance(raw, list) or len(raw) > 1000 or not all(isinstance(name, str) for name in raw):
        policy.fault("non_retryable_error_types", "This must be a list of strings.")
        return []
    return list(raw)


def max_attempts(policy: Policy | None) -> int:
    """Attempts in all; one if nothing was asked for."""
    return int(policy["max_attempts"]) if policy else 1


def backoff_seconds(policy: Policy | None, after_attempt: int) -> int:
    """Whole seconds between an attempt and the next; the list's last element repeats, an empty list is 0."""
    backoffs = policy["backoff_seconds"] if policy else []
    return int(backoffs[min(after_attempt, len(backoffs)) - 1]) if backoffs else 0


def is_final(policy: Policy | None, *, after_attempt: int, non_retryable: bool, names: tuple[str | None, ...]) -> bool:
    """Whether no attempt follows: the failure says so, the policy names its type or class, or attempts ran out."""
    listed = set(policy["non_retryable_error_types"]) if policy else set()
    return non_retryable or after_attempt >= max_attempts(policy) or any(name in listed for name in names if name)
