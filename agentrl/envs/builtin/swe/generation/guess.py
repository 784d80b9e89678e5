"""The difficulty of guessing a test's expected values, for one who knows what the program shows as it is.

Expected values never enter a sandbox, so a patch that repairs nothing can only guess them. The best that one can do who
has read all of this is to begin with what the broken program shows and with what is written in the test, and to try
what such faults are like: one more or less, the opposite, sorted, without its doubles, a part of it, another constant
of the test. `candidates` lists such guesses, the likeliest first; the place of the right one in that list is the
number of guesses that an attacker has for it, and its logarithm the bits that it is worth. Only what the broken program
gets wrong counts. A truth value is worth nothing (it is the other one), an exception's type little; that is how tasks
which rest on such forms alone are found, and refused.

Some answers are right by whatever they are compared with: infinity is greater than every number, and a list of
everything holds what is looked for (`universal`). Such an answer is worth one bit, and it counts once in a task,
however many assertions it answers.
"""

from __future__ import annotations

import ast
import builtins
import math
import string
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice, permutations, product
from typing import Any

from agentrl.envs.builtin.swe.generation.expect import MISMATCH, TEXT, WIDEST, Thing, as_shown, decode, fits
from agentrl.envs.builtin.swe.generation.observe import AssertionSite

MOST = 256
"""Guesses that are tried; what is not among them is worth eight bits."""
MISSING = object()
"""The text that stands for what the broken program doesn't get to."""
BASIC: tuple[Any, ...] = (True, False, None, 0, 1, 2, -1, 3, "", [], {}, (), 0.0, 4, 5, 10)
EXTREMES: tuple[Any, ...] = (math.inf, -math.inf, "", "\U0010ffff" * 9, b"", b"\xff" * 99, (), [])
EXTREMES += tuple([one] for one in (math.inf, "\U0010ffff" * 9)) + tuple((one,) for one in (math.inf, "\U0010ffff" * 9))
EXTREMES += (date.min, date.max, datetime.min, datetime.max, time.min, time.max, timedelta.min, timedelta.max)
EXTREMES += (Decimal("Infinity"), Decimal("-Infinity"))
"""The least and the greatest of each kind."""
USUAL = "".join(
    f"{sign}{n}{end}" for n in (0, 1, 12, 123, 1234, 1.5, 0.25) for sign in ("", "-", "$") for end in " ,%s\n"
)
USUAL += (
    "\n2024-01-31T12:59:59Z 12:30 3 days, a@b.org http://a.org/b?c=d /a/b.txt v1.2.3 (a) [b] {c} <d> 'e' \"f\" G_h\n"
)
"""Forms that patterns look for."""
SEPARATORS = (" ", "-", "_", "", ", ", ",", ".", "/", ":", "\n", "+", "%20")


@dataclass(frozen=True, slots=True)
class Open:
    """Something that the broken program shows wrongly: what has to be guessed.

    Attributes:
        test: which test shows it.
        site: the assertion.
        expected: what it is to show, as the proof recorded it.
        honest: what the broken program shows there, or MISSING.
        literals: values that are written in the test.
        number: the assertion's.
        turn: which time it is that the test comes by there, from 1.
        right: what the reference solution shows.
    """

    test: str
    site: AssertionSite
    expected: Any
    honest: Any
    literals: Sequence[Any]
    number: int = 0
    turn: int = 1
    right: Any = None

    @property
    def universal(self) -> str:
        """The first `universal` answer that is right here; '' for none."""
        guesses = map(as_shown, universal(self.site, self.literals))
        return next((repr(shown) for shown in guesses if fits(self.site, self.expected, shown)), "")

    @property
    def rank(self) -> int:
        """The first guess that is right, counted from 1; MOST where none is."""
        if self.universal:
            return 2
        for place, (_, shown) in enumerate(islice(candidates(self.site, self.honest, self.literals), MOST), 1):
            if fits(self.site, self.expected, shown):
                return place
        return MOST

    @property
    def bits(self) -> float:
        """The binary logarithm of that."""
        return math.log2(self.rank)


def bits(found: Sequence[Open]) -> float:
    """The worth of all of them together; those that one guess answers count once."""
    distinct = {one.universal or (one.site.kind, repr(one.honest), repr(one.expected)): one for one in found}
    return sum(one.bits for one in distinct.values())


def universal(site: AssertionSite, literals: Sequence[Any] = ()) -> Iterator[Any]:
    """Answers that fit everything that a comparison of this kind may expect, whatever is written in the test."""
    if site.kind != "compare":
        return
    operator, swapped = site.options["operator"], site.options["swapped"]
    if not site.options["holds"]:
        yield from (math.nan, "", [], Thing())
    if operator in ("Lt", "LtE", "Gt", "GtE"):
        yield from EXTREMES
        yield from (frozenset(), frozenset(_everything(literals)[:WIDEST]))
    elif operator == "Regex":
        texts = _texts(literals)
        yield from (text[start : start + TEXT] for text in texts for start in range(0, min(len(text), 10 * TEXT), TEXT))
    elif operator == "In" and swapped:
        everything = _everything(literals)
        yield from (everything, frozenset(everything[:WIDEST]), range(-WIDEST // 2, WIDEST // 2))
        yield from _texts(literals)
        yield from (text.encode("ascii", "ignore") for text in _texts(literals))
    elif operator == "In":
        yield ""
        for literal in literals:
            yield from literal if isinstance(literal, list | tuple | set | frozenset | dict | str) else ()


def _everything(literals: Sequence[Any]) -> list[Any]:
    """Return what is written in a test, its parts, and what is usual, each once."""
    parts = [part for one in literals if isinstance(one, list | tuple | set | frozenset | dict) for part in one]
    listed = [*literals, *parts, *BASIC, *range(-100, 800), *string.printable]
    return list({repr(one): one for one in listed if _hashable(one)}.values())


def _texts(literals: Sequence[Any]) -> Iterator[str]:
    """Texts that hold what is written in a test, every short text, and the usual forms of numbers, times and names."""
    yield " ".join(map(str, [*literals, *(literal.lower() for literal in literals if isinstance(literal, str))]))
    yield string.printable
    yield "".join(map("".join, product(string.printable, repeat=2)))
    yield "".join(map("".join, product(string.ascii_lowercase + string.digits + " ", repeat=3)))
    yield USUAL


def can_fail(site: AssertionSite, expected: Any) -> bool:
    """Return whether anything at all would be wrong there: an `approx(abs=…)` without bounds accepts every number."""
    if site.kind in ("truth", "raises"):
        return True
    try:
        value = decode(expected, sys.maxsize)
    except MISMATCH:
        return False
    tried = [value, *BASIC, 1e300, -1e300, "\0other", [value]]
    return any(not fits(site, expected, as_shown(one)) for one in tried)


def candidates(site: AssertionSite, honest: Any, literals: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """(what kind of guess, what would be shown), the likeliest first, each once; the honest value isn't among them.

    Args:
        site: the assertion.
        honest: what the broken program shows, as it came out; or MISSING.
        literals: of the test.
    """
    seen = {repr(honest)} if honest is not MISSING else set()
    if site.kind == "raises":
        guesses = _exceptions(site, literals)
    elif site.kind == "truth":
        guesses = iter([("truth", True), ("truth", False)])
    else:
        guesses = ((label, as_shown(value)) for label, value in _values(_readable(honest), literals))
    for label, shown in guesses:
        if repr(shown) not in seen:
            seen.add(repr(shown))
            yield label, shown


def _readable(honest: Any) -> Any:
    if honest is MISSING:
        return MISSING
    try:
        return decode(honest, sys.maxsize)
    except MISMATCH:
        return MISSING


def _exceptions(site: AssertionSite, literals: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    names: Sequence[str] = site.options["names"]
    own = [name for name in names if not hasattr(builtins, name)]
    usual = [name for name in ("ValueError", "KeyError", "TypeError", "IndexError", "RuntimeError") if name in names]
    texts = [" ".join(str(literal) for literal in literals), ""]
    for text in texts:
        for name in dict.fromkeys([*own, *usual, *names]):
            yield "raises", ["raised", [_is_kind(name, other) for other in names], text]
    yield "raises nothing", None


def _is_kind(name: str, other: str) -> bool:
    one, two = getattr(builtins, name, None), getattr(builtins, other, None)
    if name == other or other == "Exception":
        return True
    return isinstance(one, type) and isinstance(two, type) and issubclass(one, two)


def _values(honest: Any, literals: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    if honest is not MISSING:
        yield from _near(honest, literals)
    alike = [one for one in literals if honest is MISSING or type(one) is type(honest)]
    yield from (("literal", one) for one in alike)
    yield from (("basic", one) for one in BASIC)
    yield from (("literal", one) for one in literals)
    yield from (("listed", [one]) for one in literals)
    yield from (("listed", list(pair)) for pair in permutations(list(literals)[:8], 2))
    yield from (("number", number) for number in range(-10, 101))


def _near(value: Any, literals: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, bool):
        yield "not", not value
    elif isinstance(value, int | float):
        yield from _near_number(value)
    elif isinstance(value, str):
        yield from _near_text(value, literals)
    elif isinstance(value, bytes):
        yield from (
            (label, new.encode("latin-1"))
            for label, new in _near_text(value.decode("latin-1"), [])
            if ord(max(new + " ")) < 256
        )
    elif isinstance(value, list | tuple):
        yield from _near_list(value, literals)
    elif isinstance(value, dict):
        for key in value:
            yield "without a key", {other: one for other, one in value.items() if other != key}
            for label, new in islice(_near(value[key], literals), 8):
                yield f"a value's {label}", {**value, key: new}
    elif isinstance(value, frozenset):
        yield from (("without an item", value - {item}) for item in value)
        yield from (("with a literal", value | {one}) for one in literals if _hashable(one))


def _near_number(value: float) -> Iterator[tuple[str, Any]]:
    for label, new in (("+1", value + 1), ("-1", value - 1), ("+2", value + 2), ("-2", value - 2), ("0", 0)):
        yield label, new
    for label, new in (
        ("negated", -value),
        ("twice", value * 2),
        ("half", value / 2),
        ("half", int(value) // 2 if abs(value) < 1e15 else 0),
    ):
        yield label, new
    for factor in (10, 100, 1000, 60, 1024, 24, 3600):
        yield "scaled", value * factor
        yield "scaled", value / factor
    for digits in (0, 1, 2, 3):
        yield "rounded", round(value, digits) if abs(value) < 1e300 else value
    yield from (("plus", value + step) for step in (3, -3, 4, -4, 5, -5, 10, -10))


def _near_text(value: str, literals: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    yield "stripped", value.strip()
    yield from (("letters' case", new) for new in (value.lower(), value.upper(), value.title()))
    yield from (
        ("cut", new)
        for new in (value[:-1], value[1:], value.rstrip("0"), value.rstrip(".0"), value + "\n", value.rstrip("\n"))
    )
    for one in SEPARATORS:
        yield from (("separator", value.replace(one, other)) for other in SEPARATORS[:6] if one and one in value)
    yield "single spaces", " ".join(value.split())
    yield "words joined", "-".join(value.split())
    yield "quoted", f'"{value}"'
    for literal in literals:
        if isinstance(literal, str):
            yield "with a literal", value + literal
            yield "with a literal", literal + value
            yield "without a literal", value.replace(literal, "") if literal else value
    lines = value.split("\n")
    yield from (("without a line", "\n".join(lines[:n] + lines[n + 1 :])) for n in range(min(len(lines), 8)))
    yield from (("without a letter", value[:n] + value[n + 1 :]) for n in range(min(len(value), 24)))
    yield from (
        ("digit", value[:n] + str((int(letter) + 1) % 10) + value[n + 1 :])
        for n, letter in enumerate(value[:24])
        if letter in "0123456789"
    )


def _near_list(value: list[Any] | tuple[Any, ...], literals: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    items = list(value)
    yield "empty", kind()
    for label, change in (("sorted", sorted), ("reversed", lambda it: it[::-1])):
        try:
            yield label, kind(change(items))
        except MISMATCH:
            continue
    yield "without doubles", kind([item for place, item in enumerate(items) if item not in items[:place]])
    yield from (("cut", kind(new)) for new in (items[:-1], items[1:], items[:1], items[-1:], items[::2]))
    for place, item in enumerate(items[:6]):
        yield "without an item", kind(items[:place] + items[place + 1 :])
        for label, new in islice(_near(item, literals), 6):
            yield f"an item's {label}", kind([*items[:place], new, *items[place + 1 :]])
    yield from (("with a literal", kind([*items, one])) for one in list(literals)[:8])
    yield from (("with a literal", kind([one, *items])) for one in list(literals)[:8])
    if len(items) <= 4:
        yield from (("other order", kind(new)) for new in permutations(items))
    yield from (
        ("swapped", kind([*items[:n], items[n + 1], items[n], *items[n + 2 :]])) for n in range(min(len(items) - 1, 8))
    )


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def literals_of(source: str, test: str) -> list[Any]:
    """The literals of a test, as it is scored: constants and containers of them, shortest first."""
    name = test.partition("[")[0].rpartition("::")[2]
    found: dict[str, Any] = {}
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name == name:
            for node in ast.walk(function):
                if isinstance(node, ast.Constant | ast.List | ast.Tuple | ast.Dict | ast.Set):
                    try:
                        value = ast.literal_eval(node)
                    except (ValueError, TypeError, SyntaxError):
                        continue
                    found[repr(value)] = value
    return [found[text] for text in sorted(found, key=lambda text: (len(text), text))][:64]
