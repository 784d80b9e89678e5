r"""A row of a published question set as a question with its right answers, and how answers to it are compared.

| sets | columns |
|---|---|
| GSM8K (arXiv:2110.14168) | `question`, `answer` that ends in "#### N" |
| MATH (arXiv:2103.03874), MATH-500 | `problem`, `answer`, or `solution` with it in \boxed{} |
| AIME | `problem`, `answer`, an integer |
| NQ-open, TriviaQA, HotpotQA, Search-R1's | `question`, `answer` or `golden_answers`: texts, or {value, aliases} |
| PopQA | `question`, `possible_answers`, a list as JSON text |
| MMLU (arXiv:2009.03300) | `question`, `choices`, `answer`, the place of the right one |
| ARC (arXiv:1803.05457) | `question`, `choices` {text, label}, `answerKey` |

Letters of columns may be upper or lower case. Other sets are read by naming their columns (`env.columns`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentrl.envs.questions.latex import boxed

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MARKED = re.compile(r"####\s*(.+?)\s*$")


class Grading(StrEnum):
    """How an answer is compared with the right ones."""

    MATH = "math"  # as mathematics: 1/2 is 0.5
    EXACT = "exact"  # as text, after SQuAD's normalisation
    CHOICE = "choice"  # by the letter of a choice


@dataclass(frozen=True)
class Question:
    """A question and its right answers, of which one is enough; for `CHOICE` they are letters."""

    text: str
    answers: tuple[str, ...]
    grading: Grading


def question(row: Mapping[str, Any], grading: Grading | None = None) -> Question:
    """The question in a row.

    Args:
        row: of a set in the table above.
        grading: how its answers are compared; None is what suits its columns.

    Raises:
        ValueError: it is in no known format, or has no answer.
    """
    row = {**{str(name).lower(): value for name, value in row.items()}}
    text = row.get("problem", row.get("question"))
    if not isinstance(text, str) or not text.strip():
        raise ValueError("it has neither `question` nor `problem`; name the column: env.columns.question=…")
    if "choices" in row:
        return _choice(text, row)
    answers, found = _answers(row)
    if not answers:
        raise ValueError("it has no answer; name the column: env.columns.answer=…")
    return Question(text.strip(), answers, grading or found)


def _answers(row: Mapping[str, Any]) -> tuple[tuple[str, ...], Grading]:
    given = next(
        (row[name] for name in ("golden_answers", "possible_answers", "answer") if row.get(name) not in (None, "")),
        None,
    )
    if isinstance(given, str) and (marked := _MARKED.search(given)):
        return (marked[1],), Grading.MATH
    if "problem" in row:
        inside = boxed(str(row.get("solution", ""))) if given is None else str(given)
        return ((inside,) if inside else ()), Grading.MATH
    if isinstance(given, int | float) and not isinstance(given, bool):
        return (str(given),), Grading.MATH
    if isinstance(given, str) and "possible_answers" in row:
        given = _list(given)
    if isinstance(given, Mapping):
        given = [given.get("value"), *(given.get("aliases") or ())]
    listed = given if isinstance(given, list | tuple) else [given]
    return tuple(dict.fromkeys(str(each) for each in listed if each not in (None, ""))), Grading.EXACT


def _list(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _choice(text: str, row: Mapping[str, Any]) -> Question:
    choices, right = row["choices"], row.get("answerkey", row.get("answer"))
    labels: list[str] = []
    if isinstance(choices, Mapping):
        labels, choices = [str(label) for label in choices.get("label", ())], choices.get("text", ())
    if not isinstance(choices, list | tuple) or not 2 <= len(choices) <= len(LETTERS):
        raise ValueError(f"`choices` must be a list of 2 to {len(LETTERS)}")
    if isinstance(right, int) and not labels:
        place = right
    elif str(right) in labels:
        place = labels.index(str(right))
    elif str(right) in map(str, choices):
        place = list(map(str, choices)).index(str(right))
    else:
        place = LETTERS.find(str(right).strip().upper()) if len(str(right).strip()) == 1 else -1
    if not 0 <= place < len(choices):
        raise ValueError(f"the right answer {right!r} is none of its {len(choices)} choices")
    lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
    return Question("\n".join([text.strip(), *lines]), (LETTERS[place],), Grading.CHOICE)
