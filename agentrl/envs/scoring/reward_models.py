"""`reward_model`: a session's score by a model with a head of scores, as `algo=reward_model` and `algo=prm` train it.

Whatever policy played, the conversation is written anew, in the format of the score model's own tokenizer: a model that
was trained here reads its score at the end of the last turn, others at the end of what their chat template writes, as
programs on transformers do. A model for token classification scores the last message's steps.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from pydantic import PositiveInt

from agentrl.common.untrusted import read_json
from agentrl.config import RewardConfig
from agentrl.config.sections import Device
from agentrl.envs.rewards import ModelMemory, Reward
from agentrl.envs.scoring import score_server
from agentrl.errors import ConfigError, InfraError
from agentrl.models import scoring
from agentrl.models.devices import torch_device
from agentrl.models.sizes import longest_path, with_usual_names
from agentrl.sessions.renderers import Renderer, get_renderer
from agentrl.sessions.renderers.base import RenderedMessage
from agentrl.types import Message, Session

TOO_LONG = "reward_too_long"
"""Counts, in a session, conversations that were too long for a score model."""
_log = logging.getLogger(__name__)


class ScoreRewardConfig(RewardConfig):
    """The settings of `reward_model`."""

    resident: ClassVar[bool] = True
    model: str
    """A Hugging Face folder: a model for sequence classification, or for token classification, which scores steps."""
    device: Device = "auto"
    """The device that it computes on; auto: a GPU where there is one. There is one copy on it."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """The precision; auto: float32 on a CPU, bfloat16 on a GPU."""
    batch_tokens: PositiveInt | None = None
    """Tokens of a batch, padding included; None: one session on a CPU, 32,768 tokens on a GPU."""
    max_tokens: PositiveInt | None = None
    """The longest conversation in tokens; None: as long as the model was made for."""
    overlong: Literal["none", "tail"] = "none"
    """The reward of a longer one: no reward (none), or the score of its last tokens (tail). Both are counted."""
    sees: Literal["conversation", "answer"] = "conversation"
    """The messages that are scored: all messages, or the last one alone."""
    strings: Literal["chat", "plain"] = "chat"
    """plain: the messages' texts follow each other without a chat format, as the model was trained (data.strings)."""
    squash: bool = False
    """The reward is sigmoid(score), between 0 and 1, and not the score."""
    label: str = ""
    """Of a model with classes: the one whose probability is the reward; empty: its last one."""
    steps: Literal["min", "mean", "last", "product"] = "min"
    """Of a model of steps: what is made of their probabilities."""


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A conversation as the score model reads it, and the places of its tokens where scores are read."""

    ids: list[int]
    places: list[int]


class ScoreModelReward(Reward):
    """The score that a model gives a session.

    Attributes:
        server: computes with the model, for all rewards of this process that share it; None once it is closed.
    """

    settings = ScoreRewardConfig
    range = (-math.inf, math.inf)
    config: ScoreRewardConfig

    def __init__(self, config: ScoreRewardConfig) -> None:
        super().__init__(config)
        self.folder = _folder(config.model)
        self.per_token = scoring.is_per_token(self.folder)
        device, dtype = _place(config)
        self.server: score_server.ScoreServer | None = score_server.acquire(
            self.folder, device, dtype, config.batch_tokens, per_token=self.per_token
        )
        settings = self.server.model.config
        own = getattr(settings, scoring.SETTINGS, None)
        self._limit = config.max_tokens or longest_path(settings.get_text_config())
        self._labels = [str(name) for _, name in sorted(settings.id2label.items())]
        self._label = self._number_of(config.label)
        plain = config.strings == "plain"
        self._format: ScoreFormat = (
            TemplateFormat(self.folder, plain)
            if own is None
            else OwnFormat(self.folder, plain, dict(own).get("separator") or "\n")
        )
        self._warned = False

    @classmethod
    def memory(cls, config: ScoreRewardConfig) -> ModelMemory:
        """Estimate from the folder's files: weights in the precision, and a batch's widest layer."""
        folder = _folder(config.model)
        device, dtype = _place(config)
        width, settings = (
            4 if dtype == "float32" else 2,
            with_usual_names(read_json((folder / "config.json").read_text())),
        )
        limit = config.max_tokens or settings.get("max_position_embeddings") or 0
        tokens = max(config.batch_tokens or (0 if device == "cpu" else score_server.GPU_BATCH_TOKENS), limit)
        hidden = int(settings.get("hidden_size") or 0)
        widest = 2 * int(settings.get("intermediate_size") or 4 * hidden) + 6 * hidden
        return ModelMemory(device, scoring.parameters(folder) * width, tokens * widest * width)

    def _number_of(self, label: str) -> int:
        if label and label not in self._labels:
            raise ConfigError(f"label={label!r}: the model in {str(self.folder)!r} has {', '.join(self._labels)}")
        return self._labels.index(label) if label else len(self._labels) - 1

    async def compute(self, session: Session) -> float | None:
        messages = session.messages if self.config.sees == "conversation" else session.messages[-1:]
        if not messages or self.server is None:
            raise InfraError("the session has no message, or the score model is closed")
        tools = () if self.config.sees == "answer" else session.nodes[0].tools
        write = self._format.steps if self.per_token else self._format.whole
        text = self._within(await asyncio.to_thread(write, messages, tools), session)
        if text is None or not text.places:
            return None
        outputs = await asyncio.wrap_future(self.server.ask(text.ids, text.places))
        return self._reward(outputs)

    def _within(self, text: ScoredText, session: Session) -> ScoredText | None:
        """The text, or its last tokens where it is too long; None: it gets no reward."""
        over = 0 if self._limit is None else len(text.ids) - self._limit
        if over <= 0:
            return text
        session.count(TOO_LONG)
        if not self._warned:
            self._warned = True
            gets = "has no reward" if self.config.overlong == "none" else "is scored by its last tokens"
            _log.warning(
                "rewards %s: a conversation has %d tokens, and the limit of %s is %d: it %s (counted as %s)",
                *(self.config.name, len(text.ids), self.folder, self._limit, gets, TOO_LONG),
            )
        if self.config.overlong == "none":
            return None
        return ScoredText(text.ids[over:], [place - over for place in text.places if place >= over])

    def _reward(self, outputs: Sequence[Sequence[float]]) -> float:
        if len(self._labels) == 1:
            (score,) = outputs[-1]
            return _sigmoid(score) if self.config.squash else score
        found = [_softmax(row)[self._label] for row in outputs]
        match self.config.steps if self.per_token else "last":
            case "min":
                return min(found)
            case "mean":
                return math.fsum(found) / len(found)
            case "product":
                return math.prod(found)
            case _:
                return found[-1]

    async def close(self) -> None:
        if self.server is not None:
            server, self.server = self.server, None
            await asyncio.to_thread(score_server.release, server)


class ScoreFormat(Protocol):
    """A score model's way of writing conversations."""

    def whole(self, messages: Sequence[Message], tools: Sequence[Any]) -> ScoredText:
        """A conversation, whose score is read at its last token."""

    def steps(self, messages: Sequence[Message], tools: Sequence[Any]) -> ScoredText:
        """A conversation, in the last message of which each step's end is read."""


def _stepwise(before: list[int], text: str, separator: str, encode: Callable[[str], Sequence[int]]) -> ScoredText:
    ids, places = before, []
    for step in filter(str.strip, text.split(separator)):
        ids = [*ids, *encode(step), *encode(separator)]
        places.append(len(ids) - 1)
    return ScoredText(ids, places)


class OwnFormat:
    """That of a model that was trained here: the tokens that it learned from.

    Args:
        folder: the model's.
        plain: messages follow each other as they are.
        separator: what follows each step.
    """

    def __init__(self, folder: Path, plain: bool, separator: str) -> None:
        self._plain, self._separator = plain, separator
        self._renderer: Renderer = get_renderer(folder)

    def whole(self, messages: Sequence[Message], tools: Sequence[Any]) -> ScoredText:
        ids = [token for part in self._write(messages, tools) for token in part]
        ids += [self._renderer.stop_token_ids[0]] if self._plain else []
        return ScoredText(ids, [len(ids) - 1])

    def steps(self, messages: Sequence[Message], tools: Sequence[Any]) -> ScoredText:
        *before, last = messages
        parts = self._write(before, tools)
        ids = [token for part in parts for token in part]
        if not self._plain:
            after = RenderedMessage(before[-1], parts[-1]).as_node() if before else None
            ids += self._renderer.generation_prompt(after)
        return _stepwise(ids, last.text, self._separator, self._renderer.tokenizer.encode)

    def _write(self, messages: Sequence[Message], tools: Sequence[Any]) -> list[list[int]]:
        if self._plain:
            return [self._renderer.tokenizer.encode(message.text) for message in messages]
        return self._renderer.render(list(messages), tools=list(tools)) if messages else []


class TemplateFormat:
    """That of another's model: what its chat template writes, to the end.

    Args:
        folder: the model's.
        plain: messages follow each other as they are.
    """

    def __init__(self, folder: Path, plain: bool) -> None:
        from transformers import AutoTokenizer

        self._plain = plain
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)

    def whole(self, messages: Sequence[Message], tools: Sequence[Any]) -> ScoredText:
        ids = self._write(messages, tools, opened=False)
        return ScoredText(ids, [len(ids) - 1])

    def steps(self, messages: Sequence[Message], tools: Sequence[Any]) -> ScoredText:
        *before, last = messages
        return _stepwise(self._write(before, tools, opened=True), last.text, "\n", self._encode)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def _write(self, messages: Sequence[Message], tools: Sequence[Any], *, opened: bool) -> list[int]:
        if self._plain:
            return [token for message in messages for token in self._encode(message.text)]
        rows = [{"content": "", **message.model_dump(exclude_none=True)} for message in messages]
        more = {"add_generation_prompt": opened, "return_dict": False}
        return list(self._tokenizer.apply_chat_template(rows, tools=list(tools) or None, **more)) if rows else []


def _place(config: ScoreRewardConfig) -> tuple[str, str]:
    """The device and the precision of the settings."""
    device = torch_device(config.device, "rewards.NAME.device")
    return device, config.dtype if config.dtype != "auto" else "float32" if device == "cpu" else "bfloat16"


def _folder(name: str) -> Path:
    found = Path(name).expanduser()
    if not (found / "config.json").is_file():
        raise ConfigError(f"model={name!r} is no Hugging Face folder with a score model (there is no config.json)")
    return found


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _softmax(row: Sequence[float]) -> list[float]:
    greatest = max(row)
    parts = [math.exp(each - greatest) for each in row]
    return [part / math.fsum(parts) for part in parts]
