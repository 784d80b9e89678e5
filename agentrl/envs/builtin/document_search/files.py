"""The user's own documents: text files, and questions on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from agentrl.common.untrusted import read_json
from agentrl.envs.builtin.data_analysis.env import bare
from agentrl.envs.builtin.document_search.document import Document, cut
from agentrl.envs.data.rows import described
from agentrl.envs.data.splits import TaskList, divide, held_out
from agentrl.errors import ConfigError
from agentrl.types import Task

QUESTIONS = "questions.jsonl"
FIELDS = ("document", "question", "answer")


@dataclass(frozen=True)
class DocumentQuestions:
    """A folder's documents by file name, its tasks whose lines name a split, by it, and the others."""

    documents: dict[str, Document]
    named: dict[str, list[Task]]
    others: list[Task]
    where: str
    note: str = ""

    def tasks(self, split: str) -> TaskList:
        """The tasks of a split; where no line names one, the rule of `splits` holds some out."""
        if not any(self.named.values()):
            return divide(TaskList(self.others, [self.note]), split, lambda task: str(task["question"]), self.where)
        others = [task for task in self.others if held_out(task["question"]) == (split == "eval")]
        return TaskList([*self.named[split], *others], [self.note])


@lru_cache(maxsize=8)
def read_questions(folder: Path) -> DocumentQuestions:
    """Read a folder; a question's line may name its `split`.

    Raises:
        ConfigError: a file is missing, or a line is no question; the message names both.
    """
    path = folder / QUESTIONS
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # a text in JSON may hold other separators of lines
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"env.path = {str(folder)!r}: {path} can't be read: {error}") from None
    documents: dict[str, Document] = {}
    named: dict[str, list[Task]] = {"train": [], "eval": []}
    others: list[Task] = []
    columns = set[str]()
    for number, line in enumerate(lines, 1):
        if line.strip():
            row = _row(line, f"{path}, line {number}")
            name = row["document"]
            columns |= row.keys()
            if name not in documents:
                documents[name] = _document(folder, name, f"{path}, line {number}")
            split = row.get("split")
            if split and split not in named:
                raise ConfigError(f"{path}, line {number}: split is {split!r}; allowed are {', '.join(named)}")
            data = {field: row[field] for field in FIELDS}
            (named[split] if split else others).append(Task(id=f"question-{number}", data=data))
    where, count = f"env.path = {str(folder)!r}", len(others) + sum(map(len, named.values()))
    note = described(where, count, "questions", {}, columns.difference(FIELDS, ["split"]))
    return DocumentQuestions(documents, named, others, where, note)


def _row(line: str, where: str) -> dict[str, str]:
    try:
        row = read_json(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}") from None
    for field in FIELDS:
        if not isinstance(row, dict) or not isinstance(row.get(field), str) or not row[field].strip():
            raise ConfigError(
                f"{where} needs {field!r}, a text; the fields are {', '.join(FIELDS)}, and split if wanted"
            )
    if not bare(row["answer"]):
        raise ConfigError(f"{where}: nothing is left of the answer {row['answer']!r} without the marks around it")
    return dict(row)


def _document(folder: Path, name: str, where: str) -> Document:
    path = (folder / name).resolve()
    if folder.resolve() not in path.parents:
        raise ConfigError(f"{where}: document {name!r} is outside of {folder}")
    try:
        return Document(cut(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: document {name!r} can't be read: {error}") from None
