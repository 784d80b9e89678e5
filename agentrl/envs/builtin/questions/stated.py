"""The answer that a text states in words: behind "Answer:", or as the letter of a choice."""

from __future__ import annotations

import re

from agentrl.envs.builtin.questions import latex

_ANSWER = re.compile(r"answer(?:\s++is)?\s*+:?\**+\s*+(.+)", re.IGNORECASE)  # possessive: see latex._SAID
_LETTER = re.compile(r"\W*(?:\\text\{)?\(?([A-Za-z])\)?(?![A-Za-z])")


def stated_answer(text: str) -> str:
    """Return what stands behind the last "Answer:"; the whole text where nothing does."""
    said = _ANSWER.findall(text)
    return str(said[-1]).strip().strip("*").rstrip(".") if said else text.strip()


def chosen_letter(text: str) -> str | None:
    r"""Return the letter of the choice that a text states, in \boxed{} or behind "Answer:", as a capital."""
    letter = _LETTER.match(latex.boxed(text) or stated_answer(text))
    return letter[1].upper() if letter else None
