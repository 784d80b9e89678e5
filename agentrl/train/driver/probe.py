"""A check after a publication that the engines compute what the trainer does.

Checksums compare engines with each other, but not with the trainer, which holds other tensors (sharded, unfused,
in float32). So both score one prompt. A wrong name mapping, a partly loaded layer or a missing scale changes the
log-probabilities by far more than two implementations of the same model differ.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean

import torch

from agentrl.errors import EngineError
from agentrl.train.forest.forest import Forest
from agentrl.train.trainers import Trainer
from agentrl.types import Engine


async def compare(engine: Engine, trainer: Trainer, tokens: int, bound: float) -> dict[str, float]:
    """Score the probe prompt on every engine and on the trainer.

    Args:
        engine: the run's.
        trainer: with the weights that were published.
        tokens: of the prompt; 0 compares nothing.
        bound: of an engine's mean |log-probability difference|, in nats.

    Returns:
        probe/abs_mean and probe/abs_max, over all engines; nothing where there is no probe.

    Raises:
        EngineError: an engine is over the bound.
    """
    capabilities = engine.capabilities
    length = min(tokens, capabilities.max_context - 1)
    if length < 2 or not capabilities.score:
        return {}
    ids = prompt(length, capabilities.vocab_size)
    own = trainer.logprobs([path_forest(ids)])[0].tolist()
    every = getattr(engine, "scores", None)
    found: dict[str, list[float]] = await every(ids) if every else {capabilities.name: await engine.score(ids)}
    if not found:  # the engines that took the weights have died since
        return {}
    worst = 0.0
    means = []
    for name, scored in found.items():
        differences = [abs(a - b) for a, b in zip(scored[1:], own[1:], strict=True)]
        means.append(fmean(differences))
        worst = max(worst, *differences)
        if not means[-1] <= bound:
            raise EngineError(
                f"{name} and the trainer disagree about version {trainer.version}: mean |Δ log-probability| "
                f"{means[-1]:.3g} on a probe of {length} tokens is over weights.probe_bound={bound:g}"
            )
    return {"probe/abs_mean": max(means, default=0.0), "probe/abs_max": worst}


def prompt(length: int, vocab_size: int) -> list[int]:
    """The probe: the same random tokens for the same vocabulary."""
    return random.Random(vocab_size).choices(range(vocab_size), k=length)


def path_forest(ids: Sequence[int]) -> Forest:
    """One path as a forest, every token but the first to be scored, at temperature 1."""
    count = len(ids)
    place, zeros = torch.arange(count), torch.zeros(count)
    weight = torch.ones(count)
    weight[0] = 0.0
    return Forest(
        token_ids=torch.tensor(list(ids)),
        position=place,
        end=torch.full((count,), count),
        node_id=torch.zeros(count, dtype=torch.int64),
        session_id=torch.zeros(count, dtype=torch.int64),
        agent_id=torch.zeros(count, dtype=torch.int64),
        weight=weight,
        advantage=zeros,
        temperature=torch.ones(count),
        behaviour_logp=zeros,
        version=torch.full((count,), -1),
        predictor=place[:-1],
        target=place[1:],
        sessions=("probe",),
    )
