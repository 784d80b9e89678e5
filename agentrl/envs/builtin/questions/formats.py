r"""A row of a published question set as a question with its right answers, and how answers to it are compared.

| sets | columns |
|---|---|
| GSM8K (arXiv:2110.14168) | `question`, `answer` that ends in "#### N" |
| MATH (arXiv:2103.03874), MATH-500 | `problem`, `answer`, or `solution` with it in \boxed{} |
| AIME | `problem`, `answer`, an integer; or `question`, `problem number`, `answer` |
| NQ (its own files, and the simplified ones) | `question_text`, `annotations`, `document_text` or `document_tokens` |
| NQ-open, HotpotQA, 2WikiMultihopQA, Bamboogle, Search-R1's | `question`, `answer` or `golden_answers`: texts |
| TriviaQA | `question`, `answer`: {value, aliases} |
| MuSiQue | `question`, `answer`, `answer_aliases`, `answerable` |
| WebQuestions, SQuAD | `question`, `answers`: texts, or {text} |
| PopQA | `question`, `possible_answers`, a list as JSON text |
| BoolQ, StrategyQA | `question`, `answer`: true or false |
| MMLU (arXiv:2009.03300) | `question`, `choices`, `answer`, the place of the right one; or `A` to `D` and its letter |
| MMLU-Pro | `question`, `options`, `answer`, a letter |
| ARC (arXiv:1803.05457), CommonsenseQA | `question`, `choices` {text, label}, `answerKey`; or in `question` |
| GPQA (arXiv:2311.12022) | `question`, `correct answer`, `incorrect answer 1` to `3`, put in an order by a hash |
| SimpleQA (arXiv:2411.04368), SimpleQA Verified | `problem`, `answer`, a text; `metadata`, or `urls` |
| TruthfulQA (arXiv:2109.07958), free answers | `question`, `best answer`, `correct answers`, `incorrect answers` |
| TruthfulQA, choices | `question`, `mc1_targets`: 1 or 0 by answer, or {choices, labels} |
| verl's files | `prompt`, a text or one message; `reward_model` {ground_truth}: text, texts, or {target} |
| slime's files | `prompt` as above, `label` |
| EasyR1's, VLM-R1's files, with images | see `images` |

Numbers in text (every CSV file's, verl's) may be meant as mathematics or as words: where a set's own columns do not
tell, `env.grading` has to. Letters of columns may be upper or lower case. Other sets are read by naming their columns
(`env.columns`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from agentrl.common.plain import plain
from agentrl.envs.builtin.questions.boxes import box_of
from agentrl.envs.builtin.questions.images import MARK, check_marks, images_of, with_conversation
from agentrl.envs.builtin.questions.latex import find_boxed, normalize, number
from agentrl.envs.builtin.search_r1.scoring import normalize as words_of
from agentrl.envs.data.rows import decode_messages

COLUMNS = frozenset(
    {
        *("problem", "question", "question_text", "annotations", "document_text", "document_tokens", "answerable"),
        *("choices", "options", "answer", "answers", "golden_answers", "possible_answers", "answerkey"),
        *("answer_aliases", "solution", "problem number", "correct answer", "a", "b", "c", "d", "mc1_targets"),
        *(f"incorrect answer {n}" for n in (1, 2, 3)),
        *("best answer", "correct answers", "incorrect answers", "best_answer", "correct_answers", "incorrect_answers"),
        *("unique_id", "task_id", "id", "example_id", "_id", "images", "image", "conversations"),
    }
)
"""The columns that a question may be made of, in lower case; trainers' own stand for missing ones (`_of_trainers`)."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ANSWERS = frozenset({"golden_answers", "possible_answers", "answer", "answers", "annotations", "answerkey"}) | {
    *("correct answer", "best answer", "best_answer", "mc1_targets", "choices", "options"),
}
"""Columns, one of which has the right answer."""
_MARKED = re.compile(r"####\s*+(.++)\Z")


class Grading(StrEnum):
    """A way of comparing an answer with the right ones."""

    MATH = "math"  # as mathematics: 1/2 is 0.5
    EXACT = "exact"  # as text, after SQuAD's normalisation
    CHOICE = "choice"  # by the letter of a choice
    CLOSER = "closer"  # closer to a right answer than to any wrong one, by the words in common
    BOX = "box"  # by the overlap of a box in an image with the right one


@dataclass(frozen=True)
class Question:
    """A question and its right answers, of which one is enough; for `CHOICE` they are letters, for `BOX` lists as text.

    `images` are paths, or names of images in memory. `wrong` answers are known for `CLOSER` alone. `unclear`: the
    answer is a number that is written as text, and nothing in its row tells whether it is compared as mathematics or as
    words.
    """

    text: str
    answers: tuple[str, ...]
    grading: Grading
    wrong: tuple[str, ...] = ()
    unclear: bool = False
    images: tuple[str, ...] = ()


def question(row: Mapping[str, Any], grading: Grading | None = None) -> Question | None:
    """The question in a row; None where its set says that it has no answer, or the comparison leaves nothing of it.

    Args:
        row: of a set in the table above.
        grading: how its answers are compared; None is what suits its columns.

    Raises:
        ValueError: it is in no known format, or has no answer.
    """
    images = tuple(images_of(row))
    asked = _question(row, grading)
    if asked is None or not (images or MARK in asked.text):
        return asked
    check_marks(asked.text, images)
    return replace(asked, images=images)


def _question(row: Mapping[str, Any], grading: Grading | None) -> Question | None:
    row = with_conversation({str(name).lower(): value for name, value in row.items()})
    row = _of_trainers(row)
    if "question_text" in row and "annotations" in row:
        return _natural(row, grading)
    if row.get("answerable") is False:
        return None
    row = _with_choices(_truthful(row, grading))
    text = _read_question(row.get("problem", row.get("question")))
    if "choices" in row:
        return _choice(text, row)
    if (box := _box(row, grading)) is not None:
        return Question(text.strip(), (box,), Grading.BOX)
    answers, found = _answers(row)
    if not answers:
        empty = next((f"`{name}` is {str(row[name])[:60]!r}" for name in row if name in ANSWERS), "")
        if empty:
            raise ValueError(f"it has no answer: {empty}; give it one, or leave it out with env.where=file.py:FUNCTION")
        raise ValueError("it has no answer; name the column: env.columns.answer=…")
    answers = tuple(answer for answer in answers if comparable(answer, grading or found))
    if not answers:
        return None
    wrong = tuple(row.get("wrong_answers", ()))
    if grading is Grading.CLOSER and not wrong:
        raise ValueError("env.grading = 'closer' needs wrong answers, as TruthfulQA has them")
    text_alone = grading is None and found is Grading.EXACT and _find_answer(row) == answers[0] and not _asks_facts(row)
    return Question(text.strip(), answers, grading or found, wrong, text_alone and number(answers[0]) is not None)


def comparable(answer: str, grading: Grading) -> bool:
    """Return whether anything is left of a right answer by which another one is compared with it."""
    return bool(normalize(answer) if grading is Grading.MATH else words_of(answer))


def _of_trainers(row: dict[str, Any]) -> dict[str, Any]:
    """The row with a question and an answer, where it has them in the columns of verl's or slime's files."""
    found = dict(row)
    if not row.keys() & {"problem", "question", "question_text"} and "prompt" in row:
        found["question"] = row["prompt"]
    if not row.keys() & ANSWERS and "solution" not in row:
        truth = row["reward_model"].get("ground_truth") if isinstance(row.get("reward_model"), Mapping) else None
        answer = row.get("label") if truth is None else truth
        if isinstance(answer, Mapping) and "target" in answer:
            answer = answer["target"]
        if answer is not None:
            found["answer"] = answer
    return found


def _box(row: Mapping[str, Any], grading: Grading | None) -> str | None:
    """The right box as text, where the row is VLM-R1's and has one, or boxes are asked for.

    Raises:
        ValueError: they are asked for, and it has none.
    """
    given = plain(_find_answer(row))
    if grading not in (None, Grading.BOX) or (grading is None and "conversations" not in row):
        return None
    box = box_of(given)
    if box is not None:
        return json.dumps([int(side) if side.is_integer() else side for side in box])
    if grading is Grading.BOX:
        raise ValueError(f"env.grading = 'box' needs a box, [x1, y1, x2, y2], as the answer; it is {given!r:.60}")
    return None


def _find_answer(row: Mapping[str, Any]) -> Any:
    """Return what stands in the first column of answers that has something; None where none has."""
    names = ("golden_answers", "possible_answers", "answer", "answers")
    found = (row[name] for name in names if row.get(name) not in (None, ""))
    return next((each for each in found if not (isinstance(each, float) and math.isnan(each))), None)


def _asks_facts(row: Mapping[str, Any]) -> bool:
    """Return whether it is a row of SimpleQA."""
    return "solution" not in row and ("metadata" in row or "urls" in row)


def _read_question(value: Any) -> str:
    """The question in a column: a text, or a list of messages of which one is the user's and none another's."""
    value = decode_messages(value)
    if isinstance(value, str) and value.strip():
        return value
    if value in (None, ""):
        raise ValueError("it has neither `question` nor `problem`; name the column: env.columns.question=…")
    messages = value if isinstance(value, list) else [value]
    if len(messages) == 1 and isinstance(messages[0], Mapping) and messages[0].get("role") == "user":
        text = messages[0].get("content")
        if isinstance(text, str) and text.strip():
            return text
    kinds = [each.get("role") if isinstance(each, Mapping) else type(each).__name__ for each in messages]
    raise ValueError(f"the question must be a text, or a list of one message, the user's; it is a list of {kinds}")


def _truthful(row: dict[str, Any], grading: Grading | None) -> dict[str, Any]:
    """TruthfulQA's rows: its choices with the right one's place, or its right and wrong answers.

    Where choices are wanted of free answers, they are the best answer and the wrong ones, as in its `mc1_targets`.
    """
    row = {name.replace(" ", "_"): value for name, value in row.items()} if "best answer" in row else row
    if isinstance(targets := row.get("mc1_targets"), Mapping):
        if "choices" in targets:
            targets = dict(zip(targets["choices"], targets["labels"], strict=True))
        return _shuffled_choices(row, next(text for text, label in targets.items() if label), list(targets))
    if "best_answer" not in row or "incorrect_answers" not in row:
        return row
    wrong = _separate(row["incorrect_answers"])
    if grading is Grading.CHOICE:
        return _shuffled_choices(row, str(row["best_answer"]).strip(), wrong)
    answers = [row["best_answer"], *_separate(row.get("correct_answers") or ())]
    return {**row, "golden_answers": answers, "wrong_answers": wrong}


def _separate(answers: Any) -> list[str]:
    """A list, or texts with semicolons between them."""
    listed = answers.split(";") if isinstance(answers, str) else answers
    return [text for each in listed if (text := str(each).strip())]


def _natural(row: Mapping[str, Any], grading: Grading | None) -> Question | None:
    """A question of NQ's own files: its short answers are places in the document."""
    if tokens := row.get("document_tokens"):
        words = ["" if token.get("html_token") else token["token"] for token in tokens]
    else:
        words = str(row.get("document_text", "")).split(" ")
    answers: list[str] = []
    for annotation in row["annotations"]:
        if (said := str(annotation.get("yes_no_answer", "NONE"))).upper() in ("YES", "NO"):
            answers.append(said.lower())
        spans = [(span["start_token"], span["end_token"]) for span in annotation.get("short_answers", ())]
        answers += [" ".join(filter(None, words[start:end])) for start, end in spans]
    found = tuple(dict.fromkeys(filter(None, answers)))
    return Question(str(row["question_text"]).strip(), found, grading or Grading.EXACT) if found else None


def _with_choices(row: dict[str, Any]) -> dict[str, Any]:
    """The row with `choices` in one column, whatever its set calls them."""
    asked = row.get("question")
    if isinstance(asked, Mapping) and isinstance(asked.get("choices"), list):  # ARC's and CommonsenseQA's own files
        named = {field: [choice[field] for choice in asked["choices"]] for field in ("label", "text")}
        return {**row, "question": asked.get("stem"), "choices": named}
    if isinstance(row.get("options"), list) and "choices" not in row:
        return {**row, "choices": row["options"]}
    wrong = [row[name] for name in (f"incorrect answer {n}" for n in (1, 2, 3)) if row.get(name)]
    if wrong and row.get("correct answer"):
        return _shuffled_choices(row, str(row["correct answer"]).strip(), [str(each).strip() for each in wrong])
    if "choices" not in row and all(isinstance(row.get(letter), str) for letter in "abcd"):
        return {**row, "choices": [row[letter] for letter in "abcd"]}
    return row


def _shuffled_choices(row: dict[str, Any], right: str, others: list[str]) -> dict[str, Any]:
    """The row with choices in an order that does not tell the right one."""
    choices = sorted({right, *others}, key=_shuffle_key)
    return {**row, "choices": choices, "answer": choices.index(right)}


def _shuffle_key(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _answers(row: Mapping[str, Any]) -> tuple[tuple[str, ...], Grading]:
    given = plain(_find_answer(row))
    if isinstance(given, str) and (marked := _MARKED.search(given.rstrip())):
        return (marked[1],), Grading.MATH
    if "wrong_answers" in row:
        return tuple(dict.fromkeys(map(str, given or ()))), Grading.CLOSER
    if "problem number" in row or ("problem" in row and not _asks_facts(row)):
        inside = find_boxed(str(row.get("solution", ""))) if given is None else str(given)
        return ((inside,) if inside else ()), Grading.MATH
    if isinstance(given, bool):
        return ("yes" if given else "no",), Grading.EXACT
    if isinstance(given, int | float):
        return (str(given),), Grading.MATH
    if isinstance(given, str) and "possible_answers" in row:
        given = _list(given)
    if isinstance(given, Mapping):
        given = {str(name).lower(): value for name, value in given.items()}
        given = [given.get("value"), *(given.get("aliases") or ()), *(given.get("text") or ())]
    listed = [*(given if isinstance(given, list | tuple) else [given]), *(row.get("answer_aliases") or ())]
    found = [each for each in listed if each not in (None, "")]
    numbers = bool(found) and all(isinstance(each, int | float) and not isinstance(each, bool) for each in found)
    return tuple(dict.fromkeys(map(str, found))), Grading.MATH if numbers else Grading.EXACT


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


def number_of_choices(text: str) -> int:
    """Count the choices that a question's text lists, as `question` writes them."""
    return next((n for n, letter in enumerate(LETTERS) if f"\n{letter}. " not in text), len(LETTERS))
