"""Samples: one engine, which holds the weights of one sampler at a time, and gets the next one's when it is idle.

Requests for the weights that the engine holds are generated together. Where requests for other weights wait, the engine
finishes what it has begun, and is then given what the oldest of them needs, with all others that need the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from agentrl.errors import EngineError, InvalidInput
from agentrl.models.adapters import read_adapter
from agentrl.rollout.weights.buckets import Named
from agentrl.rollout.weights.snapshot import read_snapshot, whole_of
from agentrl.train.server.config import ServeTrainingConfig
from agentrl.train.server.messages import PROTOBUF, Sample, write_samples
from agentrl.train.server.served_run import Answer
from agentrl.types import Engine, FinishReason, Sampling, Turn


class TokenChunk(BaseModel):
    """A part of a prompt; others than text tokens are refused by their `type`."""

    type: str = "encoded_text"
    tokens: list[int] = []


class PromptChunks(BaseModel):
    """A prompt in parts."""

    chunks: list[TokenChunk]


class WireSampling(BaseModel):
    """The rules by which tokens are drawn. `stop` None: the model's own end of a turn; an empty list: nothing stops."""

    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop: str | list[int] | list[str] | None = None
    temperature: float = Field(default=1.0, ge=0)
    top_k: int = -1
    top_p: float = Field(default=1.0, gt=0, le=1)


class SampleBody(BaseModel):
    """A request for samples; those of its fields that are not here change nothing."""

    sampling_session_id: str
    seq_id: int
    prompt: PromptChunks
    sampling_params: WireSampling
    num_samples: int = Field(default=1, ge=1)
    prompt_logprobs: bool | None = None
    prompt_logprobs_last_n: int | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: Any = None
    prompt_alt_tokens_k: int = 0
    record_stability_info: bool | None = None

    def token_ids(self) -> list[int]:
        """Return the prompt's tokens."""
        wanted = ("topk_prompt_logprobs", "topk_sample_logprobs", "target_prompt_logprobs", "prompt_alt_tokens_k")
        for name in wanted:
            if getattr(self, name):
                raise InvalidInput(f"{name} is not computed here")
        if self.record_stability_info:
            raise InvalidInput(
                "record_stability_info belongs to loss_fn=stable_reinforce, which is not here; set the loop's loss_fn "
                "to importance_sampling, ppo or cispo"
            )
        for chunk in self.prompt.chunks:
            if chunk.type != "encoded_text":
                raise InvalidInput(f"prompt: a chunk of type {chunk.type!r}; only text tokens are sampled from here")
        return [token for chunk in self.prompt.chunks for token in chunk.tokens]


def stop_tokens(folder: Path) -> tuple[int, ...]:
    """Return the tokens that end a turn of a model's, by its folder."""
    for name in ("generation_config.json", "config.json"):
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((folder / name).read_text()).get("eos_token_id")
            if found is not None:
                return tuple(found) if isinstance(found, list) else (int(found),)
    return ()


def read_adapted(folder: Path, base: Path) -> Iterator[Named]:
    """Read a folder's adapter, and return the base's weights with it."""
    return whole_of(read_adapter(folder), base)


class WeightsInTurn:
    """An engine that holds the weights of one folder at a time."""

    def __init__(
        self, engine: Engine, base: Path, read: Callable[[Path, Path], Iterator[Named]] = read_adapted
    ) -> None:
        self.engine, self._base, self._read = engine, base, read
        self._held: str | None = ""
        self._running = 0
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._switch: asyncio.Task[None] | None = None
        self.switches = 0

    @property
    def waiting(self) -> int:
        """The number of requests that wait for their weights."""
        return len(self._waiting)

    @contextlib.asynccontextmanager
    async def holding(self, folder: Path | None) -> AsyncIterator[None]:
        """Have the engine hold a folder's adapter on the base, or the base alone, while the block runs.

        Raises:
            EngineError: the weights could not be read.
        """
        turn = asyncio.get_running_loop().create_future()
        entry = (str(folder or ""), turn)
        self._waiting.append(entry)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave()
            raise
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        self._running -= 1
        self._admit()

    def _admit(self) -> None:
        """Let those run whose weights the engine holds, unless others have waited longer."""
        if self._switch is not None:
            return
        while self._waiting and self._waiting[0][0] == self._held:
            self._start(self._waiting.pop(0)[1])
        if self._waiting and not self._running:
            self._switch = asyncio.ensure_future(self._change(self._waiting[0][0]))

    def _start(self, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            self._running += 1
            turn.set_result(None)

    async def _change(self, folder: str) -> None:
        error: Exception | None = None
        try:
            weights = self._read(Path(folder), self._base) if folder else read_snapshot(self._base)
            await self.engine.publish(weights, self.engine.version() + 1)
            self._held = folder
        except Exception as failure:
            error, self._held = failure, None
        self.switches += 1
        same, self._waiting = (
            [entry for entry in self._waiting if entry[0] == folder],
            [entry for entry in self._waiting if entry[0] != folder],
        )
        for _, turn in same:
            if error is None:
                self._start(turn)
            elif not turn.done():
                turn.set_exception(EngineError(f"the weights can't be sampled from: {error}"))
        self._switch = None
        self._admit()


class SampleAnswers:
    """Answers requests for samples."""

    def __init__(self, weights: WeightsInTurn, folder: Path, config: ServeTrainingConfig) -> None:
        self.weights, self.config = weights, config
        self._stops = stop_tokens(folder)
        self.sampled = 0

    async def sample(self, request_id: str, body: SampleBody, folder: Path | None) -> Answer:
        """Draw a request's samples, and score its prompt where it asks for that."""
        ids = body.token_ids()
        engine, context = self.weights.engine, self.weights.engine.capabilities.max_context
        if not 0 < len(ids) < context:
            raise InvalidInput(f"prompt has {len(ids)} tokens; 1 to {context - 1} fit into the context")
        if body.num_samples > self.config.max_samples:
            raise InvalidInput(f"num_samples={body.num_samples}: at most {self.config.max_samples}")
        settings = list(self._settings(request_id, body, context - len(ids)))
        async with self.weights.holding(folder):
            draws = (self._draw(f"{request_id}:{n}", ids, own) for n, own in enumerate(settings))
            turns, scores = await asyncio.gather(
                asyncio.gather(*draws), engine.score(ids) if body.prompt_logprobs else asyncio.sleep(0)
            )
        self.sampled += sum(len(turn.token_ids) for turn in turns)
        samples = [Sample(t.token_ids, t.logprobs, t.finish_reason is FinishReason.STOP) for t in turns]
        prompt = None if scores is None else _last(scores, body.prompt_logprobs_last_n)
        return Answer(PROTOBUF, write_samples(samples, prompt, min(turn.cached_tokens for turn in turns)))

    def _settings(self, request_id: str, body: SampleBody, room: int) -> Iterator[Sampling]:
        given = body.sampling_params
        stops: Sequence[Any] = [given.stop] if isinstance(given.stop, str) else given.stop or ()
        texts = tuple(stop for stop in stops if isinstance(stop, str))
        tokens = self._stops if given.stop is None else tuple(stop for stop in stops if isinstance(stop, int))
        for number in range(body.num_samples):
            name = f"{request_id if given.seed is None else given.seed}:{number}"
            yield Sampling(
                temperature=given.temperature,
                max_new_tokens=min(given.max_tokens or self.config.max_tokens, room),
                stop=texts,
                stop_token_ids=tokens,
                seed=int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big"),
                top_p=given.top_p,
                top_k=given.top_k if given.top_k > 0 else None,
            )

    async def _draw(self, request_id: str, ids: Sequence[int], sampling: Sampling) -> Turn:
        found: Turn | None = None
        async with contextlib.aclosing(self.weights.engine.generate(request_id, ids, sampling)) as items:  # type: ignore[type-var]
            async for item in items:
                if isinstance(item, Turn):
                    found = item
        if found is None:
            raise EngineError("generating ended without a result")
        return found


def _last(scores: Sequence[float], count: int | None) -> list[float]:
    """The last of a prompt's log-probabilities; NaN for the others, the first token among them."""
    first = 1 if count is None else max(1, len(scores) - count)
    return [math.nan] * first + list(scores[first:])
