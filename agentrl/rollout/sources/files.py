"""Conversations of a data set's files, as the tasks and sessions of a stream of groups."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

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
T = TypeVar("T")


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
                fates = "; ".join(_fates(counts)) or "there is none"
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
            yield from (f"warning: data: {split}: {fate}" for fate in _fates(counts))


def read_conversations(config: DataConfig, compared: Compared | None = None) -> Conversations:
    """Read the conversations of a data set.

    Raises:
        ConfigError: there is none, a row can't be read, or it can be read in several ways.
        EnvError: the hub can't be reached.
    """
    found = Conversations(config, compared)
    reader = MessageReader()
    choices: dict[frozenset[str], ColumnChoice] = {}
    if config.held_out is not None:
        own = _trees(_dataset(config, config.name), None, config, reader, choices, found)
        other = _trees(_dataset(config, config.held_out), None, config, reader, choices, found)
        found.examples = {"train": list(own), "eval": list(other)}
    elif (dataset := _dataset(config, config.name)) and as_setting(dataset.shared):
        trees = list(_trees(dataset, None, config, reader, choices, found))
        by_id = {task.id: tree for task, tree in ((_task(tree), tree) for tree in trees)}
        for split in ("train", "eval"):
            tasks = [Task(id=name) for name in by_id]
            chosen = as_setting(
                partial(divide, tasks, split, lambda task: prefix_text(by_id[task.id]), f"data={config.name}")
            )
            found.notes += [note for note in chosen.notes if note not in found.notes]
            found.examples[split] = [by_id[task.id] for task in chosen]
    else:
        for split in ("train", "eval"):
            found.examples[split] = list(_trees(dataset, split, config, reader, choices, found))
    found.unread.update(f"{name} (of messages)" for name in reader.unread)
    return found


def prefix_text(examples: Sequence[Example]) -> str:
    """The text by which a tree is held out or not: what its conversations share, else all of it."""
    key = prefix_key(examples[0])
    return key if len(examples[0].messages) > 1 else examples[0].messages[0].text


def _trees(
    dataset: Dataset,
    split: str | None,
    config: DataConfig,
    reader: MessageReader,
    choices: dict[frozenset[str], ColumnChoice],
    found: Conversations,
) -> list[list[Example]]:
    """The conversations of each tree: those that share a prefix, or those that a row compares."""
    rows = _rows(dataset, split, config, reader, choices, found)
    if found.compared is None:
        return gather(example for row in rows for example in row)
    compared: list[list[Example]] = []
    single: list[Example] = []
    for row in rows:
        if len(row) > 1:
            compared.append(row)
        else:
            single += row
    return compared + gather(single)


def _rows(
    dataset: Dataset,
    split: str | None,
    config: DataConfig,
    reader: MessageReader,
    choices: dict[frozenset[str], ColumnChoice],
    found: Conversations,
) -> Iterator[list[Example]]:
    rows = dataset.every_row() if split is None else dataset.rows(split)
    while (each := as_setting(lambda: next(rows, None))) is not None:
        place, row = each
        kind = frozenset(name for name, value in row.items() if value is not None)
        if (chosen := choices.get(kind)) is None:
            if found.compared is None:
                chosen = choose_columns(row, config, place)
            else:
                chosen = choose_compared(row, config, place, found.compared)
            choices[kind] = chosen
        found.columns[str(chosen)] += 1
        taken = {config.columns.get(theirs, theirs).partition(".")[0] for theirs in chosen.taken.values()}
        found.unread.update(kind - taken - config.columns.keys())
        if found.compared is None:
            yield [read_example(row, chosen, config, place, reader)]
        else:
            yield read_compared(row, chosen, config, place, reader)


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


def _fates(counts: TreeCounts) -> Iterator[str]:
    words: Mapping[str, str] = {"cut": "cut off at the limit"}
    for fate, number in counts.rows.items():
        said = words.get(fate, f"{fate}: {'left out' if fate != 'odd' else 'not trained there'}")
        yield f"{number:,} of {counts.total:,} conversations {said}; the first: {counts.first[fate]}"
