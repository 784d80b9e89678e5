"""Protocol Buffers' wire format (https://protobuf.dev/programming-guides/encoding/), as far as a few messages need it.

Messages are read as (field number, value) pairs and written from them: the SDK's schemas are a dozen small messages,
and a library with generated code for them would be one more package whose version has to fit the client's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from agentrl.errors import InvalidInput

Value = int | float | bytes
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
_LONGEST_VARINT = 10
_TOP, _WHOLE = 1 << 63, 1 << 64


def read_fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield a message's fields in order: integers, floats, or the bytes of texts, arrays and inner messages."""
    at, size = 0, len(data)
    while at < size:
        tag, at = _read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _read_varint(data, at)
        elif kind in (_DOUBLE, _FLOAT):
            length = 8 if kind == _DOUBLE else 4
        else:
            raise InvalidInput(f"the body is no Protocol Buffers message: wire type {kind} at byte {at}")
        part, at = data[at : at + length], at + length
        if at > size:
            raise InvalidInput("the body is a Protocol Buffers message that ends early")
        yield number, part if kind == _BYTES else struct.unpack("<d" if kind == _DOUBLE else "<f", part)[0]


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        if at >= len(data):
            raise InvalidInput("the body is a Protocol Buffers message that ends early")
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at
    raise InvalidInput("the body is no Protocol Buffers message: a number has no end")


def read_numbers(value: Value) -> list[int]:
    """Return the integers of a repeated field's occurrence: one, or several that are packed."""
    if isinstance(value, int):
        return [_to_signed(value)]
    found, at = [], 0
    packed = as_bytes(value)
    while at < len(packed):
        number, at = _read_varint(packed, at)
        found.append(_to_signed(number))
    return found


def _to_signed(number: int) -> int:
    return number - _WHOLE if number >= _TOP else number


def as_bytes(value: Value) -> bytes:
    """Return a field's bytes."""
    if not isinstance(value, bytes):
        raise InvalidInput("the body has a number where its message has bytes")
    return value


def as_text(value: Value) -> str:
    """Return a field's text."""
    try:
        return as_bytes(value).decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the body has a text that is not UTF-8: {error}") from None


def read_entry(value: Value) -> tuple[str, Value]:
    """Return key and value of a map's entry; the value of an entry that has none is empty bytes."""
    key, found = "", b""
    for number, part in read_fields(as_bytes(value)):
        if number == 1:
            key = as_text(part)
        elif number == 2:
            found = part  # type: ignore[assignment]
    return key, found


def write_fields(fields: Iterable[tuple[int, int | float | bytes | str]]) -> bytes:
    """Write a message of (field number, value) pairs: an int is written as a varint, a float as a double."""
    parts = []
    for number, value in fields:
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, bytes):
            parts += [_varint(number << 3 | _BYTES), _varint(len(value)), value]
        elif isinstance(value, float):
            parts += [_varint(number << 3 | _DOUBLE), struct.pack("<d", value)]
        else:
            parts += [_varint(number << 3 | _VARINT), _varint(value)]
    return b"".join(parts)


def _varint(number: int) -> bytes:
    if number < 0:
        number += _WHOLE
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
