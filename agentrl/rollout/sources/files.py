"""Conversations of a data set's files, as the tasks and sessions of a stream of groups."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from agentrl.config.data import DataConfig
from agentrl.envs.data.dataset import Dataset
from agentrl.envs.data.splits import divide
from agentrl.errors import ConfigError
from agentrl.rollout.sources.columns import ColumnChoice, choose_columns, read_example
from agentrl.rollout.sources.messages import Example, MessageReader
from agentrl.rollout.sources.pairs import Compared, choose_compared, read_compared
from agentrl.rollout.sources.trees import UNPAIRED, TreeCounts, TreeWriter, gather, prefix_key
from agentrl.types import Session, Status, Task

SHOWN = 120
"""Characters of each message of the row that is shown."""
SETTINGS = {
    "or say eval.split=train": "or name data.held_out=FILE",
    "env.path = ": "data=",
    "env.eval_path": "data.held_out",
    "env.": "data.",
}
"""Settings of an environment's data set by those of `data`."""
PREFERRED = "preferred"
"""The name of the reward of a conversation that is compared with others."""
SPLITS = ("train", "eval")
T = TypeVar("T")


class Placed(Protocol):
    """A row that was read.

    Attributes:
        place: where it stands, in words.
    """

    @property
    def place(self) -> str:
        """The row's position in the data, for messages."""


Row = TypeVar("Row", bound=Placed)


@dataclass
class Conversations:
    """The conversations of files.

    Attributes:
        config: the settings.
        compared: how conversations are compared; None: they are imitated.
        examples: of each split, by tree.
        columns: what columns are taken for, with how many rows.
        unread: columns and fields that are not read.
        tasks: of each split, one for each tree with trained tokens; once they were `weigh`ed.
        writer: writes sessions; there is one once `prepare` was called.
        counts: of each split, what became of conversations.
    """

    config: DataConfig
    compared: Compared | None = None
    examples: dict[str, list[list[Example]]] = field(default_factory=dict)
    columns: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)
    tasks: dict[str, list[Task]] = field(default_factory=dict)
    counts: dict[str, TreeCounts] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    writer: TreeWriter = field(init=False, repr=False, compare=False)
    _trees: dict[str, list[Example]] = field(default_factory=dict)
    _reader: MessageReader = field(default_factory=MessageReader)
    _choices: dict[frozenset[str], ColumnChoice] = field(default_factory=dict)

    def messages(self) -> Iterator[Example]:
        """All conversations, such as a tokenizer is made from."""
        for trees in self.examples.values():
            for tree in trees:
                yield from tree

    def prepare(self, writer: TreeWriter) -> None:
        """Write each tree once, to count its tokens and to leave out those without anything to train.

        Raises:
            ConfigError: a split has none with trained tokens.
        """
        self.writer = writer
        for split, trees in self.examples.items():
            counts = self.counts[split] = TreeCounts()
            tasks = self.tasks[split] = []
            for examples in trees:
                session = Session("counted", Task(id="counted"))
                examples = self._write(session, examples, writer, counts)
                if session.nodes and examples:
                    task = _task(examples)
                    tasks.append(task)
                    self._trees[f"{split}/{task.id}"] = examples
            if not tasks:
                fates = "; ".join(counts.fates()) or "there is none"
                raise ConfigError(f"data={self.config.name}: no conversation for {split!r} has trained tokens: {fates}")

    def _write(
        self, session: Session, examples: list[Example], writer: TreeWriter, counts: TreeCounts
    ) -> list[Example]:
        """The conversations of a tree that are trained on, once they are written; of pairs all or none."""
        if self.compared is None:
            writer.write(session, examples, counts)
            return examples
        kept = list[Example]()
        for example in examples:
            before = counts.paths
            writer.write(session, [example], counts)
            kept += [example] if counts.paths > before else []
        rewards = {example.reward for example in kept}
        whole = len(examples) == 1 or len(rewards) > 1
        if kept and not (whole if self.compared == "labels" else len(rewards) > 1):
            counts.note(UNPAIRED, examples[0])
            return []
        return kept

    def sessions(self, split: str, task: Task) -> list[Session]:
        """The sessions of a task.

        They are one, a tree of the conversations that share its prefix, or one for each that is compared, with its
        reward.
        """
        examples = self._trees[f"{split}/{task.id}"]
        if self.compared is None:
            session = Session("", task, status=Status.COMPLETED)
            self.writer.write(session, examples)
            return [session]
        found = []
        for example in examples:
            session = Session("", task, status=Status.COMPLETED, reward=example.reward)
            session.rewards = {PREFERRED: example.reward or 0.0}
            self.writer.write(session, [example])
            found.append(session)
        return found

    def lines(self) -> Iterator[str]:
        """Describe what was read, in lines: the columns, a row, and what is left out or cut."""
        for said, number in self.columns.items():
            yield f"data: {said}" + (f", in {number:,} rows" if len(self.columns) > 1 else "")
        if self.unread:
            yield f"data: not read: {', '.join(name or 'a column without a name' for name in sorted(self.unread))}"
        first = next(self.messages())
        for number, message in enumerate(first.messages):
            calls = ", ".join(f"{c.function.name}({c.function.arguments})" for c in message.tool_calls or ())
            text = " ".join(f"{message.text} {calls}".split())
            at = first.place if not number else ""
            yield f"data: {at or '  '} {message.role}: {text[:SHOWN]}{'…' if len(text) > SHOWN else ''}"
        yield from (f"data: {note}" for note in self.notes)
        for split, counts in self.counts.items():
            shared = counts.paths - counts.tokens
            saved = f", {shared:,} tokens less than as rows" if shared else ""
            yield (
                f"data: {split}: {counts.total:,} conversations in {len(self.tasks[split]):,} trees, {counts.tokens:,} "
                f"tokens{saved}, {counts.trained:,} of them trained"
            )
            yield from (f"warning: data: {split}: {fate}" for fate in counts.fates())

    def read(self) -> None:
        """Read the data set."""
        self.examples = read_splits(self.config, self._read_trees, prefix_text, self.notes)
        self.unread.update(f"{name} (of messages)" for name in self._reader.unread)

    def _read_trees(self, path: str, split: str | None) -> list[list[Example]]:
        """The conversations of each tree: those that share a prefix, or those that a row compares."""
        rows = [self._read_row(place, row) for place, row in read_rows(self.config, path, split)]
        several = [row for row in rows if self.compared is not None and len(row) > 1]
        return several + gather(
            (example for row in rows if self.compared is None or len(row) == 1 for example in row), prefix_key
        )

    def _read_row(self, place: str, row: Mapping[str, Any]) -> list[Example]:
        config, compared = self.config, self.compared
        kind = frozenset(name for name, value in row.items() if value is not None)
        if (chosen := self._choices.get(kind)) is None:
            if compared is None:
                chosen = choose_columns(row, config, place)
            else:
                chosen = choose_compared(row, config, place, compared)
            self._choices[kind] = chosen
        self.columns[str(chosen)] += 1
        taken = {config.columns.get(theirs, theirs).partition(".")[0] for theirs in chosen.taken.values()}
        self.unread.update(kind - taken - config.columns.keys())
        if compared is None:
            return [read_example(row, chosen, config, place, self._reader)]
        return read_compared(row, chosen, config, place, self._reader)


def read_conversations(config: DataConfig, compared: Compared | None = None) -> Conversations:
    """Read the conversations of a data set.

    Raises:
        ConfigError: there is none, a row can't be read, or it can be read in several ways.
        EnvError: the hub can't be reached.
    """
    found = Conversations(config, compared)
    found.read()
    return found


def read_splits(
    config: DataConfig,
    read: Callable[[str, str | None], list[list[Row]]],
    content: Callable[[list[Row]], str],
    notes: list[str],
) -> dict[str, list[list[Row]]]:
    """Read the groups of rows of both splits: of a file each, of files that are named for them, or divided by content.

    Args:
        config: the settings.
        read: the groups of a path's split, or of all that it has (None).
        content: decides which split a group is of, where both are in the same files.
        notes: gets lines on how they were divided.
    """
    if config.held_out is not None:
        return {"train": read(config.name, None), "eval": read(config.held_out, None)}
    if not as_setting(_dataset(config, config.name).shared):
        return {split: read(config.name, split) for split in SPLITS}
    by_place = {group[0].place: group for group in read(config.name, None)}
    tasks, found = [Task(id=place) for place in by_place], {}
    for split in SPLITS:
        chosen = as_setting(
            partial(divide, tasks, split, lambda task: content(by_place[task.id]), f"data={config.name}")
        )
        notes += [note for note in chosen.notes if note not in notes]
        found[split] = [by_place[task.id] for task in chosen]
    return found


def read_rows(config: DataConfig, path: str, split: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a split, or of all files (None), each with its place in words."""
    dataset = _dataset(config, path)
    rows = dataset.every_row() if split is None else dataset.rows(split)
    while (each := as_setting(lambda: next(rows, None))) is not None:
        yield each


def prefix_text(examples: Sequence[Example]) -> str:
    """The text by which a tree is held out or not: what its conversations share, else all of it."""
    key = prefix_key(examples[0])
    return key if len(examples[0].messages) > 1 else examples[0].messages[0].text


def _dataset(config: DataConfig, path: str) -> Dataset:
    return Dataset(path, columns=config.columns, where=config.where, config=config.config)


def as_setting(read: Callable[[], T]) -> T:
    """Read of a data set; its errors name the settings of `data`."""
    try:
        return read()
    except ConfigError as error:
        text = str(error)
        for old, new in SETTINGS.items():
            text = text.replace(old, new)
        raise ConfigError(text) from None


def _task(examples: Sequence[Example]) -> Task:
    digest = hashlib.blake2b(digest_size=8)
    for each in examples:
        messages = [message.model_dump(exclude_none=True) for message in each.messages]
        content = [messages, each.tools, each.trained, each.plain]
        content += [] if each.reward is None else [each.reward]
        content += [each.spans] if each.spans else []
        digest.update(json.dumps(content, sort_keys=True).encode())
    data: dict[str, Any] = {"rows": len(examples), "content": digest.hexdigest()}
    return Task(id=examples[0].place, data=data)
