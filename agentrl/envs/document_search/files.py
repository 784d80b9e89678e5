"""The user's own documents: text files, and questions on them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from agentrl.envs.document_search.document import Document, cut
from agentrl.envs.gsm8k import held_out
from agentrl.errors import ConfigError
from agentrl.types import Task

QUESTIONS = "questions.jsonl"
FIELDS = ("document", "question", "answer")


@dataclass(frozen=True)
class Questions:
    """A folder's documents by file name, and its tasks by split."""

    documents: dict[str, Document]
    tasks: dict[str, list[Task]]


@lru_cache(maxsize=8)
def read_questions(folder: Path) -> Questions:
    """Read a folder; a question's line may name its `split`, else one in ten is for `eval`.

    Raises:
        ConfigError: a file is missing, or a line is no question; the message names both.
    """
    path = folder / QUESTIONS
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # a text in JSON may hold other separators of lines
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"env.path = {str(folder)!r}: {path} can't be read: {error}") from None
    documents: dict[str, Document] = {}
    tasks: dict[str, list[Task]] = {"train": [], "eval": []}
    for number, line in enumerate(lines, 1):
        if line.strip():
            row = _row(line, f"{path}, line {number}")
            name = row["document"]
            if name not in documents:
                documents[name] = _document(folder, name, f"{path}, line {number}")
            split = row.get("split") or ("eval" if held_out(row["question"]) else "train")
            if split not in tasks:
                raise ConfigError(f"{path}, line {number}: split is {split!r}; allowed are {', '.join(tasks)}")
            data = {field: row[field] for field in FIELDS}
            tasks[split].append(Task(id=f"question-{number}", data=data))
    return Questions(documents, tasks)


def _row(line: str, where: str) -> dict[str, str]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}") from None
    for field in FIELDS:
        if not isinstance(row, dict) or not isinstance(row.get(field), str) or not row[field].strip():
            raise ConfigError(
                f"{where} needs {field!r}, a text; the fields are {', '.join(FIELDS)}, and split if wanted"
            )
    return dict(row)


def _document(folder: Path, name: str, where: str) -> Document:
    path = (folder / name).resolve()
    if folder.resolve() not in path.parents:
        raise ConfigError(f"{where}: document {name!r} is outside of {folder}")
    try:
        return Document(cut(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: document {name!r} can't be read: {error}") from None
