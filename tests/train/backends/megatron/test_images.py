"""Models that see learn on Megatron's ranks as on the torch trainer, with tower and projector on the first stage."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import zeros_like

from agentrl.config import AlgoConfig, LoraConfig
from agentrl.errors import ConfigError
from agentrl.models.vision import is_fixed, load_lm, of_vision
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.megatron.layout import layout_of
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.megatron.trainer import MegatronTrainer, model_settings
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.backends.megatron.batches import CLIP, WORK, distances, run, sizes
from tests.train.backends.megatron.world import World
from tests.train.trees import as_group, leaf_credit
from tests.vision.models import tiny_vlm
from tests.vision.test_forest_images import session
from tests.vision.test_ranks_images import text_session

PP2, TP2 = {"pipeline_parallel": 2}, {"tensor_parallel": 2, "sequence_parallel": False}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "PP2": PP2,
    "TP2": TP2,
    "TP2 sharing the sequence": {"tensor_parallel": 2, "sequence_parallel": True},
    "CP2": {"context_parallel": 2},
    "DP2": {"ranks": 2},
}


def batch(seed: int) -> list[Forest]:
    """Forests of two sessions with images, in one of which an image comes in the second turn, and of two without."""
    rng = random.Random(seed)
    seen = [session(name, number, number + 5 if number else None, rng) for number, name in enumerate("ab")]
    sessions = [*seen, *(text_session(name, rng) for name in "cd")]
    credit, _ = leaf_credit(rng, sessions)
    return pack([as_group([one], one.id) for one in sessions], credit, 120)


def torch_trainer(folder: Path, algo: AlgoConfig, **settings: Any) -> TorchTrainer:
    return TorchTrainer(folder, TorchConfig(device="cpu", threads=1, **settings), algo)


def two_steps(
    world: World, jobs: Sequence[tuple[str, str | None, str | None, MegatronConfig]], batches: Sequence[Any], **of: Any
) -> list[Any]:
    layout = layout_of(MegatronConfig(**of), model_settings(Path(jobs[0][0])))
    algo = AlgoConfig(name="reinforce", lr=1e-2)
    found = world.run(f"{WORK}:resumptions", jobs, batches, layout, algo, size=layout.ranks, **sizes(layout))[0]
    assert isinstance(found, list)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vlm(tmp_path_factory.mktemp("vlm"))


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_log_probabilities_and_every_gradient_are_those_of_the_torch_trainer(
    layout: str, world: World, folder: Path
) -> None:
    """Also where a rank holds no image, and where one holds a part of an image's tokens."""
    forests, trainer = batch(3), torch_trainer(folder, CLIP)
    logps = trainer.logprobs(forests)
    loss = sum(trainer.backward(trainer.prepare(forest)) for forest in forests)
    want = {n: zeros_like(p) if p.grad is None else p.grad for n, p in trainer.model.named_parameters()}
    got = run(world, "gradients", folder, forests, distributed_optimizer=False, **LAYOUTS[layout])
    assert got["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-7)
    for ours, theirs in zip(got["logps"], logps, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-5
    assert sum(1 for name in want if of_vision(name) and want[name].norm() > 1e-6) > 20, "tower and projector learn"
    assert not {name: far for name, far in distances(got["gradients"], want).items() if not far < 1e-5}


@pytest.mark.slow
@pytest.mark.parametrize("vision", ["projector", "frozen"])
def test_a_tower_that_is_not_trained_stays_and_one_has_its_own_learning_rate(
    vision: str, world: World, folder: Path
) -> None:
    algo, batches = AlgoConfig(name="reinforce", lr=1e-3), [batch(0), batch(1)]
    settings = {"vision": vision, "vision_lr": 5e-3}
    trainer = torch_trainer(folder, algo, **settings)
    began = {name: tensor.clone() for name, tensor in trainer.weights()}
    for forests in batches:
        trainer.step(forests)
    got = run(world, "steps", folder, batches, algo=algo, **PP2, **settings)["weights"]
    for name, tensor in trainer.weights():
        assert torch.allclose(got[name], tensor, rtol=0, atol=2e-5), name
        assert not is_fixed(name, vision) or torch.equal(got[name], began[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["PP2", "TP2"])
def test_a_run_is_resumed_bit_for_bit_with_its_tower(layout: str, world: World, folder: Path, tmp_path: Path) -> None:
    settings = LAYOUTS[layout]
    config, state = MegatronConfig(**settings), str(tmp_path / "state")
    jobs = [(str(folder), None, state, config), (str(folder), state, None, config)]
    straight, resumed = two_steps(world, jobs, [batch(0), batch(1)], **settings)
    assert any(of_vision(name) for name in straight)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_export_holds_the_tower_and_loads_in_transformers(folder: Path, tmp_path: Path) -> None:
    trainer = MegatronTrainer(folder, MegatronConfig(timeout=200), AlgoConfig(name="reinforce", lr=1e-2))
    try:
        trainer.step(batch(0))
        trainer.export(tmp_path / "export")
        held = {name: tensor.clone() for name, tensor in trainer.weights()}
    finally:
        trainer.close()
    before, after = (load_lm(one, torch.float32, "eager").state_dict() for one in (folder, tmp_path / "export"))
    assert held.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in held.items())
    assert sum(of_vision(n) and not torch.equal(before[n], tensor) for n, tensor in after.items()) > 20


def test_an_adapter_of_a_model_that_sees_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="adapters of vision-language models"):
        MegatronTrainer(folder, MegatronConfig(), AlgoConfig(), lora=LoraConfig(rank=2))
