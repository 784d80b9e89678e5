"""Two ranks learn from images as one process does, also where one of them has none."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from agentrl.config import AlgoConfig
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.fsdp.settings import FsdpConfig
from agentrl.train.trainers.fsdp.trainer import FsdpTrainer
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Session, Status, Task
from tests.train.trees import as_group, environment_node, leaf_credit, sampled_node
from tests.vision.models import tiny_vlm
from tests.vision.test_forest_images import session


def text_session(name: str, rng: random.Random) -> Session:
    made = Session(name, Task(id="t"), group="g", status=Status.COMPLETED, reward=rng.random())
    root = environment_node(made, None, [5, 6, 7])
    sampled_node(made, root.id, [rng.randrange(3, 40) for _ in range(9)])
    return made


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_two_ranks_are_one_process(tmp_path: Path) -> None:
    """Found: bit for bit in the first step (a sum of two gradients has no order), 2e-8 in the second's weights."""
    folder, rng, algo = tiny_vlm(tmp_path, "qwen2_5_vl"), random.Random(3), AlgoConfig(name="reinforce", lr=1e-3)
    seen = [session(name, number, number + 5, rng, "qwen2_5_vl") for number, name in enumerate("ab")]
    plain = [text_session(name, rng) for name in "cd"]
    ours = FsdpTrainer(folder, FsdpConfig(ranks=2, device="cpu", threads=1, timeout=300), algo)
    theirs = TorchTrainer(folder, TorchConfig(device="cpu", threads=1), algo)
    try:
        for sessions in ([*seen, *plain], [seen[0], plain[0]]):
            credit, _ = leaf_credit(rng, sessions)
            forests = pack([as_group([one], one.id) for one in sessions], credit, 120)
            for one, other in zip(ours.logprobs(forests), theirs.logprobs(forests), strict=True):
                assert float((one - other).abs().max()) < 1e-6, "the second time behind a step"
            found, wanted = ours.step(forests), theirs.step(forests)
            assert found["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-6)
        expected = dict(theirs.weights())
        for name, tensor in ours.weights():
            assert torch.allclose(tensor, expected[name], rtol=0, atol=1e-6), name
    finally:
        ours.close()
