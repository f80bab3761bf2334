"""Reading a command's fields: typed, with every fault reported under its dotted path (docs/protocol/history.md 4.2)."""

from __future__ import annotations

from typing import Any

from durable.ids import is_id

Errors = dict[str, list[str]]

MOST_SECONDS = 315_360_000  # ten years


class Fields:
    """One command as it was sent. Readers return None for what is absent or wrong, and note what is wrong."""

    def __init__(self, raw: dict[str, Any], path: str, errors: Errors) -> None:
        self.raw = raw
        self.path = path
        self.errors = errors

    def fault(self, name: str, text: str) -> None:
        self.errors.setdefault(f"{self.path}.{name}" if name else self.path, []).append(text)

    def text(self, name: str, *, required: bool = False, longest: int = 255) -> str | None:
        value = self.raw.get(name)
        if value is None:
            if required:
                self.fault(name, "This field is required.")
            return None
        if not isinstance(value, str) or not value.strip():
            self.fault(name, "This must be a non-empty string.")
            return None
        if len(value) > longest:
            self.fault(name, f"This has {len(value)} characters; at most {longest} are allowed.")
            return None
        return value

    def name(self, name: str, *, required: bool = False) -> str | None:
        """A type or a queue: 1 to 255 bytes without control characters, as on every other route."""
        value = self.text(name, required=required)
        if value is not None and (len(value.encode()) > 255 or not is_id(value)):
            self.fault(name, "At most 255 bytes without control characters are allowed.")
            return None
        return value

    def message(self, name: str = "message", *, required: bool = False, longest: int = 1_000_000) -> str | None:
        """A text for people. An exception without words is legal in every language, so it may be blank."""
        value = self.raw.get(name)
        if isinstance(value, str) and not value.strip():
            return value[:longest]
        return self.text(name, required=required, longest=longest)

    def whole(self, name: str, *, least: int, most: int = MOST_SECONDS, required: bool = False) -> int | None:
        value = self.raw.get(name)
        if value is None:
            if required:
                self.fault(name, "This field is required.")
            return None
        number = as_whole(value)
        if number is None or not least <= number <= most:
            self.fault(name, f"This must be a whole number from {least} to {most}.")
            return None
        return number

    def signed(self, name: str, *, most: int) -> int | None:
        """A required whole number that may be negative."""
        value = self.raw.get(name)
        if value is None:
            self.fault(name, "This field is required.")
            return None
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > most:
            self.fault(name, f"This must be a whole number from {-most} to {most}.")
            return None
        return value

    def flag(self, name: str) -> bool:
        value = self.raw.get(name)
        if value is not None and not isinstance(value, bool):
            self.fault(name, "This must be true or false.")
        return value is True

    def choice(self, name: str, choices: tuple[str, ...], *, required: bool = False) -> str | None:
        value = self.text(name, required=required)
        if value is not None and value not in choices:
            self.fault(name, f"This must be one of: {', '.join(choices)}.")
            return None
        return value

    def envelope(self, name: str, *, required: bool = False) -> dict[str, Any] | None:
        value = self.raw.get(name)
        if value is None:
            if required:
                self.fault(name, "This field is required.")
            return None
        if fault := envelope_fault(value):
            self.fault(name, fault)
            return None
        return dict(value)

    def mapping(self, name: str) -> dict[str, Any] | None:
        value = self.raw.get(name)
        if value is not None and not isinstance(value, dict):
            self.fault(name, "This must be an object.")
            return None
        return value


def as_whole(value: Any) -> int | None:
    """An integer, also from its decimal digits as text; None for anything else (a bool is not a number here)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < 20:
        return int(value)
    return None


def envelope_fault(value: Any) -> str | None:
    """What is wrong with a payload envelope: it must be exactly `{"codec": "avro", "blob": "<base64>"}`."""
    if not isinstance(value, dict):
        return "This must be a payload envelope: an object with `codec` and `blob`."
    if value.get("codec") != "avro":
        return "unsupported_payload_codec: the only codec is `avro`."
    if set(value) != {"codec", "blob"} or not isinstance(value["blob"], str):
        return "A payload envelope has exactly the keys `codec` and `blob`; external payloads are not supported."
    return None


def envelope_bytes(value: dict[str, Any] | None) -> int:
    """Encoded size of an envelope's payload."""
    return 0 if value is None else len(str(value.get("blob", "")))


def time_out_faults(fields: Fields, *, schedule_to_start: int | None, start_to_close: int | None,
                    schedule_to_close: int | None, heartbeat: int | None) -> None:  # fmt: skip
    """Time-outs that contradict each other are refused with both numbers."""
    for name, shorter, longer_name, longer in (
        ("heartbeat_timeout", heartbeat, "start_to_close_timeout", start_to_close),
        ("start_to_close_timeout", start_to_close, "schedule_to_close_timeout", schedule_to_close),
        ("heartbeat_timeout", heartbeat, "schedule_to_close_timeout", schedule_to_close),
        ("schedule_to_start_timeout", schedule_to_start, "schedule_to_close_timeout", schedule_to_close),
    ):
        if shorter is not None and longer is not None and shorter > longer:
            fields.fault(name, f"{shorter} s is longer than {longer_name} ({longer} s).")
