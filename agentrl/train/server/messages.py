"""The wire's binary messages: data that is trained on, log-probabilities, and samples.

The numbers are those of the public SDK's schema (`tinker_public.proto` of tinker 0.38). They are written in Protocol
Buffers' wire format (https://protobuf.dev/programming-guides/encoding/), as far as they need it: they are a dozen small
messages, and a library with generated code for them would be one more package whose version has to fit the client's.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import InvalidInput

PROTOBUF = "application/x-protobuf"
_READ_DTYPES: Mapping[int, str] = {1: "<f4", 2: "<i8", 3: "<i4"}
_FLOAT32 = 1
_STOPPED, _AT_LENGTH = 0, 1
Value = int | float | bytes
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
_LONGEST_VARINT = 10
_TOP, _WHOLE = 1 << 63, 1 << 64


@dataclass(frozen=True, slots=True)
class Datum:
    """An example: tokens, and by name what its loss reads of each of them.

    Attributes:
        tokens: int64 [n].
        inputs: arrays whose first dimension is n.
    """

    tokens: NDArray[np.int64]
    inputs: dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class PassRequest:
    """A request for a forward pass, and unless `forward_only` for the gradient."""

    model_id: str
    seq_id: int
    loss: str
    data: list[Datum]
    forward_only: bool = False
    settings: dict[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """Tokens that were drawn, with their log-probabilities; `stopped`: by a stop token or text."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    stopped: bool


def read_pass_request(body: bytes) -> PassRequest:
    """Read a `ForwardBackwardRequest`."""
    model_id, loss, seq_id, forward_only = "", "", 0, False
    data: list[Datum] = []
    settings: dict[str, float | str] = {}
    for number, value in read_fields(body):
        match number:
            case 1:
                model_id = as_text(value)
            case 2:
                seq_id = read_numbers(value)[0]
            case 3:
                data.append(_datum(as_bytes(value), len(data)))
            case 4:
                loss = as_text(value)
            case 5:
                key, own = read_entry(value)
                settings.setdefault(key, own if isinstance(own, float) else 0.0)
            case 6:
                forward_only = bool(value)
            case 7:
                key, own = read_entry(value)
                settings[key] = _setting(as_bytes(own))
    return PassRequest(model_id, seq_id, loss, data, forward_only, settings)


def _setting(message: bytes) -> float | str:
    found: float | str = 0.0
    for number, value in read_fields(message):
        found = as_text(value) if number == 2 else float(value)
    return found


def _datum(message: bytes, index: int) -> Datum:
    where = f"data[{index}]"
    chunks: list[NDArray[np.int64]] = []
    inputs: dict[str, NDArray[Any]] = {}
    for number, value in read_fields(message):
        if number == 1:
            chunks.append(_tokens(as_bytes(value), where))
        elif number == 2:
            key, own = read_entry(value)
            inputs[key] = _tensor(as_bytes(own), f"{where}.loss_fn_inputs[{key!r}]")
    tokens = np.concatenate(chunks) if chunks else np.empty(0, np.int64)
    for key, values in inputs.items():
        if values.shape[:1] != tokens.shape:
            shape = f"shape {list(values.shape)}, and the input has {len(tokens)} tokens"
            raise InvalidInput(f"{where}.loss_fn_inputs[{key!r}] has {shape}")
    return Datum(tokens, inputs)


def _tokens(chunk: bytes, where: str) -> NDArray[np.int64]:
    found = np.empty(0, np.int64)
    for number, value in read_fields(chunk):
        if number != 1:
            raise InvalidInput(f"{where}.model_input: only chunks of text tokens are trained here, no images or sound")
        for inner, array in read_fields(as_bytes(value)):
            if inner == 1:
                found = _array(as_bytes(array), "<i4", where).astype(np.int64)
    return found


def _tensor(message: bytes, where: str) -> NDArray[Any]:
    dense: bytes | None = None
    sparse: bytes | None = None
    dtype, shape = 0, list[int]()
    for number, value in read_fields(message):
        match number:
            case 1:
                dense = as_bytes(value)
            case 2:
                sparse = as_bytes(value)
            case 3:
                dtype = read_numbers(value)[0]
            case 4:
                shape += read_numbers(value)
    if dtype not in _READ_DTYPES:
        raise InvalidInput(f"{where}: dtype number {dtype} is not read here")
    if sparse is not None:
        return _dense(sparse, _READ_DTYPES[dtype], shape, where)
    found = _array(dense or b"", _READ_DTYPES[dtype], where)
    if not shape:
        return found
    if math.prod(shape) != found.size or min(shape) < 0:
        raise InvalidInput(f"{where} has {found.size} values, and its shape is {shape}")
    return found.reshape(shape)


def _dense(message: bytes, dtype: str, shape: Sequence[int], where: str) -> NDArray[Any]:
    """An array from compressed sparse rows, 0 where it has nothing."""
    parts: dict[int, bytes] = {number: as_bytes(value) for number, value in read_fields(message)}
    values = _array(parts.get(1, b""), dtype, where)
    starts, columns = (_array(parts.get(number, b""), "<i8", where) for number in (2, 3))
    fits = len(shape) == 2 and len(starts) == shape[0] + 1 and len(columns) == len(values) == starts[-1]
    if not fits or (np.diff(starts) < 0).any() or not ((columns >= 0) & (columns < shape[1])).all():
        raise InvalidInput(f"{where} is no sparse matrix of shape {list(shape)}")
    found = np.zeros(tuple(shape), values.dtype)
    found[np.repeat(np.arange(shape[0]), np.diff(starts)), columns] = values
    return found


def _array(data: bytes, dtype: str, where: str) -> NDArray[Any]:
    if len(data) % np.dtype(dtype).itemsize:
        raise InvalidInput(f"{where}: {len(data)} bytes are no array of {np.dtype(dtype).name}")
    return np.frombuffer(data, dtype)


def write_pass_result(logprobs: Iterable[NDArray[np.float32]], metrics: Mapping[str, float]) -> bytes:
    """Write a `ForwardBackwardOutput`.

    Args:
        logprobs: of each datum's targets, [n] or [n, K].
        metrics: by a name that ends with how several of them are combined (`loss:sum`).
    """
    fields: list[tuple[int, Value | str]] = [(1, "ArrayRecord")]
    for trailing, group in groupby(logprobs, lambda each: each.shape[1:]):
        arrays = [np.ascontiguousarray(each, "<f4") for each in group]
        offsets = np.cumsum([0, *(each.nbytes for each in arrays)]).astype("<i8")
        tensor: list[tuple[int, Value]] = [(1, b"".join(each.tobytes() for each in arrays)), (2, offsets.tobytes())]
        tensor += [(3, _FLOAT32), *((4, width) for width in trailing)]
        entry = write_fields([(1, "logprobs"), (2, write_fields(tensor))])
        fields.append((2, write_fields([(1, "ArrayRecord"), (2, entry), (3, len(arrays))])))
    fields += [(3, write_fields([(1, name), (2, float(value))])) for name, value in metrics.items()]
    return write_fields(fields)


def write_samples(samples: Iterable[Sample], prompt_logprobs: Sequence[float] | None, cached: int) -> bytes:
    """Write a `SampleResponse`.

    Args:
        samples: of one prompt.
        prompt_logprobs: of the prompt's tokens, NaN where there is none; None: they were not asked for.
        cached: tokens of the prompt that were not computed anew.
    """
    fields: list[tuple[int, Value]] = []
    for sample in samples:
        tokens, logprobs = (np.asarray(sample.tokens, "<i4").tobytes(), np.asarray(sample.logprobs, "<f4").tobytes())
        reason = _STOPPED if sample.stopped else _AT_LENGTH
        fields.append((1, write_fields([(1, reason), (2, tokens), (3, logprobs)])))
    if prompt_logprobs is not None:
        fields.append((2, np.asarray(prompt_logprobs, "<f4").tobytes()))
    return write_fields([*fields, (4, cached)])


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
