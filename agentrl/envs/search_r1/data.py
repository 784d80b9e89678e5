"""Questions in the published form, and how SQuAD becomes a small corpus with questions.

A data folder has `train` and `eval` (or `test`) with the ending `.jsonl` or `.parquet`, of rows with `question` and
`golden_answers`, and perhaps `id`, `data_source` and `hops`. Search-R1's own files have the first four of them (their
`prompt` and `reward_model` say the same again, and are not read). It also has the indexes that `env.retriever` names,
`bm25` and `dense`. Any other data set is a file of the same form (`env.questions`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.envs.rows import read_tasks
from agentrl.envs.search_r1.published import SETS
from agentrl.errors import ConfigError
from agentrl.types import Task

FOLDER = Path("~/.cache/agentrl/search_r1")
FILES = {"train": ("train",), "eval": ("eval", "test")}
"""By split, the names of its file, without the ending."""
EVAL_SHARE = 5
"""Of SQuAD's paragraphs one in this many, with all its questions, is held out."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")
LONGEST = 8
"""Words of an answer that SQuAD's questions may have here: longer ones are no match for exact match."""


def load(path: Path) -> tuple[Task, ...]:
    """A file's questions.

    Raises:
        ConfigError: a row is no question; the message names it.
        MissingExtra: a Parquet file, and pyarrow is not installed.
    """
    return read_tasks(path, _task, "questions")


def _task(row: Mapping[str, Any], number: int) -> Task:
    question, answers = row["question"], row["golden_answers"]
    answers = [answers] if isinstance(answers, str) else answers
    if not isinstance(question, str) or not isinstance(answers, list) or not all(isinstance(a, str) for a in answers):
        raise ValueError("question must be text, golden_answers a list of texts")
    question, source = question.strip(), str(row.get("data_source") or "")
    data: dict[str, Any] = {
        "question": question if question.endswith("?") else f"{question}?",
        "answers": answers,
        "source": source,
        "hops": int(row.get("hops") or SETS.get(source, ("", 1))[1]),
    }
    return Task(id="-".join(filter(None, (source, str(row.get("id") or number)))), data=data)


def split_file(data: Path, split: str) -> Path:
    """The file of a split: `data` itself where it is one and `split` is train, else what the folder has for it.

    Raises:
        ConfigError: there is none; the message names the files that are looked for.
    """
    if data.is_file() and split == "train":
        return data
    folder, names = folder_of(data), [f"{stem}.{end}" for stem in FILES[split] for end in ("jsonl", "parquet")]
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise ConfigError(
            f"env.data = {str(data)!r}: there is no {' or '.join(names)}; `agentrl search-r1 prepare SQUAD.json` "
            "writes questions, corpus and index"
        )
    return found


def folder_of(data: Path) -> Path:
    """Where the indexes and the other splits are."""
    return data.parent if data.is_file() else data


def prepare_squad(squad: Path, folder: Path, words: int | None = None) -> tuple[int, int, int]:
    """Write corpus and questions of a file in SQuAD 2.0's format.

    Args:
        squad: the file.
        folder: where `corpus.jsonl`, `train.jsonl` and `eval.jsonl` go.
        words: paragraphs are split between sentences into passages of at most so many; None leaves them whole.

    Returns:
        How many passages, training questions and held-out questions there are.

    Raises:
        ConfigError: the file is not in that format.
    """
    passages: list[str] = []
    rows: dict[bool, list[str]] = {False: [], True: []}
    try:
        for article in json.loads(squad.read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                title, text = article["title"].replace("_", " "), " ".join(paragraph["context"].split())
                for part in sentence_parts(text, words):
                    row = {"id": str(len(passages)), "contents": f'"{title}"\n{part}'}
                    passages.append(json.dumps(row, ensure_ascii=False))
                held_out = _digest(f'"{title}"\n{text}') % EVAL_SHARE == 0
                rows[held_out] += _questions(paragraph, article["title"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{str(squad)!r} is not a file in SQuAD 2.0's format: {error!r}") from None
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("corpus", passages), ("train", rows[False]), ("eval", rows[True])):
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return len(passages), len(rows[False]), len(rows[True])


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


def _questions(paragraph: dict[str, Any], title: str) -> list[str]:
    found = []
    for row in paragraph["qas"]:
        answers = list(dict.fromkeys(answer["text"] for answer in row["answers"]))
        if answers and len(min(answers, key=len).split()) <= LONGEST:
            line = {"id": row["id"], "question": row["question"], "golden_answers": answers, "data_source": title}
            found.append(json.dumps(line, ensure_ascii=False))
    return found
