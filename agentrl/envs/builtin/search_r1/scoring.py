"""Scores of answers, from the model's own text alone.

Search-R1's reward is exact match after the normalisation of SQuAD's evaluation (Rajpurkar et al., arXiv:1606.05250):
lower case, punctuation and articles removed, white space made single. Its code scores prompt and response together and
so has to skip the prompt's own example of an answer; here only the response counts, and its last answer. The
format-aware reward is that of the follow-up study (Jin et al., arXiv:2505.15117).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

FORMAT_SCORE = 0.2
"""The part of the right format in the format-aware reward."""
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_INSIDE = r"(?:(?!</?(?:think|search|information|answer)>).)*"
_ROUND = rf"<think>{_INSIDE}</think>\s*<search>{_INSIDE}</search>\s*<information>{_INSIDE}</information>\s*"
_FORMAT = re.compile(rf"\s*(?:{_ROUND})*<think>{_INSIDE}</think>\s*<answer>{_INSIDE}</answer>\s*", re.DOTALL)


def normalize(text: str) -> str:
    """An answer as it is compared; one of articles alone ("A", "The The") keeps them, or all such would be equal."""
    words = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", words).split() or words.split())


def action(turn: str) -> tuple[str, str] | None:
    """A turn's first action: `search` or `answer`, and what is between its tags; None where there is none."""
    first = [(*block, name) for name in ("search", "answer") for block in islice(_blocks(turn, name), 1)]
    if not first:
        return None
    _, _, content, name = min(first)
    return name, content.strip()


def find_given(turns: Sequence[str]) -> str | None:
    """The last answer in what the model wrote; None where there is none.

    Args:
        turns: each turn's text. An answer is in one of them: what was inserted between two of them ends it.
    """
    answers = [block[2] for turn in turns for block in _blocks(_without_information(turn), "answer")]
    return answers[-1].strip() if answers else None


def information(text: str) -> list[str]:
    """All that is between information tags."""
    return [content for _, _, content in _blocks(text, "information")]


def _blocks(text: str, name: str) -> Iterator[tuple[int, int, str]]:
    """Return where each pair of tags begins and ends, and what is between: as `<name>(.*?)</name>` finds them.

    That expression looks for an end behind every opening tag, and some models write nothing but opening tags.
    """
    opening, closing = f"<{name}>", f"</{name}>"
    end = 0
    while (start := text.find(opening, end)) >= 0 and (stop := text.find(closing, start)) >= 0:
        end = stop + len(closing)
        yield start, end, text[start + len(opening) : stop]


def _without_information(text: str) -> str:
    kept, place = [], 0
    for start, end, _ in _blocks(text, "information"):
        kept.append(text[place:start])
        place = end
    return "".join([*kept, text[place:]])


def exact_match(answer: str | None, right: Sequence[str]) -> float:
    """1 where the answer equals one of the right ones; what nothing is left of equals nothing."""
    said = normalize(answer or "")
    return float(bool(said) and said in {normalize(each) for each in right})


def f1(answer: str | None, right: Sequence[str]) -> float:
    """The greatest F1 of an answer's words against those of a right one."""
    if answer is None:
        return 0.0
    words = normalize(answer).split()
    return max((_f1(words, normalize(each).split()) for each in right), default=0.0)


def _f1(words: list[str], right: list[str]) -> float:
    common = (Counter(words) & Counter(right)).total()
    return 2 * common / (len(words) + len(right)) if common else 0.0


def well_formed(response: str) -> bool:
    """Return whether a response is rounds of thinking, searching and information, then thinking and an answer."""
    return _FORMAT.fullmatch(response) is not None


def with_format(correct: float, response: str, score: float = FORMAT_SCORE) -> float:
    """The format-aware reward: in the right format a wrong answer gets `score`; in a wrong one a right one loses it."""
    formed = well_formed(response)
    return (1.0 if formed else 1.0 - score) if correct else (score if formed else 0.0)


def contains(text: str, right: Sequence[str]) -> bool:
    """Return whether a right answer is in a text, both normalised; one of which nothing is left is in none."""
    whole = normalize(text)
    return any(each and each in whole for each in map(normalize, right))


def reasoning(response: str) -> str:
    """All that is between think tags."""
    return "\n".join(content for _, _, content in _blocks(_without_information(response), "think"))


def measure_copied(text: str, source: str, run: int = 8) -> float:
    """The share of a text's runs of so many words that are in the source as well; 0 for a shorter text."""
    words, place = text.split(), source.split()
    known = {tuple(place[at : at + run]) for at in range(len(place) - run + 1)}
    runs = [tuple(words[at : at + run]) for at in range(len(words) - run + 1)]
    return sum(each in known for each in runs) / len(runs) if runs else 0.0
