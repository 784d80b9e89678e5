"""Scripted engines: a function of the prompt chooses the words, over the real renderer and tokenizer."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.attachments import routed_experts
from agentrl.sessions.renderers import get_renderer
from agentrl.types import (
    Capabilities,
    Chunk,
    FinishReason,
    FunctionCall,
    Health,
    Message,
    PauseMode,
    Sampling,
    ToolCall,
    TopLogprobs,
    Turn,
    VersionSpan,
)
from tests.sessions.fakes import fake_experts


@functools.cache
def renderer() -> Any:
    """ChatML over a small byte-level tokenizer."""
    from agentrl.models.tiny import build_tokenizer

    return get_renderer(build_tokenizer(["hello there, how are you? <|im_end|>"] * 50, vocab=300), "chatml")


def assistant(text: str = "", reasoning: str | None = None, calls: Sequence[tuple[str, str]] = ()) -> Message:
    made = [ToolCall(id=f"call_{i}", function=FunctionCall(name=n, arguments=a)) for i, (n, a) in enumerate(calls)]
    return Message(role="assistant", content=text, reasoning_content=reasoning, tool_calls=made or None)


@dataclass
class Call:
    request_id: str
    input_ids: list[int]
    sampling: Sampling
    turn: Turn | None = None


@dataclass
class ScriptedEngine:
    """Generates what `script` makes of the prompt's text; log-probabilities are a function of place and token.

    `script` may return a Message (written as the renderer would, from where the prompt ends, if it ends within it) or
    text (encoded as it is, ended by the end-of-turn token). Stop strings, token limits and cancellation work as an
    engine's do.
    """

    script: Callable[[str], Message | str] = lambda prompt: assistant("hello")
    max_context: int = 100_000
    latency: float = 0.0
    held: asyncio.Event | None = None  # nothing is generated before it is set
    chunk: int = 3
    json_schema: bool = False
    experts: bool = False
    fail: Exception | None = None
    calls: list[Call] = field(default_factory=list)
    aborted: int = 0
    running: int = 0
    most_running: int = 0

    @property
    def capabilities(self) -> Capabilities:
        kinds = frozenset({routed_experts.NAME} if self.experts else ())
        promised = {"deterministic": True, "json_schema": self.json_schema, "attachments": kinds}
        return Capabilities("scripted", self.max_context, 1000, **promised)

    async def generate(
        self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
    ) -> AsyncIterator[Chunk | Turn]:
        call = Call(request_id, list(input_ids), sampling)
        self.calls.append(call)
        if self.fail is not None:
            raise self.fail
        tokenizer = renderer().tokenizer
        words = self.script(tokenizer.decode(input_ids))
        end = renderer().stop_token_ids[0]
        if isinstance(words, Message):
            ids = _rest(renderer().turn(words), call.input_ids)
        else:
            ids = [*tokenizer.encode(words), end]
        ids, reason, stopped_by = self.limited(ids, sampling)
        logprobs = [-(1 + (place * 31 + token) % 97) / 97 for place, token in enumerate(ids)]
        best = [most_probable_by(token, logp, sampling.top_logprobs) for token, logp in zip(ids, logprobs, strict=True)]
        best = best if sampling.top_logprobs else []
        ended = False
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if self.held is not None:
                await self.held.wait()
            for start in range(0, len(ids), self.chunk):
                if self.latency:
                    await asyncio.sleep(self.latency)
                end_at = start + self.chunk
                yield Chunk(tuple(ids[start:end_at]), tuple(logprobs[start:end_at]), 1, tuple(best[start:end_at]))
            ended = True
        finally:
            self.running -= 1
            self.aborted += not ended
        attached = fake_experts([*input_ids, *ids], sampling.record)
        spans = (VersionSpan(1, 0, len(ids)),)
        call.turn = Turn(
            tuple(ids), tuple(logprobs), spans, reason, stopped_by, attachments=attached, top_logprobs=tuple(best)
        )
        yield call.turn

    def limited(self, ids: list[int], sampling: Sampling) -> tuple[list[int], FinishReason, int | str | None]:
        tokenizer = renderer().tokenizer
        for count in range(1, len(ids) + 1):
            text = tokenizer.decode(ids[:count]) if sampling.stop else ""
            found = [stop for stop in sampling.stop if stop in text]
            if found:
                return ids[:count], FinishReason.STOP, found[0]
            if ids[count - 1] in sampling.stop_token_ids:
                return ids[:count], FinishReason.STOP, ids[count - 1]
            if count == sampling.max_new_tokens:
                return ids[:count], FinishReason.LENGTH, None
        return ids, FinishReason.STOP, None

    async def score(self, input_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        raise NotImplementedError

    async def publish(self, weights: Iterable[tuple[str, Any]], version: int) -> None: ...

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None: ...

    async def resume(self) -> None: ...

    def version(self) -> int:
        return 1

    async def health(self) -> Health:
        return Health(ok=True, running=self.running)

    async def close(self) -> None: ...


def most_probable_by(token: int, logprob: float, count: int) -> TopLogprobs:
    """The sampled token and its neighbours below, each less probable by 1."""
    return tuple((token - place, logprob - place) for place in range(count))


def _rest(turn: list[int], prompt: list[int]) -> list[int]:
    """What of a turn is not in the prompt yet: its beginning is, where the client demands a call."""
    begun = next((n for n in range(min(len(prompt), len(turn)), 0, -1) if prompt[-n:] == turn[:n]), 0)
    return turn[begun:]


def in_turn(*words: Message | str) -> Callable[[str], Message | str]:
    """A script that says these one after another, and then the last one for ever."""
    waiting = itertools.chain(words, itertools.repeat(words[-1]))
    return lambda prompt: next(waiting)
