"""Engine against trainer: the same tokens have the same log-probabilities, at temperatures other than 1, too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Chunk, Sampling, Turn
from benchmarks.fidelity import agreement, random_sessions

BOUND = 1e-4


@pytest.mark.slow
async def test_the_local_engine_and_the_trainer_agree(engine: LocalEngine, folder: Path) -> None:
    sessions = await random_sessions(engine, 24, concurrency=8)
    found = agreement(TorchTrainer(folder), sessions)
    assert found.max <= BOUND
    assert found.sessions == 24
    drawn = [node for session in sessions for node in session.nodes if node.sampled]
    assert found.tokens <= sum(sum(node.trainable) for node in drawn) <= found.tokens + 24  # siblings may begin alike
    temperatures = {node.sampling.temperature for node in drawn if node.sampling is not None}
    assert len(temperatures) == 3
    assert len(drawn) == 24 * 3 + 12


async def test_a_disagreement_is_found(engine: LocalEngine, folder: Path) -> None:
    class Forgetful(LocalEngine):
        """Draws every turn at temperature 1, whatever was asked."""

        def __init__(self) -> None:
            pass

        def __getattribute__(self, name: str) -> Any:
            return object.__getattribute__(self, name) if name == "generate" else getattr(engine, name)

        async def generate(
            self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
        ) -> AsyncIterator[Chunk | Turn]:
            async for item in engine.generate(request_id, input_ids, replace(sampling, temperature=1.0), deadline):
                yield item

    found = agreement(TorchTrainer(folder), await random_sessions(Forgetful(), 4))
    assert found.max > 0.01
