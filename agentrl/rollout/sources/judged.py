"""Rows that somebody has judged, as sessions whose score is learned: pairs, scores, labels, and labelled steps.

Rows with the same first message lie in one group, so what they share is computed once. Only the tokens at which a score
is read are trainable: the last one of a conversation, or of each step (`steps`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal, Protocol

from agentrl.config.data import DataConfig
from agentrl.errors import ConfigError
from agentrl.rollout.sources.columns import ColumnChoice, choose_columns, read_example
from agentrl.rollout.sources.files import Placed, read_rows, read_splits
from agentrl.rollout.sources.messages import Example, MessageReader
from agentrl.rollout.sources.pairs import choose_compared, read_compared
from agentrl.rollout.sources.trees import ALL, TreeCounts, TreeWriter, gather, prefix_key
from agentrl.types import Session, Status, Task

PAIR, MARGIN = "pair", "margin"
"""Keys of `Session.info`: the number of the pair that a session is a side of, and by how much the better one wins."""
JUDGEMENTS: Mapping[str, tuple[str, ...]] = {"score": ("score", "reward", "rating"), "label": ("label", "class")}
"""The names of the columns with scores and with labels."""
SAME = "the same on both sides"


class JudgedRow(Placed, Protocol):
    """A row with a judgement."""

    @property
    def shown(self) -> Example:
        """The conversation by which it is grouped with others, and which is shown."""

    def content(self) -> Any:
        """The row as JSON; rows that differ in it are different ones."""

    def write(self, number: int, writer: TreeWriter, counts: TreeCounts) -> list[Session]:
        """Its sessions; none where it is left out, which is counted."""


ReadRow = Callable[[Mapping[str, Any], str], Sequence[JudgedRow]]
"""Reads a row of a file, with its place in words: one judged row, or several."""


@dataclass(frozen=True, slots=True)
class PairRow:
    """A better and a worse conversation, and by how much the better one is to win."""

    chosen: Example
    rejected: Example
    margin: float = 0.0

    @property
    def place(self) -> str:
        return self.chosen.place

    @property
    def shown(self) -> Example:
        """The better one."""
        return self.chosen

    def content(self) -> Any:
        return [_content(self.chosen), _content(self.rejected), self.margin]

    def write(self, number: int, writer: TreeWriter, counts: TreeCounts) -> list[Session]:
        """A session of each side; none where one is left out, or both are the same."""
        found = [_write(example, writer, counts) for example in (self.chosen, self.rejected)]
        if not all(session.nodes for session in found):
            return []
        ids = [[token for node in session.nodes for token in node.token_ids] for session in found]
        if ids[0] == ids[1]:
            counts.note(SAME, self.chosen)
            return []
        for session, reward in zip(found, (1.0, 0.0), strict=True):
            session.info = {PAIR: number} | ({MARGIN: self.margin} if self.margin else {})
            session.reward, session.rewards = reward, {"preferred": reward}
        return found


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A conversation with its score, or the number of its class."""

    example: Example
    value: float
    name: str

    @property
    def place(self) -> str:
        return self.example.place

    @property
    def shown(self) -> Example:
        return self.example

    def content(self) -> Any:
        return [_content(self.example), self.value]

    def write(self, number: int, writer: TreeWriter, counts: TreeCounts) -> list[Session]:
        session = _write(self.example, writer, counts)
        session.reward, session.rewards = self.value, {self.name: self.value}
        return [session] if session.nodes else []


def mark_ends(session: Session) -> None:
    """Make the last token of each stored path the only one that is trained."""
    ends = {path[-1].id for path in session.stored_paths()}
    for node in session.nodes:
        last = len(node.token_ids) - 1
        node.trainable = [node.id in ends and place == last for place in range(len(node.token_ids))]


def _write(example: Example, writer: TreeWriter, counts: TreeCounts) -> Session:
    session = Session("", Task(id=example.place), status=Status.COMPLETED)
    writer.write(session, [example], counts)
    mark_ends(session)
    return session


def _content(example: Example) -> Any:
    messages = [message.model_dump(exclude_none=True) for message in example.messages]
    return [messages, example.tools, example.plain]


@dataclass
class JudgedRows:
    """Judged rows of files, in groups of the same first message; see `rollout.sources.reading.SessionData`.

    Attributes:
        config: the settings.
        what: what is read, in words.
        notes: lines that are told.
        groups: of each split, the rows.
        tasks: of each split, one for each group that has sessions; once they were written.
        counts: of each split, what became of conversations.
        writer: writes sessions; there is one once `prepare` was called.
    """

    config: DataConfig
    what: str
    notes: list[str] = field(default_factory=list)
    groups: dict[str, list[list[JudgedRow]]] = field(default_factory=dict)
    tasks: dict[str, list[Task]] = field(default_factory=dict)
    counts: dict[str, TreeCounts] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    writer: TreeWriter = field(init=False, repr=False, compare=False)
    _by_task: dict[str, list[JudgedRow]] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Add a line that is told, once."""
        if text not in self.notes:
            self.notes.append(text)

    def messages(self) -> Iterator[Example]:
        """A conversation of each row, such as a tokenizer is made from."""
        return (row.shown for groups in self.groups.values() for group in groups for row in group)

    def prepare(self, writer: TreeWriter) -> None:
        """Write each group once, to count its tokens and to leave out those without anything to learn.

        A conversation that is too long has no end whose score could be read, so it is left out and not cut.

        Raises:
            ConfigError: a split has nothing to learn from.
        """
        overlong: Literal["skip", "refuse"] = "refuse" if writer.config.overlong == "refuse" else "skip"
        config = writer.config.model_copy(update={"train_on": (ALL,), "overlong": overlong})
        self.writer = replace(writer, config=config)
        for split, groups in self.groups.items():
            counts = self.counts[split] = TreeCounts()
            tasks = self.tasks[split] = []
            for rows in groups:
                kept = [row for row in rows if row.write(0, self.writer, counts)]
                self.rows[split] += len(kept)
                if kept:
                    task = _task(kept)
                    tasks.append(task)
                    self._by_task[f"{split}/{task.id}"] = kept
            if not tasks:
                raise ConfigError(
                    f"data={self.config.name}: nothing for {split!r} can be learned from: "
                    f"{'; '.join(counts.fates()) or 'there is no row'}"
                )

    def sessions(self, split: str, task: Task) -> list[Session]:
        """The sessions of a group."""
        found = []
        for number, row in enumerate(self._by_task[f"{split}/{task.id}"]):
            for session in row.write(number, self.writer, TreeCounts()):
                session.task = task
                found.append(session)
        return found

    def lines(self) -> Iterator[str]:
        """Describe what was read, in lines: a row, notes, and what is left out."""
        first = next(iter(self.messages()))
        yield f"data: {self.what}; the first: {first.place}"
        for message in first.messages:
            text = " ".join(message.text.split())
            yield f"data:    {message.role}: {text[:120]}{'…' if len(text) > 120 else ''}"
        yield from (f"data: {note}" for note in self.notes)
        for split, counts in self.counts.items():
            yield (
                f"data: {split}: {self.rows[split]:,} rows with {len(self.tasks[split]):,} first messages, "
                f"{counts.tokens:,} tokens as rows"
            )
            yield from (f"warning: data: {split}: {fate}" for fate in counts.fates())


def _task(rows: Sequence[JudgedRow]) -> Task:
    text = json.dumps([row.content() for row in rows], sort_keys=True).encode()
    content = hashlib.blake2b(text, digest_size=8).hexdigest()
    return Task(id=rows[0].place, data={"rows": len(rows), "content": content})


def read_judged(config: DataConfig, read: ReadRow, found: JudgedRows) -> JudgedRows:
    """Read judged rows of a data set into `found`, divided as conversations are (`files.read_splits`).

    Raises:
        ConfigError: there is none, or a row can't be read.
    """

    def groups(path: str, split: str | None) -> list[list[JudgedRow]]:
        rows = (row for place, given in read_rows(config, path, split) for row in read(given, place))
        return gather(rows, lambda row: prefix_key(row.shown))

    found.groups = read_splits(config, groups, lambda rows: prefix_key(rows[0].shown), found.notes)
    return found


def read_pairs(config: DataConfig) -> JudgedRows:
    """Read rows with a better and a worse conversation, and a `margin` where there is one.

    Of several replies with scores each two of different scores are a pair.
    """
    reader = MessageReader()
    found = JudgedRows(config, "pairs of a chosen and a rejected conversation")

    own = config.model_copy(update={"columns": {k: v for k, v in config.columns.items() if k != MARGIN}})
    choices: dict[frozenset[str], ColumnChoice] = {}

    def read(row: Mapping[str, Any], place: str) -> list[PairRow]:
        kind = frozenset(name for name, value in row.items() if value is not None)
        if (columns := choices.get(kind)) is None:
            columns = choices[kind] = choose_compared(row, own, place, "pairs")
        replies = [replace(each, trained=(), spans=()) for each in read_compared(row, columns, own, place, reader)]
        margin = _number(row[MARGIN], MARGIN, config, place) if row.get(MARGIN) is not None else 0.0
        found.note(f"{columns}" + (f", {MARGIN} = {MARGIN!r}" if margin else ""))
        ranked = sorted(replies, key=lambda each: -(each.reward or 0.0))
        pairs = combinations(ranked, 2)
        return [PairRow(one, other, margin) for one, other in pairs if one.reward != other.reward]

    return read_judged(config, read, found)


def read_scored(config: DataConfig, kind: Literal["score", "label"], classes: Sequence[str]) -> JudgedRows:
    """Read conversations with a score, or with a label: the name of a class, its number, or true and false.

    Raises:
        ConfigError: a row has none, or a label is none of the classes.
    """
    reader = MessageReader()
    own = config.model_copy(update={"columns": {k: v for k, v in config.columns.items() if k not in JUDGEMENTS}})
    found = JudgedRows(config, f"conversations with a {kind}")

    def read(row: Mapping[str, Any], place: str) -> list[ScoredRow]:
        names = [name for name in (kind, *JUDGEMENTS[kind]) if row.get(name) is not None]
        if not names:
            raise ConfigError(
                f"data={config.name}: {place} has no {kind} (its columns: {', '.join(row)}): "
                f"data.columns.{kind}=COLUMN names it"
            )
        value, rest = row[names[0]], {name: each for name, each in row.items() if name not in names}
        found.note(f"{kind} = {names[0]!r}" + (f", of {', '.join(classes)}" if classes else ""))
        example = read_example(rest, choose_columns(rest, own, place), own, place, reader)
        if kind == "score":
            return [ScoredRow(replace(example, trained=(), spans=()), _number(value, kind, config, place), kind)]
        number = class_of(value, classes, f"data={config.name}: {place}")
        return [ScoredRow(replace(example, trained=(), spans=()), float(number), kind)]

    return read_judged(config, read, found)


def class_of(value: Any, classes: Sequence[str], where: str) -> int:
    """The number of the class that a label names; false and true are the first and the last of them.

    A number is a class's place, from 0, unless classes are called by numbers: then it is a name, in JSON as in a table.

    Raises:
        ConfigError: it is none of them.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, bool) and str(value) in classes:
        return classes.index(str(value))
    if isinstance(value, str):  # a table's
        words = value.strip().lower()
        value = words == "true" if words in ("true", "false") else int(words) if words.isdecimal() else value
    if isinstance(value, bool):
        return (len(classes) - 1) * value
    if isinstance(value, int) and value in range(len(classes)) and not any(map(str.isdecimal, classes)):
        return value
    raise ConfigError(
        f"{where}: the label {value!r} is none of {', '.join(classes)} (algo.classes), nor the number of one from 0"
    )


def _number(value: Any, name: str, config: DataConfig, place: str) -> float:
    """A number, or one in words, as a table has it."""
    try:
        found = math.nan if isinstance(value, bool) or not isinstance(value, str | int | float) else float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ConfigError(f"data={config.name}: {place}: {name} is {value!r}, no number")
    return found
