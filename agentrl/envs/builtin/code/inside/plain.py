"""Plain data and its frames: all that passes between judge and worker."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import functools
import json
import numbers
from typing import Any, BinaryIO, Callable  # noqa: UP035 (of collections.abc before Python 3.9)

MAX_FRAME = 64 << 20
DECIDING = {"count", "endswith", "find", "index", "rfind", "rindex", "startswith"}
DECIDING |= {"isdisjoint", "issubset", "issuperset"}
"""Methods of text, lists and sets that get an expected value and return whether it matches."""
SEQUENCE_TYPES: tuple[Any, ...] = (list, tuple, set, frozenset, collections.deque)
PLAIN_TYPES: tuple[type, ...] = (
    int,
    float,
    bool,
    str,
    bytes,
    complex,
    list,
    tuple,
    set,
    frozenset,
    dict,
    type(None),
    object,
)
DICTIONARIES: tuple[Any, ...] = (collections.Counter, collections.OrderedDict, dict)
KEYS: Any = type({}.keys())
SEQUENCES = {kind.__name__: kind for kind in SEQUENCE_TYPES}


@functools.lru_cache(maxsize=None)  # noqa: UP033 (of Python 3.9)
def named_tuple(name: str, *fields: str) -> Any:
    """A class of named tuples; those of one name and the same fields are one class."""
    return collections.namedtuple(name, fields)


def named(name: str, fields: Any, items: Any) -> Any:
    """A named tuple; a field with the name of a deciding method has None in place of what can be called."""
    pairs = zip(fields, items)  # noqa: B905 (Python 3.8)
    return named_tuple(name, *fields)(*[None if field in DECIDING and callable(one) else one for field, one in pairs])


MADE_OF: dict[str, Callable[..., Any]] = {
    "namedtuple": named,
    "Counter": lambda items: collections.Counter(items),
    "OrderedDict": lambda items: collections.OrderedDict(items),
    "defaultdict": lambda kind, items: collections.defaultdict(kind, items),
    "keys": lambda *items: dict.fromkeys(items).keys(),
    "int": lambda digits: int(digits, 16),
    "float": float,
    "complex": complex,
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "range": range,
    "Decimal": decimal.Decimal,
    "Fraction": fractions.Fraction,
    "date": datetime.date,
    "time": datetime.time,
    "datetime": datetime.datetime,
    "timedelta": datetime.timedelta,
    "type": lambda name: {kind.__name__: kind for kind in PLAIN_TYPES}[name],
}


def pack(value: Any, keep: Callable[[Any], Any]) -> Any:
    """A value as JSON, with `keep` for what isn't plain data. Subclasses of built-in types become these types."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, numbers.Integral):
        return ["int", hex(int(value))]
    if isinstance(value, float):
        return ["float", float.__repr__(value)]
    if isinstance(value, dict):
        return _pack_dictionary(value, keep)
    fields: Any = getattr(type(value), "_fields", None)
    if isinstance(value, tuple) and fields is not None:
        parts = (type(value).__name__, tuple(fields), tuple(tuple.__iter__(value)))
        return ["namedtuple", *[pack(part, keep) for part in parts]]
    for kind in SEQUENCE_TYPES:
        if isinstance(value, kind):
            return [kind.__name__, *[pack(item, keep) for item in kind.__iter__(value)]]
    return _pack_rarer(value, keep)


def _pack_dictionary(value: Any, keep: Callable[[Any], Any]) -> Any:
    plain = ["dict", *[[pack(key, keep), pack(item, keep)] for key, item in dict.items(value)]]
    if isinstance(value, collections.defaultdict):
        factory = value.default_factory
        return ["defaultdict", pack(factory if factory in PLAIN_TYPES else None, keep), plain]
    kind = next(kind for kind in DICTIONARIES if isinstance(value, kind))
    return plain if kind is dict else [kind.__name__, plain]


def _pack_rarer(value: Any, keep: Callable[[Any], Any]) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return ["bytes" if isinstance(value, bytes) else "bytearray", bytes(value).hex()]
    if isinstance(value, complex):
        return ["complex", float.__repr__(value.real), float.__repr__(value.imag)]
    if type(value) is KEYS:
        return ["keys", *[pack(item, keep) for item in value]]
    if type(value) is range:
        return ["range", *[pack(part, keep) for part in (value.start, value.stop, value.step)]]
    if isinstance(value, decimal.Decimal):
        return ["Decimal", decimal.Decimal.__str__(value)]
    if isinstance(value, fractions.Fraction):
        return ["Fraction", pack(value.numerator, keep), pack(value.denominator, keep)]
    if isinstance(value, datetime.timedelta):
        return ["timedelta", *[pack(part, keep) for part in (value.days, value.seconds, value.microseconds)]]
    if type(value) in (datetime.date, datetime.time, datetime.datetime) and getattr(value, "tzinfo", None) is None:
        fields = ["year", "month", "day"] if isinstance(value, datetime.date) else []
        fields += [] if type(value) is datetime.date else ["hour", "minute", "second", "microsecond"]
        return [type(value).__name__, *[pack(getattr(value, field), keep) for field in fields]]
    if isinstance(value, type) and value in PLAIN_TYPES:
        return ["type", value.__name__]
    return ["handle", keep(value)]


def unpack(packed: Any, take: Callable[[int], Any]) -> Any:
    """The value that `pack` was given; `take` finds what was kept."""
    if not isinstance(packed, list):
        if packed is None or isinstance(packed, (str, bool)):
            return packed
        raise ValueError("not packed data")
    kind, rest = packed[0], packed[1:]
    if kind == "handle":
        return take(int(rest[0]))
    if kind == "dict":
        return {unpack(key, take): unpack(item, take) for key, item in rest}
    if kind in SEQUENCES:
        return SEQUENCES[kind]([unpack(item, take) for item in rest])
    if kind == "complex":
        return complex(float(rest[0]), float(rest[1]))
    return MADE_OF[kind](*[unpack(item, take) for item in rest])


def send(to: BinaryIO, message: Any) -> None:
    """Write one frame: its length, then JSON."""
    data = json.dumps(message).encode()
    to.write(len(data).to_bytes(4, "big") + data)
    to.flush()


def receive(source: BinaryIO) -> Any:
    """Read one frame; EOFError at the end, ValueError where it is too long or no JSON."""
    head = source.read(4)
    size = int.from_bytes(head, "big")
    if size > MAX_FRAME:
        raise ValueError("the answer is too long")
    data = source.read(size)
    if len(head) < 4 or len(data) < size:
        raise EOFError
    return json.loads(data)
