"""Values of numpy, torch, pandas, Decimal and dates, as the plain values that are meant by them.

Two functions decide: `number` for every reward, whoever gives it, and `plain` for one value that JSON does not have,
whatever it is in (a task, a row of a file, a setting). Neither imports what it converts from.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import math
import os
import uuid
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

LARGEST = 1e30
"""The greatest reward: its square, and sums of squares, are still finite."""
ROUNDING = 1e-6
"""The distance beyond its range, relative to the range's ends, at which a number still counts as its end."""
_MISSING = frozenset({"NAType", "NaTType", "MaskedConstant"})
"""The types of which pandas and numpy have one value each, which stands for none."""


def missing(value: Any) -> bool:
    """Return whether it stands for no value at all: None, and what pandas and numpy have for it; not NaN."""
    return value is None or type(value).__name__ in _MISSING


def number(value: Any) -> float:
    """A single finite number: one of any library's types, an array of one element, or text that is a number.

    Raises:
        ValueError: it is none; the message ends a sentence that begins with the value.
    """
    try:
        given = _single(value)
    except Exception:  # a tensor without data, say
        raise ValueError("which is not a number") from None
    if isinstance(given, bytes | bytearray) or (isinstance(given, str) and (not given.isascii() or "_" in given)):
        raise ValueError("which is text and not a number")
    try:
        found = float(given)
    except ArithmeticError:
        raise ValueError("which is not a finite number") from None
    except Exception:
        kind = "text and not a number" if isinstance(given, str) else "not a number"
        raise ValueError(f"which is {kind}") from None
    if not math.isfinite(found):
        raise ValueError("which is not a finite number")
    if abs(found) > LARGEST:
        raise ValueError(f"which is beyond {LARGEST:g}")
    return found


def within(found: float, low: float, high: float) -> float:
    """The number, or the end of the range that it misses by its rounding alone.

    Raises:
        ValueError: it is outside; the message ends a sentence.
    """
    nearest = min(max(found, low), high)
    if abs(found - nearest) > ROUNDING * max(1.0, abs(nearest)):
        raise ValueError(f"outside its range {low:g} to {high:g}")
    return nearest


def plain(value: Any) -> Any:
    """Return a value's plain form for JSON; the value itself where it has none or needs none.

    Numbers and arrays become numbers and lists, dates text (ISO 8601), durations seconds, sets sorted lists, bytes
    their text (base64 where they are no UTF-8), and missing values None. What is in a list or a mapping stays as it is.
    """
    if missing(value):
        return None
    kind = type(value)
    if kind in (str, int, float, bool, list, dict, tuple):
        return value
    for base in (bool, int, float, str):
        if isinstance(value, base) and not isinstance(value, Enum):
            return base(value)
    if isinstance(value, Decimal):
        return int(value) if value.is_finite() and value == value.to_integral_value() else float(value)
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else float(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return plain(value.value)
    try:
        return _object(value)
    except Exception:  # whatever its own methods raise
        return value


def _object(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _text(bytes(value))
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if callable(dump := getattr(value, "model_dump", None)) and not isinstance(value, type):
        return dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    for name in ("tolist", "to_dict"):  # arrays and columns; tables
        if callable(getattr(value, name, None)) and not isinstance(value, type | Mapping):
            found = getattr(_without_gradients(value), name)()
            return found if isinstance(found, list | dict) else plain(found)
    return value


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()


def _single(value: Any) -> Any:
    """The element of a scalar or an array that has one; else the value itself."""
    if value is None or isinstance(value, str | int | float | list | tuple | Mapping):
        return value
    count = numel() if callable(numel := getattr(value, "numel", None)) else getattr(value, "size", None)
    return _without_gradients(value).item() if isinstance(count, int) and count == 1 and not missing(value) else value


def _without_gradients(value: Any) -> Any:
    """A tensor that no gradient is taken of; anything else as it is."""
    return detach() if callable(detach := getattr(value, "detach", None)) else value
