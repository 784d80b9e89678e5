"""SQuAD's paragraphs as a small corpus with questions, of one hop and composed ones of two.

A question of two hops is made of two of SQuAD's as MuSiQue's are (Trivedi et al., arXiv:2108.00573): where the answer
of one is named in another, about another paragraph, the name is replaced by a letter, and the first question says what
the letter stands for. Its row has the searches that lead to the answer, for demonstrations (`steps`).

A few hundred questions teach a small model these questions' answers rather than how to find an answer. So there can be
questions for a gap as well, thousands of them: which name, number or word stands where a sentence of a passage says X.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.retrieval import open_index

EVAL_SHARE = 5
"""Of SQuAD's paragraphs one in this many, with all its questions, is held out."""
GAPS = "eval_gaps.jsonl"
"""The file of held-out passages' questions for a gap: `eval.jsonl` has SQuAD's alone."""
LONGEST = 8
"""Words of an answer that SQuAD's questions may have here: longer ones are no match for exact match."""
NAME = 4
"""Characters, at least, of an answer that joins two questions."""
GAP_WORDS = 12
"""Words of a sentence, at most, on each side of its gap."""
_NAME = r"[A-Z][\w'-]*(?: (?:of |the )*[A-Z][\w'-]*)*"
_GAP = re.compile(rf"(?<=\w )(?:{_NAME}|\d[\d,.]*\d|\d|[a-z]{{7,}})(?=[ ,;.)])")
"""A name, a number or a long word, not at a sentence's beginning, where any word has a capital."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")

Row = dict[str, Any]


def prepare_squad(
    squad: Path, folder: Path, words: int | None = None, *, hops: bool = False, gaps: int = 0
) -> tuple[int, int, int]:
    """Write corpus and questions of a file in SQuAD 2.0's format.

    Args:
        squad: the file.
        folder: where `corpus.jsonl`, `train.jsonl`, `eval.jsonl` and perhaps `eval_gaps.jsonl` go.
        words: paragraphs are split between sentences into passages of at most so many; None leaves them whole.
        hops: add questions of two hops.
        gaps: questions for a gap of each passage, at most; `train.jsonl` has those of training passages.

    Returns:
        How many passages, training questions and held-out questions there are.

    Raises:
        ConfigError: the file can't be read, or is not in that format.
    """
    passages: list[Row] = []
    missing: dict[bool, list[Row]] = {False: [], True: []}
    paragraphs: dict[bool, list[list[Row]]] = {False: [], True: []}
    try:
        for article in json.loads(squad.read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                title, text = article["title"].replace("_", " "), " ".join(paragraph["context"].split())
                held_out = _digest(f'"{title}"\n{text}') % EVAL_SHARE == 0
                for part in sentence_parts(text, words):
                    missing[held_out] += islice(with_gaps(part, f"{article['title']}-{len(passages)}"), gaps)
                    passages.append({"id": str(len(passages)), "contents": f'"{title}"\n{part}'})
                paragraphs[held_out].append(_questions(paragraph, article["title"]))
    except OSError as error:
        raise ConfigError(f"can't read {str(squad)!r}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{str(squad)!r} is not a file in SQuAD 2.0's format: {error!r}") from None
    train, held = ([*chain(*each), *(two_hops(each) if hops else ())] for each in paragraphs.values())
    folder.mkdir(parents=True, exist_ok=True)
    train += missing[False]
    for name, rows in (("corpus.jsonl", passages), ("train.jsonl", train), ("eval.jsonl", held)):
        write_rows(folder / name, rows)
    (folder / GAPS).unlink(missing_ok=True)
    if gaps:
        write_rows(folder / GAPS, missing[True])
    return len(passages), len(train), len(held)


def with_gaps(passage: str, name: str) -> Iterator[Row]:
    """Questions for the names and numbers of a passage that it has once, in an order that depends on the passage alone.

    Args:
        passage: the text.
        name: begins the questions' ids.
    """
    sentences = _SENTENCE.split(passage)
    found = [(sentence, match) for sentence in sentences for match in _GAP.finditer(sentence)]
    once = [(sentence, match) for sentence, match in found if len(_whole(match[0]).findall(passage)) == 1]
    for sentence, match in sorted(once, key=lambda each: _digest(f"{each[0]}{each[1].start()}")):
        before, after = sentence[: match.start()].split()[-GAP_WORDS:], sentence[match.end() :].split()[:GAP_WORDS]
        closing = "" if match.end() == len(sentence) or sentence[match.end()] == " " else after.pop(0)
        text = " ".join([*before, f"X{closing}", *after]).rstrip(".")
        question = {"question": f"What is X: {text}?", "golden_answers": [match[0]]}
        yield {"id": f"{name}-{sentences.index(sentence)}-{match.start()}", **question, "data_source": "gaps"}


def two_hops(paragraphs: Sequence[Sequence[Row]]) -> Iterator[Row]:
    """Questions that need the answer of another one, at most one for each question.

    Args:
        paragraphs: the questions of each paragraph.
    """
    for place, own in enumerate(paragraphs):
        others = [row for number, rows in enumerate(paragraphs) if number != place for row in rows]
        for second in own:
            first = next((row for row in others if _leads_to(row, second)), None)
            if first is not None:
                yield _joined(first, second)


def _leads_to(first: Row, second: Row) -> bool:
    """Return whether a question's answer is a name in another one, and it does not give away the other's."""
    name: str = first["golden_answers"][0]
    said = any(answer in first["question"] or answer == name for answer in second["golden_answers"])
    proper = len(name) >= NAME and not name[0].islower()
    return proper and not said and _whole(name).search(second["question"]) is not None


def _joined(first: Row, second: Row) -> Row:
    """The question that needs both."""
    asked = _whole(first["golden_answers"][0]).sub("X", second["question"])
    return {
        **second,
        "id": f"{first['id']}-{second['id']}",
        "question": f"X is the answer to: {first['question']} {asked}",
        "hops": 2,
        "steps": [[row["question"], row["golden_answers"][0]] for row in (first, second)],
    }


def _whole(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")


def choose_demonstrations(folder: Path, retriever: str = "bm25") -> int:
    """Write `demo.jsonl`: questions of training paragraphs whose answers are in the first passages that searches find.

    Demonstrations of the others would answer what no passage says, and so teach a model to invent.

    Args:
        folder: a data folder with `train.jsonl`, as `prepare_squad` writes it.
        retriever: the name of the index in it that is searched.

    Returns:
        How many there are; where there is none, no file is written, and all training questions are demonstrated.
    """
    with (folder / "train.jsonl").open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    index, chosen = open_index(folder / retriever), []
    for row in rows:
        steps = row.get("steps") or [[row["question"], row["golden_answers"][0]]]
        found = index.search([query for query, _ in steps], 1)
        if all(hits and answer in hits[0].body for (_, answer), hits in zip(steps, found, strict=True)):
            chosen.append(row)
    (folder / "demo.jsonl").unlink(missing_ok=True)
    if chosen:
        write_rows(folder / "demo.jsonl", chosen)
    return len(chosen)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write a JSONL file."""
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")


def sentence_parts(text: str, words: int | None) -> list[str]:
    """A text in parts of whole sentences, each of at most `words` words unless one sentence has more."""
    if words is None:
        return [text]
    parts: list[list[str]] = []
    for sentence in _SENTENCE.split(text):
        found = sentence.split()
        if parts and len(parts[-1]) + len(found) <= words:
            parts[-1] += found
        else:
            parts.append(found)
    return [" ".join(part) for part in parts]


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _questions(paragraph: Row, title: str) -> list[Row]:
    """A paragraph's questions that have a short answer."""
    found = []
    for row in paragraph["qas"]:
        answers = list(dict.fromkeys(answer["text"] for answer in row["answers"]))
        if answers and len(min(answers, key=len).split()) <= LONGEST:
            found.append(
                {"id": row["id"], "question": row["question"], "golden_answers": answers, "data_source": title}
            )
    return found
