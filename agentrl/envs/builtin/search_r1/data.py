"""Questions in the published form.

A data folder has `train`, perhaps `eval` (or `test`; without either a tenth is held out), and perhaps `demo` (what
demonstrations are of; else `train`) with the ending `.jsonl` or `.parquet`, of rows with `question` and
`golden_answers`, and perhaps `id`, `data_source`, `hops` and `steps` (a demonstration's searches, each with the answer
that it shall find; by default the question alone).
Search-R1's own files have the first four of them (their `prompt` and `reward_model` say the same again, and are not
read). The folder also has the indexes that `env.retriever` names, `bm25` and `dense`. Any other data set is a file of
the same form (`env.questions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.envs.builtin.search_r1.published import SETS
from agentrl.envs.builtin.search_r1.scoring import normalize
from agentrl.envs.data.rows import read_tasks
from agentrl.envs.data.splits import TaskList, divide, normalized
from agentrl.errors import ConfigError
from agentrl.types import Task

FOLDER = Path("~/.cache/agentrl/search_r1")
FILES = {"train": ("train",), "demo": ("demo", "train"), "eval": ("eval", "test")}
"""By split, the names of its file, the first that is there, without the ending."""


def load(path: Path) -> TaskList:
    """A file's questions.

    Raises:
        ConfigError: a row is no question; the message names it.
        MissingExtra: a Parquet file, and pyarrow is not installed.
    """
    return read_tasks(path, _task, "questions")


def _task(row: Mapping[str, Any], number: int) -> Task | None:
    question, answers = row["question"], row["golden_answers"]
    answers = [answers] if isinstance(answers, str) else answers
    if not isinstance(question, str) or not isinstance(answers, list) or not all(isinstance(a, str) for a in answers):
        raise ValueError("question must be text, golden_answers a list of texts")
    if not (answers := [answer for answer in answers if normalize(answer)]):
        return None
    question, source = question.strip(), str(row.get("data_source") or "")
    data: dict[str, Any] = {
        "question": question if question.endswith("?") else f"{question}?",
        "answers": answers,
        "source": source,
        "hops": int(row.get("hops") or SETS.get(source, ("", 1))[1]),
    }
    if row.get("steps"):
        data["steps"] = [[str(query), str(answer)] for query, answer in row["steps"]]
    return Task(id="-".join(filter(None, (source, str(row.get("id") or number)))), data=data)


def split_tasks(data: Path, split: str, questions: Path | None) -> list[Task]:
    """The questions of a split: `eval` has a file of its own, or the rule of `splits` holds some of `train` out.

    Raises:
        ConfigError: there are none.
        MissingExtra: a Parquet file, and pyarrow is not installed.
    """
    own = questions or _file(data, "eval")
    if own:
        return load(own if split == "eval" else split_file(data, split))
    where = f"env.data = {str(data)!r}"
    divided = divide(load(split_file(data, "train")), "eval" if split == "eval" else "train", _question, where)
    if split != "demo":
        return divided
    trained = {normalized(_question(task)) for task in divided}
    return load(split_file(data, "demo")).only(
        lambda task: normalized(_question(task)) in trained, "held-out questions"
    )


def _question(task: Task) -> str:
    return str(task["question"])


def split_file(data: Path, split: str) -> Path:
    """The file of a split: `data` itself where it is one, except for `eval`; else what the folder has for it.

    Raises:
        ConfigError: there is none; the message names the files that are looked for.
    """
    found = _file(data, split)
    if found is None:
        raise ConfigError(
            f"env.data = {str(data)!r}: there is no {' or '.join(_names(split))}; "
            "`agentrl search-r1 prepare SQUAD.json` writes questions, corpus and index"
        )
    return found


def _file(data: Path, split: str) -> Path | None:
    if data.is_file() and split != "eval":
        return data
    return next((file for name in _names(split) if (file := folder_of(data) / name).is_file()), None)


def _names(split: str) -> list[str]:
    return [f"{stem}.{end}" for stem in FILES[split] for end in ("jsonl", "parquet")]


def folder_of(data: Path) -> Path:
    """The folder of the indexes and the other splits."""
    return data.parent if data.is_file() else data
