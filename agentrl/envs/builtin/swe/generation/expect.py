"""Comparison of a test's observed values with the expected ones.

This runs outside the sandbox, on what comes out of it: nothing in it is believed, and none of it costs more time than
the expected value is large. A value that is no number, text, time or container of such is an object, of which no more
is known than that; it equals nothing.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

from agentrl.common import patterns
from agentrl.envs.builtin.swe.generation.observe import AssertionSite

WIDEST = 1_000
"""Items of a set, a dictionary or a range that is shown where something is only looked for in it."""
TEXT = 10_000
"""Characters that a pattern is looked for in."""
DIGITS = 4000
UNSEEN = object()
"""Stands for the expected value of an assertion that the proof's run didn't come by."""
MISMATCH = (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError)
"""The errors that reading or comparing untrusted values may raise; then they don't match."""
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "Eq": operator.eq,
    "Is": operator.is_,
    "In": lambda item, group: item in group,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Regex": lambda text, pattern: patterns.is_in(pattern, text[:TEXT]),
}
_TIMES = {"date": date, "datetime": datetime, "time": time, "timedelta": timedelta, "timezone": timezone}
_TIME = re.compile(r"datetime\.(date|datetime|time|timedelta)\(([a-z0-9_=, -]*)\)")


class Thing:
    """A thing without a value that could be sent; equal to nothing but the same name, where it is a class's."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and bool(self.name) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def decode(shown: Any, widest: int = WIDEST) -> Any:
    """The value that was shown.

    Raises:
        ValueError: it is none, or larger than allowed (a set of chosen numbers takes quadratic time to build).
    """
    if shown is None or isinstance(shown, bool | str):
        return shown
    kind, body = shown[0], shown[1]
    if kind in ("list", "tuple", "set", "dict"):
        if kind in ("set", "dict") and len(body) > widest:
            raise ValueError(f"{len(body)} items")
        if kind == "dict":
            return {decode(key, widest): decode(value, widest) for key, value in body}
        items = [decode(item, widest) for item in body]
        return items if kind == "list" else tuple(items) if kind == "tuple" else frozenset(items)
    if kind == "range" and len(range(*body)) > widest:
        raise ValueError("a range of that length")  # whatever isn't a number is looked for item by item
    return _decode_plain(kind, body, shown)


def as_shown(value: Any) -> Any:
    """A value as a sandbox would show it: what `decode` reads."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, list | tuple):
        return ["list" if isinstance(value, list) else "tuple", [as_shown(item) for item in value]]
    if isinstance(value, set | frozenset):
        return ["set", [as_shown(item) for item in value]]
    if isinstance(value, dict):
        return ["dict", [[as_shown(key), as_shown(item)] for key, item in value.items()]]
    if isinstance(value, int):
        return ["int", repr(value)]
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, complex):
        return ["complex", value.real.hex(), value.imag.hex()]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, Decimal | Fraction):
        return [type(value).__name__.lower(), str(value)]
    if isinstance(value, range):
        return ["range", [value.start, value.stop, value.step]]
    if isinstance(value, Thing):
        return ["type", value.name] if value.name else ["object", ""]
    return ["time", repr(value)]


def _decode_plain(kind: str, body: Any, shown: Sequence[Any]) -> Any:
    if kind == "int":
        return int(body[:DIGITS])
    if kind == "float":
        return float.fromhex(body)
    if kind == "complex":
        return complex(float.fromhex(body), float.fromhex(shown[2]))
    if kind == "bytes":
        return bytes.fromhex(body)
    if kind == "decimal":
        return Decimal(body[:DIGITS])
    if kind == "fraction":
        above, _, below = body[:DIGITS].partition("/")
        return Fraction(int(above), int(below or "1"))
    if kind == "range":
        return range(*(int(part) for part in body))
    if kind == "time":
        return _time(body)
    if kind == "type":
        return Thing(str(body))
    return Thing()


def _time(text: str) -> Any:
    found = _TIME.fullmatch(text)
    if found is None:
        return Thing(text)  # with a time zone: compared as it is written
    parts = [part.strip() for part in found[2].split(",") if part.strip()]
    plain = [int(part) for part in parts if "=" not in part]
    named = {part.partition("=")[0]: int(part.partition("=")[2]) for part in parts if "=" in part}
    return _TIMES[found[1]](*plain, **named)


def width(value: Any) -> int:
    """Items of the largest container in an expected value."""
    if isinstance(value, Mapping):
        return max([len(value), *map(width, value.keys()), *map(width, value.values())])
    if isinstance(value, list | tuple | set | frozenset):
        return max([len(value), *map(width, value)])
    return len(value) if isinstance(value, range) else 0


def fits(site: AssertionSite, expected: Any, shown: Any) -> bool:
    """Return whether what an assertion showed is what it is to show.

    Args:
        site: the assertion.
        expected: as the proof recorded it; None where nothing was recorded.
        shown: what came out of the sandbox.
    """
    try:
        return _fits(site, expected, shown)
    except MISMATCH:
        return False


def _fits(site: AssertionSite, expected: Any, shown: Any) -> bool:
    kind, options = site.kind, site.options
    if kind == "truth":
        return isinstance(shown, bool) and shown is options["holds"]
    if kind == "raises":
        if shown is None or shown[0] != "raised" or len(shown[1]) != len(options["names"]):
            return False
        matches = options["match"] is None or patterns.is_in(options["match"], str(shown[2])[:500])
        return matches and any(shown[1][place] is True for place in options["kinds"])
    wanted = ast.literal_eval(options["literal"]) if expected is UNSEEN else decode(expected, sys.maxsize)
    if kind == "compare":
        found = decode(shown)
        sides = (wanted, found) if options["swapped"] else (found, wanted)
        return bool(OPERATORS[options["operator"]](*sides)) is options["holds"]
    found = decode(shown, max(width(wanted), 3))
    if kind == "same":
        return type(found) is type(wanted) and bool(found == wanted)
    if kind == "equal":
        return bool(found == wanted)
    if kind == "count":
        return _same_items(list(found), list(wanted))
    if kind == "approx":
        return _close(found, *wanted)
    return _almost(found, *wanted)


def _same_items(found: list[Any], wanted: list[Any]) -> bool:
    if len(found) != len(wanted):
        return False
    for item in found:
        if item not in wanted:
            return False
        wanted.remove(item)
    return True


def _close(found: Any, wanted: Any, rel: Any, absolute: Any) -> bool:
    """As `pytest.approx`: within the larger of both tolerances; 1e-6 of the expected one and 1e-12 by default."""
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping) or found.keys() != wanted.keys():
            return False
        return all(_close(found[key], value, rel, absolute) for key, value in wanted.items())
    if isinstance(wanted, list | tuple):
        pairs: Iterable[tuple[Any, Any]] = zip(found, wanted, strict=True)
        return all(_close(one, other, rel, absolute) for one, other in pairs)
    if found == wanted or not isinstance(wanted, int | float | Decimal | Fraction | complex):
        return bool(found == wanted)
    if isinstance(wanted, float) and math.isinf(wanted):
        return False
    given: Any = wanted
    least = 1e-12 if absolute is None else float(absolute)
    share = rel if rel is not None else (1e-6 if absolute is None else 0)
    return float(abs(found - given)) <= max(least, float(share) * float(abs(given)))


def _almost(found: Any, wanted: Any, places: Any, delta: Any) -> bool:
    if found == wanted:
        return True
    if delta is not None:
        return bool(abs(found - wanted) <= delta)
    return bool(round(abs(found - wanted), 7 if places is None else places) == 0)
