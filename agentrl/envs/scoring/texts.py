"""The scored part of a session, and the task's words about it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from agentrl.common.plain import plain
from agentrl.config import RewardConfig
from agentrl.envs.builtin.questions import latex
from agentrl.envs.data.conditions import inside
from agentrl.errors import ConfigError, suggest
from agentrl.types import Session, Task

MAX_CHARS = 200_000
"""A longer answer is no answer: it is taken for an empty text."""


Extract = Annotated[str, Field(pattern=r"^(whole|line|boxed|stated|tag:[\w-]+|after:.+)$")]


class TextConfig(RewardConfig):
    """The part of the answer that a reward reads."""

    extract: Extract = "whole"
    """Of the last message: all of it (`whole`), its last line (`line`), its last \\boxed{} (`boxed`), the answer that
    it states (`stated`), what is between the last <NAME> and </NAME> (`tag:NAME`), or behind the last TEXT
    (`after:TEXT`). An answer without such a part is wrong."""


class ReferenceConfig(TextConfig):
    """The field of the task that an answer is compared with."""

    reference: str = "answer"
    """The field of the task with the right answer, or a list of right ones; a.b is inside a field."""


def extract_answer(session: Session, extract: str) -> str | None:
    """Return the part of a session's answer that is scored; None where the answer has no such part."""
    text = session.answer
    if len(text) > MAX_CHARS:
        return None
    kind, _, name = extract.partition(":")
    match kind:
        case "line":
            return text.strip().rpartition("\n")[2].strip()
        case "boxed":
            return latex.find_boxed(text)
        case "stated":
            return latex.find_stated(text)
        case "tag":
            return between(text, name)
        case "after":
            return text.rpartition(name)[2].strip() if name in text else None
    return text.strip()


def between(text: str, name: str) -> str | None:
    """Return what is between the last pair of tags of that name; None where there is none."""
    end = text.rfind(f"</{name}>")
    start = text.rfind(f"<{name}>", 0, end) if end >= 0 else -1
    return text[start + len(name) + 2 : end].strip() if start >= 0 else None


def field_of(task: Task, name: str, setting: str) -> Any:
    """Return the value of a task's field, as plain data; ConfigError where the task has no such field."""
    try:
        return plain(inside(task.data, name))
    except KeyError:
        fields = ", ".join(map(str, task.data)) or "none"
        hint = suggest(name, list(map(str, task.data)))
        raise ConfigError(
            f"{setting}={name!r}: task {task.id!r} has no such field{hint} (fields: {fields}); rewards.NAME.where says "
            "which tasks a reward is for"
        ) from None


def right_answers(task: Task, name: str) -> list[str]:
    """Return the right answers of a task as texts.

    Raises:
        ConfigError: the field is missing, empty, or neither text, number nor a list of those.
    """
    value = field_of(task, name, "reference")
    listed: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    if not listed or any(each is None or isinstance(each, Mapping | list | tuple) for each in listed):
        raise ConfigError(
            f"reference={name!r}: task {task.id!r} has {value!r:.80} there; allowed are a text, a number, a truth "
            "value, or a list of them"
        )
    return [str(each).lower() if isinstance(each, bool) else str(each) for each in listed]


def single_spaced(text: str) -> str:
    """Return a text with single spaces for all white space."""
    return re.sub(r"\s+", " ", text).strip()
