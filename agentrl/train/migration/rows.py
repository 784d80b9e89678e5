"""A row of another framework's file, tried as each kind of data that runs here.

The readers of runs decide what a row is: those of `env=questions`, `env=swe` and `data=`. So a row that is carried is
one that a run reads. Only rows of verl and slime for reinforcement learning are rewritten, since their prompts hold a
system message and their columns don't say how an answer is compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agentrl.config.data import DataConfig
from agentrl.envs.builtin.questions.formats import Grading, Question, question
from agentrl.envs.builtin.swe.formats.datasets import task_of
from agentrl.errors import AgentRLError
from agentrl.rollout.sources.columns import choose_columns, conversations_in, read_example
from agentrl.rollout.sources.messages import MessageReader, parse_json
from agentrl.rollout.sources.pairs import LABELS, REPLIES, Compared, choose_compared, read_compared

Row = Mapping[str, Any]


class Kind(StrEnum):
    """The kinds of row, by what they are read as."""

    QUESTIONS = "questions"  # env=questions
    CONVERSATIONS = "conversations"  # algo=sft data=
    PAIRS = "pairs"  # algo=dpo data=
    VERDICTS = "verdicts"  # algo=kto data=
    REPOSITORIES = "repositories"  # env=swe


SOURCES: Mapping[str, Grading] = {
    **dict.fromkeys(("openai/gsm8k", "lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval"), Grading.MATH),
    **dict.fromkeys(("HuggingFaceH4/MATH-500", "math", "math_dapo", "math_dapo_reasoning"), Grading.MATH),
    **dict.fromkeys(("math", "deepscaler", "dapo", "boxed_math"), Grading.MATH),
    **dict.fromkeys(("f1", "boxed_f1"), Grading.EXACT),
}
"""The comparison of an answer, by verl's `data_source` (`utils/reward_score`) and slime's `rm_type`."""
STARTS: Mapping[str, Grading] = {"aime": Grading.MATH, "numina_": Grading.MATH, "searchR1_": Grading.EXACT}
"""The same by what a `data_source` begins with."""
ABILITIES: Mapping[str, Grading] = {"math": Grading.MATH, "fact-reasoning": Grading.EXACT}
"""The same by verl's `ability`."""
PROGRAMS = frozenset({"codecontests", "apps", "codeforces", "taco"})
"""Sources whose answers are tests of programs."""
MEDIA = ("images", "videos", "audios", "image", "video", "audio")
PASSED = {"prompt", "reward_model", "label", "data_source", "ability", "metadata", "extra_info"}
"""Columns of verl's and slime's rows that are used, or whose fields are told apart."""
IDLE = {"index", "split", "question", "answer", "style", "rm_type", "ground_truth"}
"""Fields within such columns that say nothing which a run needs."""


class Refused(ValueError):
    """A row can't be carried; the message says why."""


@dataclass
class RowReader:
    """Reads rows, all as one kind: that of the first which is carried.

    Attributes:
        kind: what they are read as; None: as the first says.
        grading: how answers are compared; None: as each row says.
        strings: what texts of prompts and completions are (`data.strings`).
        system: the system message of the questions; None as long as there was no question.
        unread: fields that are not carried, with how many rows have them.
    """

    kind: Kind | None = None
    grading: Grading | None = None
    strings: str | None = None
    system: str | None = None
    unread: Counter[str] = field(default_factory=Counter)

    def carry(self, row: Row, place: str) -> dict[str, Any]:
        """The row as a run reads it."""
        if media := next((name for name in MEDIA if row.get(name)), None):
            raise Refused(f"it has {media}, which no run trains on")
        row = _with_prompt(row)
        kind = kind_of(row) if self.kind is None else self.kind
        try:
            carried = self._convert(row, kind, place)
        except (AgentRLError, ValueError, TypeError, KeyError) as error:
            raise Refused(_without_place(str(error), place)) from None
        self.kind = kind
        return carried

    def _convert(self, row: Row, kind: Kind, place: str) -> dict[str, Any]:
        config = DataConfig.model_validate({"name": "FILE", "strings": self.strings})
        match kind:
            case Kind.QUESTIONS:
                return self._question(row)
            case Kind.REPOSITORIES:
                task_of(row)
            case Kind.CONVERSATIONS:
                reader = MessageReader()
                example = read_example(row, choose_columns(row, config, place), config, place, reader)
                if all(message.role != "assistant" for message in example.messages):
                    raise Refused("no message of it is an assistant's, so nothing would be trained")
                self.unread.update(f"{name} (of messages)" for name in reader.unread)
            case _:
                compared: Compared = "pairs" if kind is Kind.PAIRS else "labels"
                chosen = choose_compared(row, config, place, compared)
                read_compared(row, chosen, config, place, MessageReader())
        return dict(row)

    def _question(self, row: Row) -> dict[str, Any]:
        if "prompt" not in row or not ({"reward_model", "label"} & row.keys()):
            asked = question(row, self.grading)  # a published set's own columns
            if asked is None:
                raise Refused("it has no answer that can be compared")
            if asked.unclear:
                raise Refused(f"its answer {asked.answers[0]!r} is a number in text: --grading math or exact")
            return dict(row)
        source = str(row.get("data_source") or _inside(row, "metadata").get("rm_type") or "")
        if source in PROGRAMS:
            raise Refused(f"its answer is tests of a program ({source}): env=code reads HumanEval's and MBPP's columns")
        system, text = _split_prompt(row["prompt"])
        asked = question({**row, "prompt": text}, self.grading or _grading(row, source))
        if asked is None:
            raise Refused("it has no answer that can be compared")
        if asked.unclear:
            raise Refused(f"its answer {asked.answers[0]!r} is a number in text: --grading math or exact")
        if self.system is not None and system != self.system:
            raise Refused(
                "its system message is another than that of the rows before: a run has one (env.instructions)"
            )
        self.system = system
        self._note_unread(row)
        return _write(row, asked)

    def _note_unread(self, row: Row) -> None:
        self.unread.update(name for name in row.keys() - PASSED if row[name] not in (None, "", [], {}))
        for outer in ("extra_info", "metadata", "reward_model"):
            inner = _inside(row, outer)
            self.unread.update(f"{outer}.{name}" for name, value in inner.items() if name not in IDLE and value)


def _with_prompt(row: Row) -> Row:
    """The row with a prompt, where slime's files have it as messages that end with the user's, and an answer beside."""
    messages = parse_json(row.get("messages"))
    last = messages[-1] if isinstance(messages, list) and messages else None
    if "prompt" in row or not isinstance(last, Mapping) or last.get("role") != "user":
        return row
    asks = isinstance(row.get("label"), str | int | float) or "reward_model" in row
    return {**{name: row[name] for name in row if name != "messages"}, "prompt": messages} if asks else row


def kind_of(row: Row) -> Kind:
    """Return the kind of a row, by its columns; `RowReader.kind` overrides it."""
    there = {name for name, value in row.items() if value is not None}
    if {"FAIL_TO_PASS", "expected_output_json"} & there:
        return Kind.REPOSITORIES
    if any({chosen, rejected} <= there for chosen, rejected in REPLIES):
        return Kind.PAIRS
    replies = {"completion", "completions", "response", "responses", "messages", "conversations", "conversation"}
    if there & replies or "instruction" in there or there <= {"text", "meta", "source", "id"}:
        verdict = any(isinstance(row.get(name), bool) for name in LABELS)
        return (
            Kind.VERDICTS
            if verdict
            else Kind.PAIRS
            if "completions" in there and _is_scored(row)
            else Kind.CONVERSATIONS
        )
    if (
        "prompt" in there
        or conversations_in(row, DataConfig.model_validate({"name": "FILE"}))
        or {"question", "problem"} & there
    ):
        return Kind.QUESTIONS
    raise Refused(f"none of its columns is known: {', '.join(row)}")


def _is_scored(row: Row) -> bool:
    return isinstance(parse_json(row["completions"]), list)


def _inside(row: Row, name: str) -> Mapping[str, Any]:
    found = parse_json(row.get(name))
    return found if isinstance(found, Mapping) else {}


def _grading(row: Row, source: str) -> Grading | None:
    by_start = next((grading for start, grading in STARTS.items() if source.startswith(start)), None)
    return SOURCES.get(source) or by_start or ABILITIES.get(str(row.get("ability")))


def _split_prompt(prompt: Any) -> tuple[str, str]:
    """A prompt's system message, '' without one, and its question."""
    messages = parse_json(prompt)
    if isinstance(messages, str):
        return "", messages
    listed = messages if isinstance(messages, list) else [messages]
    roles = [each.get("role") if isinstance(each, Mapping) else None for each in listed]
    if roles not in (["user"], ["system", "user"]):
        said = ", ".join(map(str, roles))
        raise Refused(
            f"its prompt is a conversation ({said}): an environment's reset returns one (docs/environments.md)"
        )
    texts = [each.get("content") for each in listed]
    if not all(isinstance(text, str) for text in texts):
        raise Refused("its prompt has parts besides text")
    return texts[0] if len(texts) == 2 else "", texts[-1]


def _write(row: Row, asked: Question) -> dict[str, Any]:
    """A question in columns from which `env=questions` knows how to compare."""
    names = ("unique_id", "task_id", "id")
    named = next((row[name] for name in names if row.get(name) not in (None, "")), None)
    written: dict[str, Any] = {} if named is None else {"id": named}
    if asked.grading is Grading.MATH:
        return {**written, "problem": asked.text, "answer": asked.answers[0]}
    return {**written, "question": asked.text, "golden_answers": list(asked.answers)}


def _without_place(words: str, place: str) -> str:
    """An error's words, without the place and the file, which stand beside them."""
    return words.removeprefix("data=FILE: ").removeprefix(place).removeprefix(": ").strip()
