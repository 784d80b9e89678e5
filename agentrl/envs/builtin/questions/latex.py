"""Answers to mathematical questions, as they are written in LaTeX: which part is the answer, and when two are equal.

Two answers are equal where they are the same after normalisation, are the same number, or have equal parts (tuples,
intervals, sets). What needs algebra, such as x(x+1) and x^2+x, is not seen.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARS = 400
"""An answer that is longer is compared as text alone."""
MAX_DIGITS = 60
_OPEN, _CLOSE = "([{", ")]}"
_DROPPED = re.compile(r"\\(left|right|displaystyle|big|Big|limits|,|!|;|:|quad)(?![a-zA-Z])|\\[,!;: ]|\$|~|\s+|\\\$")
_WORDS = re.compile(r"\\(?:text|mathrm|textbf|mbox|mathbf)\{([^{}]*)\}")
_APART = re.compile(r"(?<=\d)(?:\s|~|\\?\$|\\[,!;: ]|\\q?quad(?![a-zA-Z]))+(?=\d)")
_IN_THREES = re.compile(r"(?<![\d.\x1f])\d{1,3}(?:\x1f\d{3})+(?![\d\x1f])")
_SHORT_FRACTION = re.compile(r"\\frac(\d)(\d)")
_FRACTION = re.compile(r"(-?)(\d*)\\frac\{(-?\d+)\}\{(-?\d+)\}")
_PLAIN = re.compile(r"(-?\d+(?:\.\d+)?|-?\.\d+)(?:/(-?\d+(?:\.\d+)?))?")
_GROUPED = re.compile(r"-?\d{1,3}(,\d{3})+(\.\d+)?")
_UNIT = re.compile(
    r"(?<=\d)(?:\\?%|\^\{?\\?circ\}?|\\degree|°|(?:degrees?|dollars?|units?|cm|km|inches|feet|hours?|minutes?)(?:\^\{?\d\}?)?)$"
)
_NAME = re.compile(r"^[a-zA-Z](?:\([a-z]\))?=(?=.)")
_MEMBER = re.compile(r"^[a-z]\\in")
_LAST_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
_SAID = re.compile(r"answer(?: is|:)\s*+:?\s*+(.+)", re.IGNORECASE)  # possessive: white space is gone through once


def boxed(text: str) -> str | None:
    r"""The content of the last \boxed{} of a text; None where there is none that is closed."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    begin, depth = text.index("{", start), 0
    for place in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return text[begin + 1 : place].strip()
    return None


def stated(text: str) -> str | None:
    r"""The answer that a text states: its last \boxed{}, what is behind "####" or "answer is", or its last number."""
    if (found := boxed(text)) is not None:
        return found
    if "####" in text:
        return text.rpartition("####")[2].strip().partition("\n")[0] or None
    if said := _SAID.findall(text):
        return str(said[-1]).strip().removesuffix(".").strip("*$ ") or None
    numbers = _LAST_NUMBER.findall(text)
    return numbers[-1] if numbers else None


def equal(said: str, right: str) -> bool:
    """Return whether two answers are the same; False where only algebra could show it."""
    if max(len(said), len(right)) > MAX_CHARS:
        return said.strip() == right.strip()
    return _equal(normalize(said), normalize(right))


def _equal(said: str, right: str) -> bool:
    if said == right:
        return bool(said)
    one, other = number(said), number(right)
    if one is not None and other is not None:
        return one == other
    ours, theirs = _parts(said), _parts(right)
    if ours is None or theirs is None or (ours[0], ours[2]) != (theirs[0], theirs[2]) or len(ours[1]) != len(theirs[1]):
        return False
    if ours[0] == "{":  # a set: in any order
        left = list(theirs[1])
        for each in ours[1]:
            match = next((value for value in left if _equal(each, value)), None)
            if match is None:
                return False
            left.remove(match)
        return True
    return all(map(_equal, ours[1], theirs[1]))


def normalize(text: str) -> str:
    """An answer without what does not change its meaning: spacing, sizes of brackets, units, `x =`."""
    text = text.strip().strip("$").rstrip(".").replace("\\{", "{").replace("\\}", "}")
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\cdot", "*").replace("\u2212", "-")
    text = _APART.sub("\x1f", _WORDS.sub(r"\1", text))  # numbers beside each other are not one, but for 1 000 000
    text = _IN_THREES.sub(lambda found: found[0].replace("\x1f", ""), text).replace("\x1f", "&")
    text = _DROPPED.sub("", text).replace("\\infty", "oo").replace("\\pi", "pi")
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)
    text = _MEMBER.sub("", _NAME.sub("", text))
    text = _UNIT.sub("", text)
    return text.replace(",", "") if _GROUPED.fullmatch(text) else text


def number(text: str) -> Fraction | None:
    """The number that a normalised answer is; None where it is no plain number or fraction."""
    if len(text) > MAX_DIGITS:
        return None
    if mixed := _FRACTION.fullmatch(text):
        sign, whole, above, below = mixed.groups()
        if int(below) == 0:
            return None
        value = int(whole or 0) + Fraction(int(above), int(below))
        return -value if sign else value
    if (plain := _PLAIN.fullmatch(text)) is None:
        return None
    below = Fraction(plain[2] or 1)
    return Fraction(plain[1]) / below if below else None


def _parts(text: str) -> tuple[str, list[str], str] | None:
    """A tuple, interval or set as its brackets and elements; None where it is none."""
    if len(text) < 3 or text[0] not in _OPEN or text[-1] not in _CLOSE:
        return None
    parts, depth, current = [], 0, ""
    for letter in text[1:-1]:
        depth += (letter in _OPEN) - (letter in _CLOSE)
        if depth < 0:
            return None
        if letter == "," and not depth:
            parts.append(current)
            current = ""
        else:
            current += letter
    parts.append(current)
    return (text[0], parts, text[-1]) if not depth and len(parts) > 1 else None
