"""Supports: what an engine records of a turn's distribution is what the trainer needs to compute the same one."""

from __future__ import annotations

from pathlib import Path

from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.train.driver.fidelity import agreement, random_sessions
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer

BOUND = 1e-5
NARROWINGS = (
    {"top_p": 0.9},
    {"top_k": 8},
    {"min_p": 0.05},
    {"top_k": 50, "top_p": 0.8, "min_p": 0.01, "repetition_penalty": 1.3},
    {"presence_penalty": 0.7, "frequency_penalty": 0.4, "logit_bias": ((5, 2.0), (9, -100.0))},
    {},
)


async def test_tokens_that_are_drawn_from_a_recorded_support_have_the_log_probability_that_the_trainer_computes(
    engine: LocalEngine, folder: Path
) -> None:
    sessions = await random_sessions(engine, 12, concurrency=6, turns=3, narrowings=NARROWINGS)
    drawn = [node for session in sessions for node in session.nodes if node.sampled]
    assert all(all(node.trainable) for node in drawn)
    found = agreement(TorchTrainer(folder), sessions)
    assert found.max <= BOUND
    for session in sessions:
        for node in session.nodes:
            if node.sampling is not None and not node.sampling.full_support:
                del node.attachments["support"]
    assert agreement(TorchTrainer(folder), sessions).max > 0.05, "without the supports it would be another distribution"
