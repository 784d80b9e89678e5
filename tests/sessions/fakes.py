"""Small interpreters that stand in for a tokenizer, a conversation format and an engine."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.attachments import routed_experts
from agentrl.errors import InvalidInput
from agentrl.sessions.renderers.base import Delta, Parsed, Span, SpanKind, ToolSchema
from agentrl.types import (
    Capabilities,
    Chunk,
    FinishReason,
    Health,
    Message,
    Node,
    PauseMode,
    Sampling,
    Turn,
    VersionSpan,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz .,!?<>{}[]:\"'0123456789\n"
ROLES = ("system", "developer", "user", "assistant", "tool")
END = len(LETTERS)


class LetterTokenizer:
    """One token a letter (what it doesn't know is '?'), and special tokens for roles and the end."""

    vocab_size = END + 1 + len(ROLES)

    def encode(self, text: str) -> list[int]:
        return [LETTERS.find(letter) if letter in LETTERS else LETTERS.find("?") for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(LETTERS[i] if i < END else "<end>" if i == END else f"<{ROLES[i - END - 1]}>" for i in ids)

    def special(self, token: str) -> int:
        if token == "<end>":
            return END
        if token.strip("<>") in ROLES:
            return END + 1 + ROLES.index(token.strip("<>"))
        raise InvalidInput(f"token={token!r}")


class LetterParser:
    """Everything before the end token is content."""

    unread = 0

    def __init__(self, tokenizer: LetterTokenizer) -> None:
        self.tokenizer, self.ids = tokenizer, list[int]()

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        self.ids += token_ids
        text = self.tokenizer.decode([i for i in token_ids if i != END])
        return [Delta(content=text)] if text else []

    def finish(self) -> tuple[list[Delta], Parsed]:
        text = self.tokenizer.decode([i for i in self.ids if i != END])
        spans = (Span(SpanKind.CONTENT, 0, len(self.ids)),) if self.ids else ()
        return [], Parsed(Message(role="assistant", content=text), spans)


class LetterRenderer:
    """<role>text<end>; a turn that left out its end token is closed by the node that follows it."""

    name = "letters"

    def __init__(self) -> None:
        self.tokenizer = LetterTokenizer()
        self.stop_token_ids = (END,)

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), after: Node | None = None
    ) -> list[list[int]]:
        rendered: list[list[int]] = []
        is_open = _is_open(after)
        for place, message in enumerate(messages):
            ids = [END] if is_open else []
            if place == 0 and after is None and tools:
                ids += self.tokenizer.encode("tools " + " ".join(t["function"]["name"] for t in tools) + "\n")
            ids += [self.tokenizer.special(f"<{message.role}>"), *self.tokenizer.encode(message.text), END]
            rendered.append(ids)
            is_open = False
        return rendered

    def generation_prompt(self, after: Node | None = None) -> list[int]:
        return [END] * _is_open(after) + [self.tokenizer.special("<assistant>")]

    def turn(self, message: Message) -> list[int]:
        return [*self.tokenizer.encode(message.text), END]

    def parser(self, tools: Sequence[ToolSchema] = ()) -> LetterParser:
        return LetterParser(self.tokenizer)


def _is_open(node: Node | None) -> bool:
    return node is not None and (not node.token_ids or node.token_ids[-1] != END)


@dataclass
class Drawn:
    """One call of the engine: what went in, what came out."""

    request_id: str
    input_ids: list[int]
    sampling: Sampling
    turn: Turn | None = None


def fake_experts(path: Sequence[int], record: Iterable[tuple[str, int]]) -> dict[str, bytes]:
    """Experts of a path's tokens from where `record` asks, made of place and id; the last one's are unknown."""
    start = dict(record).get(routed_experts.NAME)
    if start is None:
        return {}
    rows = [bytes((place % 250, token % 250)) for place, token in enumerate(path)]
    return {routed_experts.NAME: bytes((1, 2, 1, 0)) + b"".join([*rows[start:-1], b"\xff\xff"])}


@dataclass
class DiceEngine:
    """A bigram model with dice: it really has a distribution, draws from it, and remembers every call.

    `abort` and `silent_stop` are the chances that a turn is cut for new weights (the version then rises) and
    that it ends without an end token. Where `sampling.seed` is given the dice are keyed by it. With `experts` it
    has one layer of experts, and sends a token to those that `fake_experts` says.
    """

    vocab: int = LetterTokenizer.vocab_size
    max_context: int = 100_000
    end: int = END
    end_weight: float = 3.0
    abort: float = 0.0
    silent_stop: float = 0.0
    latency: float = 0.0
    chunk: int = 4
    experts: bool = False
    seed: int = 0
    calls: list[Drawn] = field(default_factory=list)
    aborted: int = 0
    current: int = 0

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)

    @property
    def capabilities(self) -> Capabilities:
        kinds = frozenset({routed_experts.NAME} if self.experts else ())
        return Capabilities("dice", self.max_context, self.vocab, deterministic=True, attachments=kinds)

    def logprob(self, before: int, token: int, temperature: float = 1.0) -> float:
        weights = self._weights(before, temperature)
        return math.log(weights[token] / sum(weights))

    def _weights(self, before: int, temperature: float) -> list[float]:
        weights = [1.0 + (before * 7 + j * 13) % 5 for j in range(self.end)] + [0.01] * (self.vocab - self.end)
        weights[self.end] = self.end_weight
        return [w ** (1 / max(temperature, 0.05)) for w in weights]

    async def generate(
        self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
    ) -> AsyncIterator[Chunk | Turn]:
        limit = min(sampling.max_new_tokens, self.max_context - len(input_ids))
        if not input_ids or limit < 1:
            raise InvalidInput(f"{len(input_ids)} input ids leave no token of {self.max_context}")
        call = Drawn(request_id, list(input_ids), sampling)
        self.calls.append(call)
        dice = self._dice if sampling.seed is None else random.Random(sampling.seed)
        ids: list[int] = []
        logps: list[float] = []
        ended = False
        reason, stopped_by = FinishReason.LENGTH, None
        try:
            while len(ids) < limit and reason is FinishReason.LENGTH:
                piece: list[int] = []
                while len(piece) < self.chunk and len(ids) < limit:
                    before = ids[-1] if ids else input_ids[-1]
                    token = dice.choices(range(self.vocab), self._weights(before, sampling.temperature))[0]
                    ids.append(token)
                    piece.append(token)
                    logps.append(self.logprob(before, token, sampling.temperature))
                    if token in sampling.stop_token_ids:
                        reason, stopped_by = FinishReason.STOP, token
                        break
                await asyncio.sleep(self.latency)
                yield Chunk(tuple(piece), tuple(logps[-len(piece) :]), self.current)
                if reason is FinishReason.LENGTH and dice.random() < self.silent_stop:
                    reason = FinishReason.STOP
                if reason is FinishReason.LENGTH and dice.random() < self.abort:
                    reason = FinishReason.ABORT
            ended = True
        finally:
            self.aborted += not ended
        spans = (VersionSpan(self.current, 0, len(ids)),)
        attached = fake_experts([*input_ids, *ids], sampling.record)
        call.turn = Turn(tuple(ids), tuple(logps), spans, reason, stopped_by, attachments=attached)
        if reason is FinishReason.ABORT:
            self.current += 1
        yield call.turn

    async def score(self, input_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        pairs = itertools.pairwise(input_ids)
        return [0.0, *(self.logprob(before, token, temperature) for before, token in pairs)]

    async def publish(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        self.current = version

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None: ...

    async def resume(self) -> None: ...

    def version(self) -> int:
        return self.current

    async def health(self) -> Health:
        return Health(ok=True)

    async def close(self) -> None: ...
