"""Adapters on the torch trainer: they learn, resume, merge, and are what PEFT computes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentrl.config import AlgoConfig, LoraConfig, TrainerConfig
from agentrl.errors import ConfigError, InvalidInput, InvalidWeights
from agentrl.models.adapter_merge import merge_adapter
from agentrl.models.adapters import read_adapter
from agentrl.overrides import validate
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.driver.setup import complete
from agentrl.train.trainers import check_trainer
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.conftest import need
from tests.train.backends.megatron import zoo
from tests.train.backends.test_torch import forests_for

ROOT = Path(__file__).parents[3]
PACKAGES = ROOT / ".venv-peft"
ALGO = AlgoConfig(lr=1e-2)
IDS = [8, 9, 10, 12, 19, 26, 33, 40]


def trainer_on(path: Path, algo: AlgoConfig = ALGO, trainer: TorchConfig | None = None, **lora: Any) -> TorchTrainer:
    chosen = LoraConfig(**({"rank": 4} | lora)) if "adapter" not in lora else LoraConfig(**lora)
    return TorchTrainer(path, trainer or TorchConfig(device="cpu"), algo, total_steps=8, lora=chosen)


def weights(trainer: TorchTrainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.weights()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def learn(trainer: TorchTrainer, steps: int = 2) -> TorchTrainer:
    for step in range(steps):
        trainer.step(forests_for(trainer.algo, step))
    return trainer


@torch.no_grad()
def logits(folder: Path) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found: Tensor = model(torch.tensor([IDS])).logits[0]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"rslora": True, "init": "gaussian", "targets": ("*.q_proj", "*.down_proj")}])
def test_an_adapter_begins_as_its_base_and_leaves_everything_but_its_layers_as_it_is(
    tiny_llama: Path, settings: dict[str, Any]
) -> None:
    base = weights(TorchTrainer(tiny_llama, TorchConfig(device="cpu"), ALGO))
    trainer = trainer_on(tiny_llama, **settings)
    assert same(weights(trainer), base)
    learned = weights(learn(trainer))
    changed = {name for name in base if not torch.equal(base[name], learned[name])}
    ends = ("q_proj.weight", "down_proj.weight") if "targets" in settings else ("_proj.weight",)
    assert changed == {name for name in base if name.endswith(ends)}


@pytest.mark.slow
def test_a_saved_trainer_learns_on_bit_for_bit_also_where_a_warm_start_changed_its_base(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """The optimizer, the reference and the average go on, and the base comes along only where no folder has it."""
    algo = AlgoConfig(lr=1e-2, kl_coef=0.1)
    averaging = TorchConfig(device="cpu", average_decay=0.9)
    for warm in (False, True):
        first, again = (trainer_on(tiny_llama, algo, averaging) for _ in range(2))
        if warm:
            first.begin(AlgoConfig(name="sft", lr=1e-2), 2, whole=True)
            learn(first, 1)
            imitated = weights(first)
            first.begin(algo, 8)
            assert same(weights(first), imitated)
        learn(first, 2)
        first.save(tmp_path / "trainer")
        again.load(tmp_path / "trainer")
        forests = forests_for(algo, 3)
        for one, other in zip(
            first.logprobs(forests, reference=True), again.logprobs(forests, reference=True), strict=True
        ):
            assert torch.equal(one, other)
        for trainer in (first, again):
            trainer.step(forests_for(algo, 4))
        assert same(weights(first), weights(again))
        assert same(dict(first.averaged_weights()), dict(again.averaged_weights()))
        saved = torch.load(tmp_path / "trainer", weights_only=True)["model"]
        assert any("lora" not in name for name in saved) == warm
    with pytest.raises(ConfigError, match="saved with an adapter"):
        TorchTrainer(tiny_llama, TorchConfig(device="cpu"), algo).load(tmp_path / "trainer")


@pytest.mark.slow
def test_the_reference_is_the_policy_as_it_began_also_where_it_began_with_an_adapter(
    tiny_llama: Path, tmp_path: Path
) -> None:
    algo = AlgoConfig(lr=1e-2, kl_coef=0.1)
    forests = forests_for(algo, 5)
    first = trainer_on(tiny_llama, algo)
    before = first.logprobs(forests)
    learn(first).export(tmp_path / "model")
    assert all(map(torch.equal, first.logprobs(forests, reference=True), before))
    second = trainer_on(tiny_llama, algo, adapter=str(tmp_path / "model" / "adapter"))
    assert same(weights(second), weights(first))
    began = second.logprobs(forests)
    assert not any(map(torch.equal, began, learn(second).logprobs(forests)))
    assert all(map(torch.equal, second.logprobs(forests, reference=True), began))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"name": "ppo"}, {"name": "ppo", "value_trunk": "own"}, {"name": "prime"}])
def test_critics_and_reward_models_learn_beside_an_adapter(tiny_llama: Path, settings: dict[str, Any]) -> None:
    algo = algorithm_settings({"lr": 1e-2, **settings})
    trainer = trainer_on(tiny_llama, algo)
    forests = forests_for(ALGO)
    for forest in forests:
        forest.value, forest.returns = torch.zeros(len(forest)), torch.ones(len(forest))
    before = weights(trainer)
    trainer.step(forests)
    assert not same(weights(trainer), before)
    own = trainer.critic.trunk if trainer.critic is not None else trainer.reward_model and trainer.reward_model.model
    assert own is None or not any("lora" in name for name, _ in own.named_parameters())


@pytest.mark.slow
def test_merged_weights_compute_what_the_adapter_does_and_so_does_peft(tiny_llama: Path, tmp_path: Path) -> None:
    need((PACKAGES / "installed").exists(), "PEFT is not there: make .venv-peft/installed")
    """One has embeddings and norms in full beside it, with a head that is tied; one is on experts too."""
    targets, full = ("*.q_proj", "*.down_proj"), ("*.embed_tokens", "model.norm")
    moe = zoo.write("qwen3_moe_raw", tmp_path / "moe")
    made: dict[str, tuple[Path, dict[str, Any]]] = {
        "plain": (tiny_llama, {"rslora": True, "targets": targets}),
        "full": (tiny_llama, {"full": full, "targets": targets}),
        "experts": (moe, {"experts": True}),
    }
    folders: list[str] = []
    for name, (base, settings) in made.items():
        learn(trainer_on(base, **settings)).export(tmp_path / name)
        adapter = tmp_path / name / "adapter"
        merge_adapter(base, adapter, tmp_path / f"{name}-merged")
        folders += [str(base), str(adapter)]
    out, ids = tmp_path / "logits.pt", ",".join(map(str, IDS))
    command = [sys.executable, str(Path(__file__).with_name("compute.py")), str(PACKAGES), ids, str(out)]
    subprocess.run([*command, *folders], check=True, timeout=600)
    for (name, (base, _)), theirs in zip(made.items(), torch.load(out), strict=True):
        assert (logits(base) - theirs).abs().max() > 1e-3
        for folder in (tmp_path / name, tmp_path / f"{name}-merged"):
            assert (logits(folder) - theirs).abs().max() < 1e-5, folder


def test_adapters_of_other_kinds_or_bases_are_refused_by_name(tiny_llama: Path, tmp_path: Path) -> None:
    learn(trainer_on(tiny_llama), 1).export(tmp_path / "model")
    folder = tmp_path / "model" / "adapter"
    settings = json.loads((folder / "adapter_config.json").read_text())
    for change, word in (({"use_dora": True}, "use_dora"), ({"peft_type": "IA3"}, "IA3"), ({"bias": "all"}, "bias")):
        (folder / "adapter_config.json").write_text(json.dumps(settings | change))
        with pytest.raises(InvalidInput, match=word):
            read_adapter(folder)
    (folder / "adapter_config.json").write_text(json.dumps(settings | {"r": 3}))
    with pytest.raises(InvalidWeights, match="r=3"):
        read_adapter(folder)
    with pytest.raises(InvalidInput, match=r"model=.* lora\.adapter=.*agentrl models merge"):
        TorchTrainer(folder)
    (folder / "base").mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": "base"}))
    with pytest.raises(InvalidInput, match=f"with model={folder / 'base'} lora"):  # no model is called "base"
        TorchTrainer(folder)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dropout": 0.1}, "ratio"),
        ({"init": "pissa"}, "rewrites the base"),
        ({"adapter": "x", "alpha": 3, "rank": 0}, "alpha is the folder's"),
        ({"rank": 0, "targets": ["*.q_proj"]}, "targets has no effect without an adapter"),
    ],
)
def test_settings_that_can_not_hold_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        validate({"rank": 4, **settings}, LoraConfig)


def test_settings_of_a_run_that_began_with_an_adapter_are_read_again() -> None:
    """Resuming it was refused: its config.yaml has all settings, and those that are the folder's counted as given."""
    kept = LoraConfig(adapter="folder").model_dump()
    assert validate(kept, LoraConfig).adapter == "folder"


def own_trainer(*_: Any, **__: Any) -> Any:
    """A trainer of somebody's own, which says nothing of adapters."""


def test_trainers_without_adapters_say_which_have_them() -> None:
    with pytest.raises(ConfigError, match=r"trains no adapters yet; those that do: fsdp, torch, megatron"):
        check_trainer(TrainerConfig(name=f"{__name__}:own_trainer"), make_algorithm(ALGO), LoraConfig(rank=4))
    with pytest.raises(ConfigError, match="optimizer=muon"):
        check_trainer(TorchConfig(optimizer="muon"), make_algorithm(ALGO), LoraConfig(rank=4))


def test_an_adapters_learning_rate_is_ten_times_the_whole_models_and_less_below_rank_16_unless_it_is_given() -> None:
    whole, *adapters = (complete({"env": "calculator", "lora": {"rank": rank}}).algo.lr for rank in (0, 1, 4, 16, 64))
    assert adapters == pytest.approx([2.5 * whole, 5 * whole, 10 * whole, 10 * whole])
    assert complete({"env": "calculator", "lora": {"rank": 4}, "algo": {"lr": 0.5}}).algo.lr == 0.5


def test_each_policys_rate_is_that_of_its_own_adapter_or_whole_model() -> None:
    """Beside an adapter a whole model was trained at ten times its rate, and files' adapters at a tenth of theirs."""
    demand = {"env": "examples/several_agents/demand.py:Demand", "agents": {"right": "b"}, "lora": {"rank": 16}}
    usual = AlgoConfig().lr
    for policy, times in (({"lora": {"rank": 0}}, 1), ({"lora": {"rank": 4}}, 5), ({"trainer": "torch"}, 10)):
        learners = complete({**demand, "policies": {"b": policy}}).learners
        assert learners["b"].algo.lr == pytest.approx(times * learners["main"].algo.lr / 10)
        assert learners["b"].algo.kl_coef == learners["main"].algo.kl_coef
    of_its_own = complete({**demand, "policies": {"b": {"algo": "rloo"}}}).learners["b"].algo
    assert (of_its_own.name, of_its_own.lr) == ("rloo", pytest.approx(10 * usual))
    given = complete({**demand, "algo": {"lr": 0.5}, "policies": {"b": {"lora": {"rank": 0}}}})
    assert {own.algo.lr for own in given.learners.values()} == {0.5}
    assert complete({"data": "x.jsonl", "model": "m", "lora": {"rank": 16}}).algo.lr == pytest.approx(10 * usual)
    tiny, adapter = (complete({"data": "x.jsonl", "lora": {"rank": rank}}).algo.lr for rank in (0, 16))
    assert adapter == tiny
