"""What a warm start leaves is the adapter's base: kept once, named by checkpoints, and sent to engines once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import agentrl
from agentrl.config import AlgoConfig, LoraConfig, TrainerConfig
from agentrl.errors import InvalidInput
from agentrl.train.record.verify import verify
from agentrl.train.trainers import AdapterTrainer, make_trainer
from agentrl.train.trainers.fsdp.settings import FsdpConfig
from agentrl.train.trainers.megatron.settings import MegatronConfig
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import random_forests
from tests.train.lora.test_lora import learn, same, trainer_on, weights

SMALL: dict[str, Any] = {
    **{"warm_start.steps": 2, "warm_start.demos": 8, "warm_start.batch": 4, "checkpoint_every": 1, "seed": 0},
    **{"rollout.groups_per_step": 2, "rollout.group_size": 4, "rollout.turn_tokens": 16, "eval.tasks": 2},
    **{"lora.rank": 2, "algo.entropy_coef": 0.1},
}


@pytest.mark.slow
def test_a_trainer_goes_on_from_the_adapter_and_the_base_that_lies_beside_it(tiny_llama: Path, tmp_path: Path) -> None:
    """Also where both were moved, and where the trainer that loads was on another base; a changed base is refused."""
    first = trainer_on(tiny_llama)
    first.save(tmp_path / "checkpoints" / "begin" / "trainer")
    began = weights(first)
    first.begin(AlgoConfig(name="sft", lr=1e-2), 2, whole=True)
    learn(first, 1).export(tmp_path / "checkpoints" / "base")
    first.set_base(tmp_path / "checkpoints" / "base")
    first.begin(AlgoConfig(lr=1e-2), 8)
    learn(first, 1).save(tmp_path / "checkpoints" / "step" / "trainer")
    (part,) = first.parts().values()
    assert part.shape.base == str(tmp_path / "checkpoints" / "base")
    saved = torch.load(tmp_path / "checkpoints" / "step" / "trainer", weights_only=True)["model"]
    assert all("lora" in name for name in saved)
    shutil.move(tmp_path / "checkpoints", tmp_path / "moved")
    again = trainer_on(tiny_llama)
    again.load(tmp_path / "moved" / "step" / "trainer")
    assert same(weights(again), weights(first))
    assert same(weights(learn(again, 1)), weights(learn(first, 1)))
    again.load(tmp_path / "moved" / "begin" / "trainer")
    assert same(weights(again), began)
    shutil.copy(tiny_llama / "model.safetensors", tmp_path / "moved" / "base" / "model.safetensors")
    with pytest.raises(InvalidInput, match=r"is not in .*moved/base, or is another"):
        again.load(tmp_path / "moved" / "step" / "trainer")


@pytest.mark.slow
@pytest.mark.parametrize("config", [FsdpConfig(ranks=1), MegatronConfig()], ids=lambda each: each.name)
def test_ranks_go_on_from_the_base_beside_their_checkpoint_too(config: TrainerConfig, tmp_path: Path) -> None:
    if config.name == "megatron":
        pytest.importorskip("megatron.core")
    folder, algo = zoo.write("smollm2", tmp_path / "model"), AlgoConfig(lr=1e-2)
    first, again = (make_trainer(folder, config, algo, total_steps=4, lora=LoraConfig(rank=2)) for _ in range(2))
    try:
        assert isinstance(first, AdapterTrainer)
        first.begin(AlgoConfig(name="sft", lr=1e-2), 2, whole=True)
        first.step(random_forests(1, old=False))
        first.export(tmp_path / "run" / "base")
        first.set_base(tmp_path / "run" / "base")
        first.begin(algo, 4)
        first.step(random_forests(2, old=False))
        first.save(tmp_path / "run" / "step" / "trainer")
        (tmp_path / "run").rename(tmp_path / "moved")
        again.load(tmp_path / "moved" / "step" / "trainer")
        assert same(dict(again.weights()), dict(first.weights()))
    finally:
        first.close()
        again.close()


@pytest.mark.slow
def test_a_run_publishes_adapters_also_after_its_warm_start_and_resumes_with_the_base_that_it_kept(
    tmp_path: Path,
) -> None:
    """The run goes on after another process, engine and all, and its record is verified."""
    run = agentrl.train("calculator", steps=1, run_dir=str(tmp_path / "run"), **SMALL)
    run = agentrl.train("calculator", steps=2, resume=str(run.path))
    rows = [json.loads(line) for line in (run.path / "provenance.jsonl").read_text().splitlines()]
    published = [row["published"] for row in rows if "published" in row]
    assert len(published) >= 3
    assert {row["parts"]["adapter"]["bytes"] for row in published} == {49_152}
    assert len({row["parts"]["adapter"]["digest"] for row in published}) == 3  # as it began, and after each step
    assert all(row["probe"] < 1e-4 for row in published), "the engine is not the trainer"
    sizes = {path.name: path.stat().st_size for path in run.path.glob("checkpoints/*/trainer")}
    sizes |= {"base": (run.path / "checkpoints" / "base" / "model.safetensors").stat().st_size}
    assert sizes["trainer"] < sizes["base"]
    report = verify(run.path)
    assert report.passed, list(report.lines())
