"""A document in sections, and a search in it."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

FOUND = 5
"""Sections that a search shows."""
EXCERPT = 160
"""Characters of each that it shows."""
SECTION = 1500
"""Characters of a section, where a text is cut into sections."""
_WORD = re.compile(r"\w+")


class Document:
    """A document.

    Attributes:
        sections: their texts; the first has the number 1.
    """

    def __init__(self, sections: Sequence[str]) -> None:
        self.sections = tuple(sections)
        self._places: dict[str, set[int]] = defaultdict(set)
        for number, text in enumerate(self.sections, 1):
            for word in _WORD.findall(text.casefold()):
                self._places[word].add(number)

    def search(self, query: str) -> list[int]:
        """The sections that have the query's words, rare words counting more; equal ones in their order."""
        scores: Counter[int] = Counter()
        for word in sorted(set(_WORD.findall(query.casefold()))):
            places = self._places.get(word, ())
            for number in places:
                scores[number] += math.log(1 + len(self.sections) / len(places))  # type: ignore[assignment]
        return sorted(scores, key=lambda number: (-scores[number], number))[:FOUND]

    def excerpt(self, number: int, query: str) -> str:
        """The part of a section that has the most of a query's words."""
        text, words = self.sections[number - 1], set(_WORD.findall(query.casefold()))
        starts = range(0, max(1, len(text) - EXCERPT // 2), EXCERPT // 2)
        best = max(starts, key=lambda start: len(words & set(_WORD.findall(text[start : start + EXCERPT].casefold()))))
        return " ".join(text[best : best + EXCERPT].split())


def cut(text: str) -> list[str]:
    """A text's sections: whole paragraphs, as many as fit; a longer paragraph is cut."""
    sections, held = list[str](), ""
    for paragraph in re.split(r"\n\s*\n", text):
        for start in range(0, len(paragraph), SECTION):
            piece = paragraph[start : start + SECTION].strip()
            if held and len(held) + len(piece) > SECTION:
                sections.append(held)
                held = ""
            held = f"{held}\n\n{piece}" if held else piece
    return [*sections, held] if held else sections
