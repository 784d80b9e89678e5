"""The engine under check, and the report of a broken promise."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.types import Engine, Sampling, Tokenizer, Turn, collect

PATIENCE = 600.0
"""Seconds that any single wait may take: an engine on a busy CPU is slow, and not wrong."""
LOGPROB_TOLERANCE = 1e-4


@dataclass(slots=True)
class EngineSubject:
    """An engine under examination, and what is known about its model.

    Attributes:
        engine: the engine.
        tokenizer: for stop strings; None leaves their check out.
        reference: log-probabilities of given tokens at a temperature, from another implementation.
        weights: what to publish, the model's own weights; None leaves those checks out.
        samples: how many tokens the statistics of sampling are taken from.
        requests: how many mixed requests determinism is tried with.
        tolerance: by how much log-probabilities may differ.
    """

    engine: Engine
    tokenizer: Tokenizer | None = None
    reference: Callable[[Sequence[int], float], Sequence[float]] | None = None
    weights: Callable[[], Iterable[tuple[str, Any]]] | None = None
    samples: int = 2000
    requests: int = 50
    tolerance: float = LOGPROB_TOLERANCE

    def prompt(self, seed: int, length: int) -> list[int]:
        """Return random token ids."""
        return random.Random(seed).choices(range(self.engine.capabilities.vocab_size), k=length)

    async def turn(self, ids: Sequence[int], sampling: Sampling, name: str = "contract/0") -> Turn:
        """One generation, run to its end."""
        return await collect(self.engine.generate(name, ids, sampling, time.monotonic() + PATIENCE))

    async def greedy(self, ids: Sequence[int], count: int) -> Turn:
        """Generate the most probable continuation."""
        return await self.turn(ids, Sampling(temperature=0.0, max_new_tokens=count))


Check = Callable[[EngineSubject], Awaitable[None]]


def expect(condition: bool, message: str) -> None:
    """Raise where a promise is broken."""
    if not condition:
        raise AssertionError(message)
