"""A base in four bits under an adapter: its values are the base's everywhere, and only the trainer packs them."""

from __future__ import annotations

import copy
import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

import agentrl
from agentrl.config import AlgoConfig, LoraConfig, RunConfig, TrainerConfig
from agentrl.errors import ConfigError, InvalidWeights, MissingExtra
from agentrl.models.adapter_merge import merge_adapter
from agentrl.overrides import validate
from agentrl.rollout.engines.folder import tensors
from agentrl.train.algorithms import make_algorithm
from agentrl.train.plan.adapter import with_adapter, with_lora
from agentrl.train.plan.memory import Numbers, Split, trainer_memory
from agentrl.train.plan.shapes import shape_of
from agentrl.train.record.verify import verify
from agentrl.train.trainers import check_trainer, lora_quantised
from agentrl.train.trainers.fsdp.settings import FsdpConfig
from agentrl.train.trainers.lora import merge
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from tests.train.lora.test_base import SMALL
from tests.train.lora.test_lora import learn, logits, same, trainer_on, weights

NF4 = LoraConfig(rank=4, quantize="nf4")
needs_library = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")


@pytest.fixture(scope="module")
def rounded(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the values that four bits hold."""
    folder = tmp_path_factory.mktemp("rounded") / "model"
    shutil.copytree(tiny_llama, folder)
    lora_quantised.quantise_folder(folder)
    return folder


def packed_layers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, lora_quantised.PackedLinear)]


@pytest.mark.parametrize("config", [FsdpConfig(), MegatronConfig()], ids=lambda config: config.name)
def test_trainers_whose_ranks_divide_weights_refuse_four_bits_by_name(config: TrainerConfig) -> None:
    said = rf"lora\.quantize=nf4: trainer={config.name} holds no base in four bits: its ranks .* trainer=torch"
    with pytest.raises(ConfigError, match=said):
        check_trainer(config, make_algorithm(AlgoConfig()), NF4)


def test_what_can_not_be_in_four_bits_is_refused_before_there_is_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.train.trainers.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"lora\.quantize=nf4 needs bitsandbytes.*: pip install bitsandbytes"):
        check_trainer(TorchConfig(), make_algorithm(AlgoConfig()), NF4)
    for settings, said in (
        ({"quantize": "nf4"}, "give lora.rank as well"),
        ({"rank": 4, "quantize": "int8"}, "'none' or 'nf4'"),
    ):
        with pytest.raises((ValueError, ConfigError), match=said):
            validate(settings, LoraConfig)
    with pytest.raises(ConfigError, match=r"set warm_start\.steps=0"):
        validate({"env": "calculator", "warm_start": {"steps": 2}, "lora": {"rank": 4, "quantize": "nf4"}}, RunConfig)


@needs_library
def test_a_folder_is_rewritten_once_and_the_trainer_packs_just_those_values(rounded: Path, tiny_llama: Path) -> None:
    before, after = tensors(tiny_llama), tensors(rounded)
    assert before.keys() == after.keys()
    again = rounded.with_name("again")
    shutil.copytree(rounded, again)
    lora_quantised.quantise_folder(again)
    plain, whole = trainer_on(rounded), trainer_on(rounded, rank=4, quantize="nf4")
    assert packed_layers(whole.model)
    assert not packed_layers(plain.model)
    assert same(weights(trainer_on(again)), weights(plain))
    assert same(weights(whole), weights(plain))
    changed = [n for n, tensor in weights(trainer_on(tiny_llama)).items() if not torch.equal(tensor, weights(plain)[n])]
    assert len(changed) == len(packed_layers(whole.model))
    held = sum(buffer.nbytes for layer in packed_layers(whole.model) for buffer in layer.buffers(recurse=False))
    assert held == pytest.approx(sum(weights(plain)[name].numel() for name in changed) * 4.5 / 8)
    with pytest.raises(InvalidWeights, match=r"q_proj\.weight has values that four bits .* don't hold"):
        trainer_on(tiny_llama, rank=4, quantize="nf4")


@needs_library
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_learns_as_from_whole_weights_of_the_same_values(rounded: Path, dtype: str) -> None:
    config, more = TorchConfig(device="cpu", dtype=dtype), {"full": ("*.norm",), "targets": ("*.q_proj", "*.down_proj")}
    plain, packed = (trainer_on(rounded, trainer=config, quantize=kind, **more) for kind in ("none", "nf4"))
    for trainer in (plain, packed):
        learn(trainer, 2)
    bound = 1e-5 if dtype == "float32" else 1e-3
    for name, tensor in weights(plain).items():
        assert (weights(packed)[name] - tensor).abs().max() <= bound, name


@needs_library
def test_a_resumed_trainer_computes_the_same_bits_and_its_export_is_base_and_adapter(
    rounded: Path, tmp_path: Path
) -> None:
    first = learn(trainer_on(rounded, quantize="nf4"))
    first.save(tmp_path / "trainer")
    saved = torch.load(tmp_path / "trainer", weights_only=True)["model"]
    assert all("lora" in name for name in saved)
    again = trainer_on(rounded, quantize="nf4")
    again.load(tmp_path / "trainer")
    assert same(weights(learn(again)), weights(learn(first)))
    first.export(tmp_path / "export")
    merge_adapter(rounded, tmp_path / "export" / "adapter", tmp_path / "merged")
    assert (logits(tmp_path / "merged") - logits(tmp_path / "export")).abs().max() < 1e-5
    assert same(weights(trainer_on(tmp_path / "export")), weights(first))
    whole = merge(copy.deepcopy(first.model))  # as critics and reward models begin
    assert not packed_layers(whole)
    exported = weights(first)
    assert all(torch.equal(tensor, exported[name]) for name, tensor in whole.named_parameters())
    with pytest.raises(ConfigError, match="is not trained as a whole"):
        first.begin(AlgoConfig(name="sft"), 1, whole=True)


@needs_library
def test_a_plan_counts_the_bytes_that_the_trainer_holds(rounded: Path) -> None:
    trainer, shape = trainer_on(rounded, quantize="nf4"), shape_of(rounded)
    numbers = with_lora(Numbers("torch", "float32"), shape, NF4)
    found = with_adapter(trainer_memory(shape, Split(), numbers, 1024), numbers)
    packed = [buffer for layer in packed_layers(trainer.model) for buffer in layer.buffers(recurse=False)]
    assert found.weights == sum(tensor.nbytes for tensor in [*trainer.model.parameters(), *packed])


@needs_library
def test_policies_on_one_base_hold_its_four_bits_once(rounded: Path) -> None:
    first, second = (trainer_on(rounded, quantize="nf4") for _ in range(2))
    assert not trainer_on(rounded).share_base(first)
    assert second.share_base(first)
    for one, other in zip(packed_layers(first.model), packed_layers(second.model), strict=True):
        assert one.packed is other.packed
    second.prove_mixing()


@needs_library
@pytest.mark.slow
def test_a_run_has_the_values_of_four_bits_for_its_base_and_resumes_with_them(tmp_path: Path) -> None:
    """Engines get the adapter alone, on the run's folder; the probe and `verify` hold; a lost base is told."""
    first = agentrl.train("calculator", steps=1, run_dir=str(tmp_path / "first"), **{**SMALL, "lora.rank": 0})
    start = max(first.path.glob("checkpoints/*/model.safetensors"))
    four = {"model": str(start.parent), "warm_start.steps": 0, "lora.quantize": "nf4"}
    run = agentrl.train("calculator", steps=1, run_dir=str(tmp_path / "run"), **{**SMALL, **four})
    run = agentrl.train("calculator", steps=2, resume=str(run.path))
    rows = [json.loads(line) for line in (run.path / "provenance.jsonl").read_text().splitlines()]
    published = [row["published"] for row in rows if "published" in row]
    probes = [row["probe"] for row in published if row["probe"] is not None]  # of what was trained
    assert probes
    assert max(probes) < 1e-4, "the engine is not the trainer"
    assert sum("parts" in row for row in published) >= 2
    assert packed_layers(trainer_on(run.path / "model", quantize="nf4").model)  # what its weights are
    report = verify(run.path)
    assert report.passed, list(report.lines())
    shutil.rmtree(run.path / "model")
    with pytest.raises(ConfigError, match="is of this base"):
        agentrl.train("calculator", steps=3, resume=str(run.path))
