"""Elements one after another, <open …>value<close>, whose values may hold anything.

A value ends at the first closing tag after which another element begins or the text ends. Each character is looked at a
bounded number of times: regular expressions that look ahead from every place take time with the square of the length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLANK = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class ElementKind:
    """One kind of element: its opening tag, what every opening tag begins with, and its closing tag."""

    opening: re.Pattern[str]
    begins: str
    closing: str


Element = tuple[re.Match[str], str, str]
"""An element: its opening tag, its value, and itself as written."""


def elements(text: str, kind: ElementKind) -> tuple[list[Element], int]:
    """The elements that a text begins with.

    Returns:
        The elements, and where the text goes on that is none; that is the text's length where all of it is.
    """
    found: list[Element] = []
    at = _after_blank(text, 0)
    while at < len(text):
        opened = kind.opening.match(text, at)
        if opened is None:
            break
        closed = _close(text, kind, opened.end())
        if closed < 0:
            break
        end = closed + len(kind.closing)
        found.append((opened, text[opened.end() : closed], text[at:end]))
        at = _after_blank(text, end)
    return found, at


def _close(text: str, kind: ElementKind, start: int) -> int:
    """The index of the value's closing tag; -1 where there is none."""
    while (closed := text.find(kind.closing, start)) >= 0:
        following = _after_blank(text, closed + len(kind.closing))
        if following == len(text) or text.startswith(kind.begins, following):
            return closed
        start = following if following > closed + len(kind.closing) else closed + len(kind.closing)
    return -1


def _after_blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at
