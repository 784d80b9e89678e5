"""The rule that holds tasks out for `eval`, wherever neither a file, a column nor a setting does.

A row is held out where the hash of its content is under a tenth of the range: so neither the order nor the length of a
file matters, and a file that grows moves no row. Rows whose content is the same but for case, spaces and Unicode forms
are on one side. Of a small file all rows may be on one side by chance; then the one with the smallest hash (or, where
all are held out, the largest) is moved to the other, which is the only row that growth can move back, and is noted.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable, Iterable, Sequence

from agentrl.errors import ConfigError
from agentrl.types import Task

SHARE = 10
"""One row in this many is held out."""
BUILT_IN_SHARE = 4
"""One in this many of the small sets that are part of the package."""
_RANGE = 1 << 64


class TaskList(list[Task]):
    """Tasks of a split, with notes on how they were chosen.

    Attributes:
        notes: sentences, which are shown when a run starts and stored with the data's identity.
    """

    def __init__(self, tasks: Iterable[Task] = (), notes: Sequence[str] = ()) -> None:
        super().__init__(tasks)
        self.notes = tuple(notes)

    def only(self, wanted: Callable[[Task], bool], others: str) -> TaskList:
        """The wanted tasks, with a note on how many `others` were left out."""
        kept = [task for task in self if wanted(task)]
        left_out = len(self) - len(kept)
        return TaskList(kept, (*self.notes, *([f"{left_out:,} {others}: left out"] if left_out else ())))

    def copy(self) -> TaskList:
        """Another list of the same tasks and notes."""
        return TaskList(self, self.notes)


def held_out(content: str) -> bool:
    """Return whether a row of that content belongs to `eval`."""
    return _hash(normalized(content)) < _RANGE // SHARE


def normalized(content: str) -> str:
    """A text without what does not make another one: case, spaces, Unicode forms."""
    return " ".join(unicodedata.normalize("NFKC", content).casefold().split())


def divide(
    tasks: Sequence[Task], split: str, content: Callable[[Task], str], where: str, share: int = SHARE
) -> TaskList:
    """The tasks of a split, in their order, of a set that has no split of its own.

    Args:
        tasks: of the set.
        split: `eval`, or any other for the rest.
        content: what makes a task another one, such as its question.
        where: names the set in messages: "env.path = 'questions.jsonl'".
        share: one row in this many is held out.

    Raises:
        ConfigError: there are none, or they are all the same and `eval` is wanted.
    """
    if not tasks:
        raise ConfigError(f"{where}: there are no tasks")
    contents = [normalized(content(task)) for task in tasks]
    hashes = {text: _hash(text) for text in contents}
    out = {text for text, value in hashes.items() if value < _RANGE // share}
    notes = list(tasks.notes) if isinstance(tasks, TaskList) else []
    if len(hashes) > 1 and len(out) in (0, len(hashes)):
        moved, side, whole = (min, "eval", "none") if not out else (max, "train", "every one")
        text = moved(hashes, key=hashes.__getitem__)
        out ^= {text}
        name = tasks[contents.index(text)].id
        notes.append(f"by its hash {whole} of {where} is held out, so {name!r} was moved to {side!r}")
    elif len(hashes) == 1:
        out = set()
    if split == "eval" and not out:
        raise ConfigError(
            f"{where}: all it holds is the same task ({tasks[0].id!r}), which is in the split 'train': add others, "
            "or say eval.split=train"
        )
    return TaskList(
        (task for task, text in zip(tasks, contents, strict=True) if (text in out) == (split == "eval")), notes
    )


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())
