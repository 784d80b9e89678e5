"""Modules that are trained in full beside an adapter are saved, resumed, handed out and refused as a part of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.config import AlgoConfig, EngineConfig, LoraConfig, TrainerConfig
from agentrl.errors import ConfigError, InvalidWeights
from agentrl.models.adapters import SavedAdapter, read_adapter
from agentrl.overrides import validate
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.weights.buckets import ADAPTER, WEIGHTS, Weights
from agentrl.rollout.weights.snapshot import read_folder, write_part
from agentrl.train.algorithms import make_algorithm
from agentrl.train.driver.setup import complete
from agentrl.train.plan.preflight import check_training
from agentrl.train.trainers import check_trainer
from agentrl.train.trainers.fsdp.settings import FsdpConfig
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from tests.train.backends.test_torch import forests_for
from tests.train.lora.test_lora import learn, same, trainer_on, weights

FULL = ("*.embed_tokens",)


@pytest.mark.slow
def test_modules_in_full_learn_beside_an_adapter_and_a_saved_trainer_goes_on_bit_for_bit(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """Its reference and its average have them too; everything else of the base stays as it is."""
    algo = AlgoConfig(lr=1e-2, kl_coef=0.1, entropy_coef=0.1)
    settings: dict[str, Any] = {"targets": ("*.q_proj",), "full": FULL}
    averaging = TorchConfig(device="cpu", average_decay=0.9)
    first, again = (trainer_on(tiny_llama, algo, averaging, **settings) for _ in range(2))
    before, forests = weights(first), forests_for(algo, 3)
    began = first.logprobs(forests)
    learn(first)
    learned = weights(first)
    changed = {name for name in before if not torch.equal(before[name], learned[name])}
    embeddings = "model.embed_tokens.weight"
    assert changed == {name for name in before if name.endswith("q_proj.weight")} | {embeddings}
    for one, other in zip(first.logprobs(forests, reference=True), began, strict=True):
        assert torch.equal(one, other)
    first.save(tmp_path / "trainer")
    saved = torch.load(tmp_path / "trainer", weights_only=True)["model"]
    assert {name for name in saved if "lora" not in name} == {embeddings}
    again.load(tmp_path / "trainer")
    for trainer in (first, again):
        trainer.step(forests_for(algo, 4))
    assert same(weights(first), weights(again))
    assert same(dict(first.averaged_weights()), dict(again.averaged_weights()))
    first.export(tmp_path / "model")
    from_folder = trainer_on(tiny_llama, algo, adapter=str(tmp_path / "model" / "adapter"))
    assert same(weights(from_folder), weights(first))
    from_folder.begin(AlgoConfig(name="sft", lr=1e-2), 2, whole=True)
    assert same(weights(from_folder), weights(first))


@pytest.mark.slow
def test_an_engine_has_the_bits_of_the_whole_weights_from_an_adapter_with_modules_in_full(
    tiny_llama: Path, tmp_path: Path
) -> None:
    trainer = learn(trainer_on(tiny_llama, rank=1, full=FULL), 1)

    async def run() -> None:
        whole, engine, other = (LocalEngine(tiny_llama, EngineConfig(device="cpu")) for _ in range(3))
        given = Weights.of(trainer)
        part: SavedAdapter = given.parts[ADAPTER]
        await engine.publish(given, 1)
        assert given.moved == {ADAPTER: part.nbytes}
        every = Weights(trainer.weights)
        await whole.publish(every, 1)
        assert part.nbytes < every.moved[WEIGHTS]
        await other.publish(read_folder(write_part(part.copied(), tmp_path / "part")), 1)
        assert await engine.checksum() == await whole.checksum() == await other.checksum()
        for each in (whole, engine, other):
            await each.close()
        before = part.digest()
        assert read_adapter(tmp_path / "part").digest() == before
        assert part.copied().nbytes == part.nbytes
        learn(trainer, 1)
        assert trainer.parts()[ADAPTER].digest() != before

    asyncio.run(run())


@pytest.mark.slow
def test_adapters_that_lack_their_modules_or_untie_their_base_are_refused(tiny_llama: Path, tmp_path: Path) -> None:
    trainer = trainer_on(tiny_llama, full=FULL)
    part = trainer.parts()[ADAPTER]
    assert set(part.full) == {"model.embed_tokens.weight", "lm_head.weight"}  # PEFT ties none of the modules it saves
    folder = tmp_path / "adapter"

    def refused(full: dict[str, Tensor], words: str) -> None:
        write_part(SavedAdapter(part.shape, part.matrices, full), folder)
        with pytest.raises(InvalidWeights, match=words):
            trainer_on(tiny_llama, adapter=str(folder))

    (name, tensor), (head, _) = part.full.items()
    refused({name: tensor}, "another 'lm_head.weight': its base ties them")
    refused({name: tensor, head: tensor + 1}, "its base ties them")
    refused({name: tensor[:-1], head: tensor[:-1]}, "belongs to another base")
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(settings | {"modules_to_save": ["lm_head", "score"]}))
    with pytest.raises(InvalidWeights, match=r"lacks the tensors of 'score'"):
        read_adapter(folder)


@pytest.mark.slow
def test_what_does_not_train_or_compute_modules_in_full_says_what_does(tiny_llama: Path, tmp_path: Path) -> None:
    """By pattern, and where the folder that training begins with has them."""
    write_part(trainer_on(tiny_llama, full=FULL).parts()[ADAPTER].copied(), tmp_path / "adapter")
    configs: list[TrainerConfig] = [FsdpConfig(ranks=1), MegatronConfig()]
    for config in configs:
        check_trainer(config, make_algorithm(AlgoConfig()), LoraConfig(adapter=str(tmp_path / "adapter")))
        check_trainer(config, make_algorithm(AlgoConfig()), LoraConfig(rank=4, experts=True))
    with pytest.raises(ConfigError, match=r"lora\.full: '\*\.wte' matches none of the model's \d+ modules"):
        trainer_on(tiny_llama, full=("*.wte",))
    with pytest.raises(ConfigError, match="full is the folder's"):
        validate({"adapter": "x", "full": ["lm_head"]}, LoraConfig)
    config = complete(
        {"env": "calculator", "engine": {"name": "sglang", "adapter_rank": 4}, "lora": {"rank": 4, "full": FULL}}
    )
    with pytest.raises(
        ConfigError, match=r"engine\.adapter_rank=4: .*with engine\.adapter_rank=0 it gets whole weights"
    ):
        check_training(config)
