"""Checks that the run's engines compute what the trainer does, on a prompt: before the first step, and after each.

The comparison after each publication (`probe_engine`) is short, since it runs at every step. It can't find errors that
grow with length (a different sliding window, rotary scaling, a quantised KV cache). So every engine scores one long
prompt once, as long as a few seconds allow. Its segments are compared one by one, so that an error at far positions is
not averaged away, and the message can say where it begins.

Two correct implementations differ by their precision alone. By how much is measured: transformers' own model in the
engine's precision, and in the trainer's, against float32 (`backends.loaded`); the bound is twice the sum of both.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from agentrl.config import EngineConfig, TrainerConfig, WeightsConfig
from agentrl.config.learners import LearnerConfig
from agentrl.errors import EngineError
from agentrl.models.devices import torch_device
from agentrl.models.loading import read_config
from agentrl.rollout.engines.managed import as_managed
from agentrl.train.forest.forest import Forest
from agentrl.train.trainers import Trainer
from agentrl.train.trainers.loaded import Loaded
from agentrl.train.trainers.proof.subjects import ERROR_FACTOR
from agentrl.train.trainers.reference import bare_forest
from agentrl.types import Engine

FLOOR = 2e-3
"""The least bound, in nats: what two implementations in float32 may differ by."""
TYPICAL = {"bfloat16": 0.1, "float16": 0.02}
"""Transformers' own mean error on random tokens, in nats, for where it was not measured.
SmolLM2-135M has 0.04 to 0.1 in bfloat16; float16 has three bits more."""
OPERATIONS = {"cpu": 3e11, "cuda": 3e14}
"""Floating-point operations that the prompt may cost each side: a few seconds."""
MAX_COLOCATED_TOKENS = 1024
"""The limit where engines and the trainer share a GPU, and the trainer has only a part of its memory."""
MAX_SEGMENTS, MIN_SEGMENT = 8, 32
"""Into how many segments a prompt is divided at most, and the fewest tokens of one."""


@dataclass(frozen=True, slots=True)
class EngineComparison:
    """An engine's difference from the trainer on a prompt.

    Attributes:
        name: the engine.
        means: of each segment, the mean |difference of log-probability|, in nats.
        max: the largest difference.
        tokens: of the prompt.
        bound: of each segment's mean.
    """

    name: str
    means: tuple[float, ...]
    max: float
    tokens: int
    bound: float

    @property
    def passed(self) -> bool:
        """True where every segment is within the bound."""
        return all(mean <= self.bound for mean in self.means)

    def fault(self) -> str:
        """Return the error message of a comparison before the first step."""
        size = self.tokens // len(self.means)
        first = next(number for number, mean in enumerate(self.means) if not mean <= self.bound)
        where = f"tokens {first * size} to {(first + 1) * size}" if len(self.means) > 1 else "it"
        reason = "its layers compute something else, or its weights differ"
        if first:
            reason = (
                f"the {first * size} before agree, so it is something that changes with the length: a sliding window, "
                "rotary scaling, a quantised KV cache"
            )
        return (
            f"{self.name} and the trainer disagree before the first step: on a prompt of {self.tokens} tokens the mean "
            f"|Δ log-probability| of {where} is {self.means[first]:.3g} nats, over {self.bound:.3g}; {reason}. "
            "weights.start_bound=X allows more, weights.start_tokens=0 skips the comparison"
        )

    def __str__(self) -> str:
        return (
            f"engine and trainer agree on a prompt of {self.tokens} tokens: mean |Δ log-probability| at most "
            f"{max(self.means):.2g} nats (bound {self.bound:.2g}), largest {self.max:.2g}"
        )


async def compare_engine(
    engine: Engine, trainer: Trainer, own: LearnerConfig, base: Path, loaded: Loaded | None = None
) -> str | None:
    """Score the long prompt on every engine and on the trainer, with the same weights.

    `loaded`, the comparison of the trainer with the model's weights in `base`, has transformers' own error.

    Returns:
        The result as a line; None where nothing is compared.

    Raises:
        EngineError: an engine is over the bound; the message has the numbers, where it begins, and likely causes. Or
            none answered.
    """
    capabilities, text = engine.capabilities, read_config(base).get_text_config()
    weights = own.weights
    length = prompt_length(weights, own.trainer, own.engine, text, capabilities.max_context - 1, own.fleet.colocated)
    bound = difference_bound(weights, own.trainer, own.engine, loaded)
    if length < 2 or not capabilities.score:
        return None
    results = await compare(engine, trainer, length, bound, MAX_SEGMENTS)
    if not results:  # a fleet leaves out engines that fail meanwhile
        raise EngineError(
            f"no engine scored the prompt of {length} tokens on which it is compared with the trainer: each failed, or "
            f"took over weights.timeout={weights.timeout:g} s; weights.start_tokens=N shortens the prompt, 0 "
            "skips the comparison"
        )
    for result in results:
        if not result.passed:
            raise EngineError(result.fault())
    line = str(max(results, key=lambda result: max(result.means)))
    window = getattr(text, "sliding_window", None)
    beyond = f"; its sliding window of {window} tokens was not reached" if window and window >= length else ""
    return line + beyond


async def probe_engine(engine: Engine, trainer: Trainer, tokens: int, bound: float) -> dict[str, float]:
    """Score the probe prompt on every engine and on the trainer.

    Args:
        engine: the run's.
        trainer: with the weights that were published.
        tokens: of the prompt; 0 compares nothing.
        bound: of an engine's mean |log-probability difference|, in nats.

    Returns:
        probe/abs_mean and probe/abs_max, over all engines; nothing where there is no probe, or where the engines that
        took the weights have died since.

    Raises:
        EngineError: an engine is over the bound.
    """
    length = min(tokens, engine.capabilities.max_context - 1)
    if length < 2 or not engine.capabilities.score:
        return {}
    results = await compare(engine, trainer, length, bound)
    for result in results:
        if not result.passed:
            raise EngineError(
                f"{result.name} and the trainer disagree about version {trainer.version}: mean |Δ log-probability| "
                f"{result.means[0]:.3g} on a probe of {length} tokens is over weights.probe_bound={bound:g}"
            )
    if not results:
        return {}
    means, largest = zip(*((result.means[0], result.max) for result in results), strict=True)
    return {"probe/abs_mean": max(means), "probe/abs_max": max(largest)}


async def compare(
    engine: Engine, trainer: Trainer, length: int, bound: float, segments: int = 1
) -> list[EngineComparison]:
    """Score a prompt of so many tokens on the trainer and on every engine that answers, in at most so many segments."""
    ids = prompt(length, engine.capabilities.vocab_size)
    (logp,) = await asyncio.to_thread(trainer.logprobs, [path_forest(ids)])
    own = logp.tolist()[1:]
    results = []
    for name, scored in (await as_managed(engine).scores(ids)).items():
        differences = [abs(a - b) for a, b in zip(scored[1:], own, strict=True)]
        size = -(-len(differences) // min(segments, max(1, len(differences) // MIN_SEGMENT)))
        means = tuple(fmean(differences[start : start + size]) for start in range(0, len(differences), size))
        results.append(EngineComparison(name, means, max(differences), length, bound))
    return results


def prompt(length: int, vocab_size: int) -> list[int]:
    """The probe: the same random tokens for the same vocabulary."""
    return random.Random(vocab_size).choices(range(vocab_size), k=length)


def path_forest(ids: Sequence[int]) -> Forest:
    """One path as a forest, every token but the first to be scored, at temperature 1."""
    place = torch.arange(len(ids))
    return bare_forest(
        torch.tensor(ids), place, torch.full_like(place, len(ids)), place - 1, weight=(place > 0).float()
    )


def difference_bound(
    weights: WeightsConfig, trainer: TrainerConfig, engine: EngineConfig, loaded: Loaded | None
) -> float:
    """The bound of a segment's mean |difference|, in nats."""
    if weights.start_bound is not None:
        return weights.start_bound
    return _compute_bound(ERROR_FACTOR, trainer.dtype, engine.dtype, loaded)


def probe_bound(weights: WeightsConfig, trainer: TrainerConfig, engine: EngineConfig, loaded: Loaded | None) -> float:
    """The bound of the probe's mean |difference| after each publication, in nats.

    Below float32 it is twice that of the start: the error was measured before the weights changed, and on more tokens.
    """
    if weights.probe_bound is not None:
        return weights.probe_bound
    sent = weights.dtype or engine.dtype
    return _compute_bound(2 * ERROR_FACTOR, trainer.dtype, sent if engine.dtype == "float32" else engine.dtype, loaded)


def _compute_bound(factor: float, trainer: str, engine: str, loaded: Loaded | None) -> float:
    """A multiple of transformers' own error in two precisions, measured where it was; in float32 the floor."""
    measured = loaded.own if loaded else {}
    return max(FLOOR, factor * sum(measured.get(low, TYPICAL[low]) for low in (trainer, engine) if low in TYPICAL))


def prompt_length(
    weights: WeightsConfig, trainer: TrainerConfig, engine: EngineConfig, text: Any, context: int, colocated: bool
) -> int:
    """Return a number of tokens, unless set as many as time, the engine's context and the trainer's budget allow."""
    if weights.start_tokens is not None:
        return min(weights.start_tokens, context)
    devices = {torch_device(trainer.device, "trainer.device"), torch_device(engine.device, "engine.device")}
    most = min(context, trainer.token_budget, MAX_COLOCATED_TOKENS if colocated else context)
    affordable = OPERATIONS["cpu" if "cpu" in devices else "cuda"]
    while most > MIN_SEGMENT and _operations(text, most) > affordable:
        most = most * 7 // 8
    return most


def _operations(text: Any, tokens: int) -> float:
    """About the operations of a pass: matrix products of dense layers (12 width^2 each), attention, the head."""
    width, layers = text.hidden_size, text.num_hidden_layers
    return float(tokens * (layers * (24 * width**2 + 4 * width * tokens) + 2 * width * text.vocab_size))
