"""Rewards for the shape of an answer: `regex`, `json_schema`, `format`, `length`."""

from __future__ import annotations

import re
from typing import Literal

import orjson
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from agentrl.common import patterns
from agentrl.config import RewardConfig
from agentrl.envs.rewards import Reward
from agentrl.envs.scoring.json_schema import Schema
from agentrl.envs.scoring.texts import MAX_CHARS, TextConfig, extract_answer, field_of
from agentrl.errors import ConfigError
from agentrl.types import Session


class RegexConfig(TextConfig):
    """The settings of `regex`."""

    pattern: str = ""
    """The regular expression (Python's)."""
    field: str = ""
    """The field of the task that has it instead."""
    whole: bool = False
    """True: it has to match the whole text; else it may be anywhere in it."""
    absent: bool = False
    """Reward texts that it is not in."""
    ignore_case: bool = False
    """True: case makes no difference."""

    @model_validator(mode="after")
    def _one_pattern(self) -> RegexConfig:
        if bool(self.pattern) == bool(self.field):
            raise ValueError("regex needs pattern=EXPRESSION, or field=FIELD of the task that has it, and not both")
        try:
            re.compile(self.pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"pattern={self.pattern!r} is no regular expression: {error}") from None
        return self


class Regex(Reward):
    """1 where a regular expression is in the answer (or is not, with `absent`), and 0 otherwise.

    A search that takes longer than `patterns.SECONDS` of processor time, in a process of its own, gives 0.
    """

    settings = RegexConfig
    config: RegexConfig

    def compute(self, session: Session) -> float:
        """Search for the pattern; in a thread, since it may wait for a process."""
        config = self.config
        pattern = config.pattern or field_of(session.task, config.field, "field")
        text = extract_answer(session, config.extract)
        if text is None:
            return 0.0
        around = (r"\A(?:", r")\Z") if config.whole else ("", "")
        try:
            found = patterns.is_in(str(pattern), text, re.IGNORECASE if config.ignore_case else 0, around)
        except patterns.PatternTooSlow:
            return 0.0
        except re.error as error:
            raise ConfigError(f"task {session.task.id!r}: {pattern!r:.80} is no regular expression: {error}") from None
        return float(found != config.absent)


class JsonSchemaConfig(TextConfig):
    """The settings of `json_schema`."""

    field: str = ""
    """The field of the task with its schema."""
    path: str = ""
    """A file with the schema of all tasks."""
    fenced: bool = True
    """Take the last ```json block of an answer that has one, instead of all of it."""

    @model_validator(mode="after")
    def _one_schema(self) -> JsonSchemaConfig:
        if bool(self.field) == bool(self.path):
            raise ValueError("json_schema needs path=FILE, or field=FIELD of the task that has it, and not both")
        return self


class JsonSchema(Reward):
    """1 where the answer is JSON that a schema allows, and 0 otherwise."""

    settings = JsonSchemaConfig
    config: JsonSchemaConfig

    def __init__(self, config: JsonSchemaConfig) -> None:
        super().__init__(config)
        self._schema = Schema.read(config.path) if config.path else None

    def compute(self, session: Session) -> float:
        """Read the answer's JSON, and compare it with the schema; in a thread, since schemas have patterns."""
        schema = self._schema
        if schema is None:
            schema = Schema.of(field_of(session.task, self.config.field, "field"), f"task {session.task.id!r}")
        text = extract_answer(session, self.config.extract)
        if text is None:
            return 0.0
        try:
            value = orjson.loads(_last_block(text) if self.config.fenced else text)
        except ValueError:
            return 0.0
        return float(schema.allows(value))


def _last_block(text: str) -> str:
    """Return what is in the last fenced block of JSON; the whole text where there is none."""
    end = text.rfind("```")
    start = text.rfind("```json", 0, end) if end > 0 else -1
    return text[start + len("```json") : end] if start >= 0 else text


class FormatConfig(RewardConfig):
    """The settings of `format`."""

    tags: tuple[str, ...] = Field(default=("think", "answer"), min_length=1)
    """The parts of each answer, in order: <NAME>…</NAME>, each once and not empty, and nothing but white space
    between them."""
    turns: Literal["last", "all"] = "last"
    """The messages that are read: the last one, or each of the model's; then the reward is the share of those in the
    format."""


class TaggedFormat(Reward):
    """1 where the answer consists of the tags' parts and nothing else, and 0 otherwise."""

    settings = FormatConfig
    config: FormatConfig

    async def compute(self, session: Session) -> float:
        if self.config.turns == "last":
            return float(is_formed(session.answer, self.config.tags))
        texts = [message.text for message in session.messages if message.role == "assistant"]
        return sum(is_formed(text, self.config.tags) for text in texts) / len(texts) if texts else 0.0


def is_formed(text: str, tags: tuple[str, ...]) -> bool:
    """Return whether a text is these parts in order, each once and not empty, with nothing but space between."""
    if len(text) > MAX_CHARS:
        return False
    rest = text.strip()
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        end = rest.find(closing)
        if not rest.startswith(opening) or end < 0 or not rest[len(opening) : end].strip():
            return False
        rest = rest[end + len(closing) :].lstrip()
    marks = [f"<{slash}{tag}>" for tag in tags for slash in ("", "/")]
    return not rest and all(text.count(mark) == 1 for mark in marks)


class LengthConfig(TextConfig):
    """The settings of `length`."""

    unit: Literal["chars", "words", "tokens", "turns"] = "chars"
    """The unit that is counted: characters or words of the answer, generated tokens, or turns of the session."""
    least: NonNegativeInt = 0
    """The fewest that get the full reward."""
    most: PositiveInt | None = None
    """The most that get the full reward; None: any number."""
    margin: NonNegativeFloat = 0.0
    """The number of further ones over which the reward falls from 1 to 0, along a line; 0: at once."""

    @model_validator(mode="after")
    def _bounds(self) -> LengthConfig:
        if self.most is not None and self.most < self.least:
            raise ValueError(f"most={self.most} is below least={self.least}")
        if self.most is None and not self.least:
            raise ValueError("length needs most=NUMBER, least=NUMBER, or both")
        return self


class Length(Reward):
    """1 where the answer is neither too short nor too long, falling to 0 over `margin` beyond."""

    settings = LengthConfig
    config: LengthConfig

    async def compute(self, session: Session) -> float:
        config, count = self.config, self._count(session)
        beyond = max(config.least - count, count - (count if config.most is None else config.most), 0)
        return float(not beyond) if not config.margin else max(1.0 - beyond / config.margin, 0.0)

    def _count(self, session: Session) -> int:
        match self.config.unit:
            case "turns":
                return session.turns
            case "tokens":
                return sum(sum(node.trainable) for node in session.nodes if node.sampled)
        text = extract_answer(session, self.config.extract) if len(session.answer) <= MAX_CHARS else session.answer
        return len((text or "").split()) if self.config.unit == "words" else len(text or "")
