"""Adapters on ranks that share their base: they learn as one process does, and are saved, handed out and resumed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.config import AlgoConfig, LoraConfig
from agentrl.errors import InvalidInput
from agentrl.models.adapters import SavedAdapter, read_adapter
from agentrl.rollout.weights.buckets import ADAPTER
from agentrl.train.algorithms import make_algorithm
from agentrl.train.forest.packing import pack
from agentrl.train.trainers import AdapterTrainer, Averager, make_trainer
from agentrl.train.trainers.fsdp.settings import FsdpConfig
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import random_forests
from tests.train.test_every_algorithm import NAMES, sessions, settings_of

LORA = LoraConfig(rank=3, rslora=True)
IN_FULL = LoraConfig(rank=3, rslora=True, full=("*.embed_tokens", "model.norm", "*.layers.0.input_layernorm"))
ALGO = AlgoConfig(lr=1e-2, kl_coef=0.1, epochs=2, entropy_coef=0.01, weight_decay=0.1)
IMITATION = AlgoConfig(name="sft", lr=1e-3)


def fsdp(folder: Path, ranks: int, lora: LoraConfig | None = LORA, **settings: Any) -> Any:
    config = FsdpConfig.model_validate({"ranks": ranks, "timeout": 350, "average_decay": 0.5, **settings})
    return make_trainer(folder, config, ALGO, total_steps=8, lora=lora)


def on_torch(folder: Path, lora: LoraConfig = LORA) -> Any:
    return make_trainer(folder, TorchConfig(device="cpu", average_decay=0.5), ALGO, total_steps=8, lora=lora)


def close(one: dict[str, Tensor], other: dict[str, Tensor], far: float = 1e-5) -> bool:
    return one.keys() == other.keys() and all(torch.allclose(one[n], t, atol=far) for n, t in other.items())


def matrices(trainer: Any) -> dict[str, Tensor]:
    return by_name(trainer.parts()[ADAPTER])


def by_name(adapter: SavedAdapter) -> dict[str, Tensor]:
    pairs = {f"{name}.{place}": m.detach() for name, pair in adapter.matrices.items() for place, m in enumerate(pair)}
    return pairs | {name: tensor.detach() for name, tensor in adapter.full.items()}


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_two_ranks_train_an_adapter_as_one_process_does_also_after_a_warm_start(tmp_path: Path) -> None:
    """A rank without a tree of its own, a reference, an average, two epochs, layers that are computed again.

    Norms and the embedding, whose base ties it to the head, are trained in full beside it.
    """
    folder = zoo.write("smollm2", tmp_path / "model")
    ours, theirs = fsdp(folder, 2, IN_FULL, recompute="full"), on_torch(folder, IN_FULL)
    assert isinstance(ours, AdapterTrainer)
    assert isinstance(ours, Averager)
    try:
        for step in range(2):
            forests = random_forests(step, trees=1 + step, old=False)
            found, wanted = ours.step(forests), theirs.step(forests)
            assert found == {name: pytest.approx(value, rel=1e-4, abs=1e-5) for name, value in wanted.items()}
        assert close(matrices(ours), matrices(theirs))
        assert {"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"} <= matrices(ours).keys()
        assert close(dict(ours.weights()), dict(theirs.weights()))
        assert close(dict(ours.averaged_weights()), dict(theirs.averaged_weights()))
        pairs = (each.logprobs(forests, reference=True) for each in (ours, theirs))
        assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(*pairs, strict=True))
        ours.export(tmp_path / "out")
        exported = by_name(read_adapter(tmp_path / "out" / "adapter"))
        assert all(torch.equal(exported[name], m) for name, m in matrices(ours).items())
        ours.save(tmp_path / "adapter")

        for trainer in (ours, theirs):  # the base becomes another
            trainer.begin(IMITATION, 2, whole=True)
            trainer.step(random_forests(3, old=False))
            assert trainer.parts() == {}
            trainer.begin(ALGO, 8)
            trainer.step(random_forests(4, old=False))
            assert trainer.parts() == {}
        near = 3e-4  # AdamW makes whole steps of what rounding leaves of a gradient
        assert close(dict(ours.weights()), dict(theirs.weights()), near)
        ours.save(tmp_path / "warm")
        saved, after = dict(ours.weights()), ours.step(random_forests(7, old=False))
        ours.load(tmp_path / "adapter")  # on the folder's base again
        assert all(torch.equal(exported[name], m) for name, m in matrices(ours).items())
        ours.load(tmp_path / "warm")
        assert ours.step(random_forests(7, old=False)) == after
    finally:
        ours.close()
    resumed = fsdp(folder, 1, IN_FULL)
    try:
        resumed.load(tmp_path / "warm")
        assert all(torch.equal(saved[name], tensor) for name, tensor in resumed.weights())
        again = resumed.step(random_forests(7, old=False))
        assert again == {name: pytest.approx(value, rel=1e-4, abs=1e-5) for name, value in after.items()}
    finally:
        resumed.close()
    whole = fsdp(folder, 1, None)
    try:
        with pytest.raises(InvalidInput, match=r"written with lora\.rank=3"):
            whole.load(tmp_path / "adapter")
    finally:
        whole.close()


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_two_ranks_train_experts_in_one_tensor_as_one_process_does(tmp_path: Path) -> None:
    folder, lora = zoo.write("qwen3_moe", tmp_path / "model"), LoraConfig(rank=2, experts=True, full=("lm_head",))
    ours, theirs = fsdp(folder, 2, lora), on_torch(folder, lora)
    try:
        for step in range(2):
            forests = random_forests(step, old=False)
            found, wanted = ours.step(forests), theirs.step(forests)
            assert found == {name: pytest.approx(value, rel=1e-4, abs=1e-5) for name, value in wanted.items()}
        near = 1e-4  # AdamW makes whole steps of what rounding leaves of a gradient
        assert close(dict(ours.weights()), dict(theirs.weights()), near)
        ours.begin(IMITATION, 2, whole=True)  # merged
        assert close(dict(ours.weights()), dict(theirs.weights()), near)
    finally:
        ours.close()


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_every_loss_has_the_gradient_of_one_process_on_ranks_with_an_adapter(tiny_llama: Path) -> None:
    """At a rate that hardly moves the weights, so that each is compared by itself."""
    ours, theirs = fsdp(tiny_llama, 2), on_torch(tiny_llama)
    try:
        for trainer in (ours, theirs):
            trainer.step(random_forests(0, old=False))  # B is not 0 any more
        for name in (*(name for name in NAMES if name.startswith("loss=")), "ppo", "sft", "distill"):
            algo = settings_of(name).model_copy(update={"lr": 1e-7})
            algorithm = make_algorithm(algo)
            groups = sessions(algorithm.needs)
            values = {(s.id, n.id): [0.3] * len(n.token_ids) for g in groups for s in g.sessions for n in s.nodes}
            credit = algorithm.credit(groups, values if algorithm.needs.values else None)
            forests = pack(groups, credit, 48, sequence=algorithm.sequence, fields=algorithm.fields)
            found = []
            for trainer in (ours, theirs):
                trainer.begin(algo, 8)
                found.append(trainer.step(copy.deepcopy(forests)))
            for metric in ("loss", "grad_norm"):
                assert found[0][metric] == pytest.approx(found[1][metric], rel=1e-4, abs=1e-6), name
    finally:
        ours.close()
