"""Solutions whose steps are labelled, in the formats that data sets have for them.

| who has it | columns | labels |
|---|---|---|
| TRL | `prompt`, `completions` (the steps), `labels` | one for each step |
| PRM800K | `question.problem`, `label.steps`, each with `completions` that have a `text` and a `rating` | -1, 0, 1 |
| Math-Shepherd | `input`, `label`: the text with a mark behind each step, and with + or - in its place | + and - |
| ProcessBench | `problem`, `steps`, `label` | the first wrong step's number, -1 where all are right |

Each step is a node whose last token is the separator's, where its label is learned. Several completions of one step
(PRM800K) are branches of one tree; the next step follows the one that was chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.config.data import DataConfig
from agentrl.errors import ConfigError
from agentrl.rollout.sources.judged import JudgedRows, class_of, read_judged
from agentrl.rollout.sources.messages import Example, MessageReader
from agentrl.rollout.sources.trees import CUT, LONG, UNTRAINED, TreeCounts, TreeWriter
from agentrl.sessions.renderers.base import RenderedMessage
from agentrl.sessions.tree import tree
from agentrl.types import Message, Session, Status, Task

MARK = "ки"
"""The mark that Math-Shepherd writes behind each step."""


@dataclass(frozen=True, slots=True)
class LabelledStep:
    """A step: its text, the number of its class (None: it has none), and the step before it (-1: the prompt)."""

    text: str
    label: int | None
    parent: int


@dataclass(frozen=True, slots=True)
class StepRow:
    """A problem with labelled steps."""

    prompt: Example
    steps: tuple[LabelledStep, ...]
    separator: str
    plain: bool

    @property
    def place(self) -> str:
        return self.prompt.place

    @property
    def shown(self) -> Example:
        """The problem and the first step."""
        first = Message(role="assistant", content=self.steps[0].text)
        return Example(self.place, (*self.prompt.messages, first), plain=self.plain)

    def content(self) -> Any:
        messages = [message.model_dump(exclude_none=True) for message in self.prompt.messages]
        return [messages, [[step.text, step.label, step.parent] for step in self.steps], self.separator, self.plain]

    def write(self, number: int, writer: TreeWriter, counts: TreeCounts) -> list[Session]:
        """A session with a node for each step; steps beyond the limit are cut off."""
        counts.total += 1
        session = Session("", Task(id=self.place), status=Status.COMPLETED)
        renderer, encode = writer.renderer, writer.renderer.tokenizer.encode
        parent: int | None = None
        if self.plain:
            written = [encode(message.text) for message in self.prompt.messages]
        else:
            written = renderer.render(self.prompt.messages)
        for message, ids in zip(self.prompt.messages, written, strict=True):
            parent = tree.add_rendered(session, parent, RenderedMessage(message, ids)).id
        lengths = {-1: sum(map(len, written))}
        nodes: dict[int, int | None] = {-1: parent}
        opening = [] if self.plain or parent is None else renderer.generation_prompt(session.nodes[parent])
        labelled = 0
        for place, step in enumerate(self.steps):
            ids = [*(opening if step.parent < 0 else ()), *encode(step.text), *encode(self.separator)]
            length = lengths.get(step.parent, 0) + len(ids)
            if step.parent not in nodes or (writer.limit is not None and length > writer.limit):
                continue
            message = Message(role="assistant", content=step.text + self.separator)
            mask = [step.label is not None and at == len(ids) - 1 for at in range(len(ids))]
            node = tree.add_rendered(session, nodes[step.parent], RenderedMessage(message, ids), trainable=mask)
            node.reward = None if step.label is None else float(step.label)
            nodes[place], lengths[place] = node.id, length
            labelled += step.label is not None
        return self._keep(session, labelled, len(nodes) - 1, writer, counts)

    def _keep(
        self, session: Session, labelled: int, written: int, writer: TreeWriter, counts: TreeCounts
    ) -> list[Session]:
        """The session, where it has a labelled step, and all of its steps or as many as may be cut to."""
        if written < len(self.steps):
            words = f"{len(self.steps) - written} of {len(self.steps)} steps are beyond the limit of {writer.limit}"
            if writer.config.overlong == "refuse":
                raise ConfigError(f"data={writer.config.name}: {self.place}: {words} tokens (data.overlong=refuse)")
            counts.note(CUT if labelled else LONG, self.prompt, words)
        elif not labelled:
            counts.note(UNTRAINED, self.prompt)
        if not labelled:
            return []
        counts.tokens += sum(len(node.token_ids) for node in session.nodes)
        return [session]


def read_steps(config: DataConfig, classes: Sequence[str], separator: str) -> JudgedRows:
    """Read solutions with labelled steps.

    Raises:
        ConfigError: a row is in none of the formats, or a label is none of the classes.
    """
    reader = MessageReader()
    found = JudgedRows(config, f"solutions with labelled steps, {separator!r} behind each")

    def read(row: Mapping[str, Any], place: str) -> list[StepRow]:
        where = f"data={config.name}: {place}"
        prompt, steps, format_name = _parse(row, classes, where)
        if not steps:
            raise ConfigError(f"{where} has no steps")
        found.note(f"steps as {format_name} has them; labels are of {', '.join(classes)}")
        plain = config.strings == "plain"
        rows = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        try:
            return [StepRow(reader.example(place, rows, plain=plain), tuple(steps), separator, plain)]
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None

    return read_judged(config, read, found)


def _parse(row: Mapping[str, Any], classes: Sequence[str], where: str) -> tuple[Any, list[LabelledStep], str]:
    """A row's prompt, its steps, and whose format it is."""
    question, label = row.get("question"), row.get("label")
    if isinstance(question, Mapping) and isinstance(label, Mapping) and "steps" in label:
        return question.get("problem"), _prm800k(label["steps"], classes, where), "PRM800K"
    if isinstance(row.get("completions"), Sequence) and row.get("labels") is not None:
        texts, labels = row["completions"], row["labels"]
        if len(texts) != len(labels):
            raise ConfigError(f"{where} has {len(texts)} steps and {len(labels)} labels")
        numbers = [None if each is None else class_of(each, classes, where) for each in labels]
        return row.get("prompt"), _chain(texts, numbers), "TRL"
    if isinstance(row.get("input"), str) and isinstance(label, str) and MARK in row["input"]:
        return _shepherd(row["input"], label, classes, where)
    if isinstance(row.get("steps"), Sequence) and isinstance(label, int) and row.get("problem"):
        wrong = label if label >= 0 else len(row["steps"])
        known = [len(classes) - 1 if at < wrong else 0 if at == wrong else None for at in range(len(row["steps"]))]
        return row["problem"], _chain(row["steps"], known), "ProcessBench"
    raise ConfigError(
        f"{where} is in no format of labelled steps that is known (its columns: {', '.join(row)}): TRL's has prompt, "
        "completions and labels, which data.columns.completions=COLUMN and so on name"
    )


def _chain(texts: Sequence[str], labels: Sequence[int | None]) -> list[LabelledStep]:
    return [
        LabelledStep(str(text), label, place - 1) for place, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]


def _rate(rating: Any, classes: Sequence[str], where: str) -> int | None:
    """The class of a rating of -1, 0 or 1; of two classes a neutral step is right, as PRM800K's authors count it."""
    if rating is None:
        return None
    if rating not in (-1, 0, 1):
        raise ConfigError(f"{where}: a rating is {rating!r}, not -1, 0 or 1")
    return int(rating) + 1 if len(classes) == 3 else (len(classes) - 1) * (rating >= 0)


def _prm800k(rows: Sequence[Mapping[str, Any]], classes: Sequence[str], where: str) -> list[LabelledStep]:
    found: list[LabelledStep] = []
    parent = -1
    for row in rows:
        given = list(row.get("completions") or ())
        if (human := row.get("human_completion")) is not None:
            given.append(human if isinstance(human, Mapping) else {"text": human, "rating": 1})
        places = []
        for each in given:
            places.append(len(found))
            found.append(LabelledStep(str(each["text"]), _rate(each.get("rating"), classes, where), parent))
        chosen = row.get("chosen_completion")
        if not places:
            break
        if chosen is None and human is None and len(places) > 1:
            break  # no step follows any of them
        parent = places[chosen] if isinstance(chosen, int) else places[-1]
    return found


def _shepherd(text: str, label: str, classes: Sequence[str], where: str) -> tuple[str, list[LabelledStep], str]:
    """Math-Shepherd's two texts: the steps end where the mark is, and the labels stand in its place."""
    pieces = text.split(MARK)[:-1]
    steps: list[LabelledStep] = []
    prompt, at = "", 0
    for place, piece in enumerate(pieces):
        at += len(piece)
        sign = label[at : at + 1]
        if sign not in ("+", "-"):
            raise ConfigError(f"{where}: the label has {sign!r} in place of the mark behind step {place + 1}")
        at += 1
        if place == 0:
            prompt, step, rest = piece.partition("Step 1:")
            piece = step + rest
            if not step:
                raise ConfigError(f"{where}: the text has no 'Step 1:', where the problem would end")
        steps.append(LabelledStep(piece.strip(), (len(classes) - 1) * (sign == "+"), place - 1))
    return prompt.strip(), steps, "Math-Shepherd"
