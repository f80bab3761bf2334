"""Payload blobs: an Avro single-object frame around one `Value` (docs/protocol/control-plane.md 4.2).

The server treats blobs as opaque. It encodes what a caller sent as plain JSON, and decodes for display.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import struct
from typing import Any

HEADER = bytes.fromhex("c301e2a33dff55802237")
DEEPEST = 100


class UndecodableError(ValueError):
    """The blob is not a frame of this schema."""


def encode_value(value: Any) -> str:
    """The blob of a JSON value. Raises ValueError for what the schema cannot hold (integers beyond 64 bits)."""
    out = io.BytesIO()
    out.write(HEADER)
    _write(out, value, 0)
    return base64.b64encode(out.getvalue()).decode()


def envelope(value: Any) -> dict[str, Any]:
    """A payload envelope around a JSON value."""
    return {"codec": "avro", "blob": encode_value(value)}


def decode_value(blob: str) -> Any:
    """The value of a blob; bytes become `{"$bytes": "<base64>"}`. Raises UndecodableError."""
    try:
        raw = base64.b64decode(blob, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UndecodableError("not base64") from error
    if raw[:10] != HEADER:
        raise UndecodableError("not a frame of the Value schema")
    reader = _Reader(raw, 10)
    value = reader.value(0)
    if reader.at != len(raw):
        raise UndecodableError("something follows the value")
    return value


# -- writing -----------------------------------------------------------------------------------------------------------


def _write_long(out: io.BytesIO, number: int) -> None:
    if not -(2**63) <= number < 2**63:
        raise ValueError("an integer does not fit into 64 bits")
    number = (number << 1) ^ (number >> 63)
    while number > 0x7F:
        out.write(bytes((number & 0x7F | 0x80,)))
        number >>= 7
    out.write(bytes((number,)))


def _write_text(out: io.BytesIO, text: str) -> None:
    raw = text.encode()
    _write_long(out, len(raw))
    out.write(raw)


def _write(out: io.BytesIO, value: Any, depth: int) -> None:
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    if value is None:
        out.write(b"\x00")
    elif isinstance(value, bool):
        out.write(b"\x02\x01" if value else b"\x02\x00")
    elif isinstance(value, int):
        out.write(b"\x04")
        _write_long(out, value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("only finite numbers can be encoded")
        out.write(b"\x06" + struct.pack("<d", value))
    elif isinstance(value, str):
        out.write(b"\x0a")
        _write_text(out, value)
    elif isinstance(value, list):
        out.write(b"\x0c")
        _write_block(out, len(value))
        for element in value:
            _write(out, element, depth + 1)
        if value:
            out.write(b"\x00")
    elif isinstance(value, dict):
        out.write(b"\x0e")
        _write_block(out, len(value))
        for key, element in value.items():
            _write_text(out, key)
            _write(out, element, depth + 1)
        if value:
            out.write(b"\x00")
    else:
        raise TypeError(f"{type(value).__name__} cannot be encoded")


def _write_block(out: io.BytesIO, count: int) -> None:
    _write_long(out, count)


# -- reading -----------------------------------------------------------------------------------------------------------


class _Reader:
    """Reads one value; a count or length larger than what is left is malformed, so nothing is allocated for it."""

    def __init__(self, raw: bytes, at: int) -> None:
        self.raw = raw
        self.at = at

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.raw):
            raise UndecodableError("shorter than it says")
        self.at += count
        return self.raw[self.at - count : self.at]

    def long(self) -> int:
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
            shift += 7
            if shift > 63:
                raise UndecodableError("an integer is too long")

    def text(self) -> str:
        try:
            return self.take(self.long()).decode()
        except UnicodeDecodeError as error:
            raise UndecodableError("a text is not UTF-8") from error

    def count(self) -> int:
        count = self.long()
        if count < 0:
            self.long()
            count = -count
        if count > len(self.raw) - self.at:
            raise UndecodableError("more elements than bytes")
        return count

    def value(self, depth: int) -> Any:
        if depth > DEEPEST:
            raise UndecodableError("nested too deeply")
        branch = self.long()
        if branch == 0:
            return None
        if branch == 1:
            return self.take(1) == b"\x01"
        if branch == 2:
            return self.long()
        if branch == 3:
            return struct.unpack("<d", self.take(8))[0]
        if branch == 4:
            return {"$bytes": base64.b64encode(self.take(self.long())).decode()}
        if branch == 5:
            return self.text()
        if branch == 6:
            return self._array(depth)
        if branch == 7:
            return self._map(depth)
        raise UndecodableError("an unknown kind of value")

    def _array(self, depth: int) -> list[Any]:
        elements: list[Any] = []
        while count := self.count():
            elements.extend(self.value(depth + 1) for _ in range(count))
        return elements

    def _map(self, depth: int) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        while count := self.count():
            for _ in range(count):
                key = self.text()
                entries[key] = self.value(depth + 1)
        return entries
