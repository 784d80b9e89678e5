"""The local engine sees what the trainer sees, encodes an image once, and shares prefixes where pixels are the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agentrl.attachments import images
from agentrl.config import AlgoConfig, EngineConfig
from agentrl.errors import InvalidInput
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.engines.local.images import SeenPrompt
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Placed, Sampling, Session, Status, Task, collect
from tests.train.trees import as_group, environment_node, leaf_credit, sampled_node
from tests.vision.models import FAMILIES, IMAGE, PER_FRAME, drawn, prompt, tiny_vlm

TEXT = 20


def recorded(family: str, seed: int, turn: Sequence[int], logprobs: Sequence[float]) -> Session:
    made = Session(f"s{seed}", Task(id="t"), group="g", status=Status.COMPLETED, reward=1.0)
    root = environment_node(made, None, prompt(1, 2, TEXT))
    root.attachments[images.NAME] = drawn(seed, 2, family).pack()
    sampled_node(made, root.id, turn, opening=(), logprobs=logprobs)
    return made


def test_a_prompt_is_computed_in_pieces_that_cut_no_image_whose_tokens_see_each_other() -> None:
    last = np.array([0, 4, 4, 4, 4, 5, 7, 7, 8])
    seen = SeenPrompt([9] * 9, (), None, last)
    for size in range(1, 10):
        start, pieces = 0, []
        while start < 9:
            count = seen.without_cut(start, min(size, 9 - start))
            pieces.append(range(start, start + count))
            start += count
        assert all(last[piece].max() == piece[-1] for piece in pieces)
        assert max(map(len, pieces)) <= max(size, 4)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
async def test_the_engine_agrees_with_the_trainer_before_and_after_a_publication(family: str, tmp_path: Path) -> None:
    folder = tiny_vlm(tmp_path / "vlm", family)
    engine = LocalEngine(folder, EngineConfig(device="cpu", dtype="float32"))
    trainer = TorchTrainer(folder, TorchConfig(device="cpu", dtype="float32"), AlgoConfig(name="reinforce", lr=1e-2))
    store = engine.runner.images
    assert store is not None
    assert engine.capabilities.inputs == {images.NAME}
    ids, sampling = prompt(1, 2, TEXT), Sampling(max_new_tokens=6, seed=3)
    try:
        for version in range(2):
            sessions, turns = [], []
            for seed in (1, 2):
                attached: list[Placed] = [(0, images.NAME, drawn(seed, 2, family).pack())]
                for sample in range(2):
                    turn = await collect(engine.generate(f"{seed}/{sample}", ids, sampling, attached=attached))
                    turns.append(turn)
                assert turns[-1].token_ids == turns[-2].token_ids
                assert turns[-1].cached_tokens > TEXT + 1 + PER_FRAME, "the same image is computed once"
                assert turns[-2].logprobs == turns[-1].logprobs
                scored = await engine.score([*ids, *turn.token_ids], attached=attached)
                assert scored[len(ids) :] == pytest.approx(turn.logprobs, abs=1e-5)
                sessions.append(recorded(family, seed, turn.token_ids, turn.logprobs))
            assert turns[2].cached_tokens <= TEXT + 1, "another image is another prefix"
            assert store.encoded == 4 * (version + 1)
            credit, _ = leaf_credit(random.Random(1), sessions)
            forests = pack([as_group(sessions, "g")], credit, 1_000)
            [forest], [logp] = forests, trainer.logprobs(forests)
            trained = forest.weight > 0
            assert float((logp - forest.behaviour_logp)[trained].abs().max()) < 1e-5
            trainer.step(forests)
            await engine.publish(trainer.weights(), version + 1)
        with pytest.raises(InvalidInput, match="need 8 placeholder tokens"):
            await engine.score([3, IMAGE], attached=attached)
        other = replace(drawn(1, 1, family), grids=((1, 2),))
        with pytest.raises(InvalidInput, match="an image of"):
            await engine.score(ids, attached=[(0, images.NAME, other.pack())])
    finally:
        await engine.close()
