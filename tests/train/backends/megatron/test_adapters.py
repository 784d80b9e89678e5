"""Adapters under Megatron's layouts: the gradients, matrices and merged weights of the torch trainer's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from agentrl.config import AlgoConfig, LoraConfig
from agentrl.models.adapter_merge import merge_adapter
from agentrl.models.adapters import SETTINGS, WEIGHTS
from agentrl.models.loading import load_causal_lm
from agentrl.rollout.weights.buckets import ADAPTER
from agentrl.train.trainers import make_trainer
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.megatron.trainer import MegatronTrainer
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.backends.megatron.batches import CLIP, distances, random_forests, run
from tests.train.backends.megatron.test_against_torch import LAYOUTS
from tests.train.backends.megatron.world import World

FORESTS = random_forests(seed=3)
ATTENTION = ("*.self_attn.q_proj", "*.self_attn.v_proj", "*.down_proj")
NORMS = ("lm_head", "*.q_norm", "*.input_layernorm", "*.0.*.k_proj")


def on_torch(folder: Path, lora: LoraConfig) -> TorchTrainer:
    return TorchTrainer(folder, TorchConfig(device="cpu"), CLIP.model_copy(update={"lr": 1e-2}), lora=lora)


def read_settings(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / SETTINGS).read_text()))


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    return dict(sorted(load_file(folder / WEIGHTS).items()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "layout", "experts", "targets", "full"),
    [
        ("smollm2", "TP2", False, (), ()),
        ("qwen3_moe", "TP2 SP", True, (), ()),
        ("smollm2", "TP2 PP2", False, (), ("*.embed_tokens", "model.norm")),
        ("qwen3", "TP2 SP CP2 recomputed", False, ATTENTION, NORMS),
        ("qwen3", "PP2 recomputed", False, (), ()),
        ("moonlight", "CP2", False, (), ()),
        ("qwen3_moe", "EP2", True, ("*.o_proj",), ()),
        ("glm4_moe", "TP2 SP EP2 DP2", True, (), ("*.embed_tokens", "*.shared_experts.up_proj")),
    ],
)
def test_an_adapters_loss_gradients_and_merged_weights_are_those_of_the_torch_trainer(
    case: str,
    layout: str,
    experts: bool,
    targets: tuple[str, ...],
    full: tuple[str, ...],
    world: World,
    tiny: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """Also those of experts and modules in full: a tied embedding on two stages, a head, norms, a part of a matrix."""
    folder = tiny(case)
    first = on_torch(folder, LoraConfig(rank=3, rslora=True, experts=experts, targets=targets, full=full))
    first.step(FORESTS)
    first.export(tmp_path / "model")
    lora = LoraConfig(adapter=str(tmp_path / "model" / "adapter"))
    theirs, new = on_torch(folder, lora), on_torch(folder, LoraConfig(rank=3))
    logps = theirs.logprobs(FORESTS)
    loss = sum(theirs.backward(theirs.prepare(forest)) for forest in FORESTS)
    want = {name: p.grad for name, p in theirs.model.named_parameters() if p.grad is not None}
    got: dict[str, Any] = run(world, "adapter", folder, FORESTS, lora, **LAYOUTS[layout])
    assert got["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-7)
    assert all(float((one - other).abs().max()) < 1e-4 for one, other in zip(got["logps"], logps, strict=True))
    assert not {name: far for name, far in distances(got["gradients"], want).items() if not far < 1e-5}
    weights = dict(theirs.weights())
    for kind in ("weights", "merged"):
        assert max(distances(got[kind], weights).values()) < 1e-6
    files = [tmp_path / "model" / each for each in ("adapter", "ours")]  # the second is a rank's, for PEFT
    settings, tensors = ([read(each) for each in files] for read in (read_settings, read_tensors))
    assert settings[0] == settings[1]
    assert all(map(torch.equal, tensors[0].values(), tensors[1].values()))
    ours, drawn = got["new"][ADAPTER].matrices, new.parts()[ADAPTER].matrices
    assert all(torch.equal(ours[name][0], drawn[name][0]) for name in drawn)


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_ranks_train_save_and_export_an_adapter_as_one_process_does_also_after_a_warm_start(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    pytest.importorskip("megatron.core")
    folder, lora = tiny("smollm2"), LoraConfig(rank=3, full=("*.embed_tokens", "model.norm"))
    algo = AlgoConfig(lr=1e-2, kl_coef=0.1, epochs=2, weight_decay=0.1)
    config = MegatronConfig(tensor_parallel=2, timeout=350, average_decay=0.5, offload_optimizer=True)
    ours = make_trainer(folder, config, algo, total_steps=8, lora=lora)
    theirs = make_trainer(folder, TorchConfig(device="cpu", average_decay=0.5), algo, total_steps=8, lora=lora)
    assert isinstance(ours, MegatronTrainer)
    assert isinstance(theirs, TorchTrainer)

    def both_have_the_same_weights() -> None:
        for method in ("weights", "averaged_weights"):
            one, other = (dict(getattr(each, method)()) for each in (ours, theirs))
            assert max(distances(one, other).values()) < 1e-4

    try:
        for step in range(2):
            forests = random_forests(step, old=False)
            found, wanted = ours.step(forests), theirs.step(forests)
            assert all(found[name] == pytest.approx(value, rel=2e-3, abs=1e-5) for name, value in wanted.items())
        both_have_the_same_weights()
        pairs = (each.logprobs(forests, reference=True) for each in (ours, theirs))
        assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(*pairs, strict=True))
        ours.save(tmp_path / "adapter")
        kept = ours.parts()[ADAPTER]
        for name, tensor in theirs.parts()[ADAPTER].full.items():
            assert torch.allclose(kept.full[name], tensor, atol=1e-5)
        for trainer in (ours, theirs):  # the base becomes another
            trainer.begin(AlgoConfig(name="sft", lr=1e-3), 2, whole=True)
            trainer.step(random_forests(3, old=False))
            trainer.begin(algo, 8)
            trainer.step(random_forests(4, old=False))
            assert trainer.parts() == {}
        both_have_the_same_weights()
        ours.export(tmp_path / "out")
        merge_adapter(tmp_path / "out" / "adapter" / "base", tmp_path / "out" / "adapter", tmp_path / "merged")
        exported = (load_causal_lm(tmp_path / each, "auto", "eager").state_dict() for each in ("out", "merged"))
        assert max(distances(*exported).values()) < 1e-6
        ours.save(tmp_path / "warm")
        after = ours.step(random_forests(7, old=False))
        ours.load(tmp_path / "warm")
        assert ours.step(random_forests(7, old=False)) == after
        ours.load(tmp_path / "adapter")  # on the folder's base again
        for name, pair in ours.parts()[ADAPTER].matrices.items():
            assert all(map(torch.equal, pair, kept.matrices[name]))
        assert all(torch.equal(tensor, kept.full[name]) for name, tensor in ours.parts()[ADAPTER].full.items())
        saved = sum(f.stat().st_size for f in (tmp_path / "adapter").rglob("*"))  # the embedding, twice, and moments
        assert saved < 1.5 * sum(f.stat().st_size for f in folder.rglob("*.safetensors"))
    finally:
        ours.close()
