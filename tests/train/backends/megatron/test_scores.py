"""Score models under every kind of parallelism: loss, gradients, steps and folder are the torch trainer's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForTokenClassification

from agentrl.models.scoring import ScoreHead, read_score_model
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.objective import empty_sums
from agentrl.train.forest.forest import Forest, sequence_count
from agentrl.train.forest.packing import pack_credited
from agentrl.train.trainers import make_trainer
from agentrl.train.trainers.megatron.models import FAMILIES
from agentrl.train.trainers.megatron.models.scores import prepare_scores
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.backends.megatron.batches import distances, run
from tests.train.backends.megatron.test_critic import LAYOUTS
from tests.train.backends.megatron.world import World
from tests.train.test_score_models import KINDS, groups_of


def forests_of(algo: Any, kind: str, seed: int) -> list[Forest]:
    """Several, so that a pair's sides lie apart."""
    return pack_credited(make_algorithm(algo), groups_of(kind, seed), None, 24, 0)[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("pairs", "TP2"),
        ("pairs", "CP2"),
        ("steps", "PP2"),
        ("label", "PP2 interleaved"),
        ("score", "EP2"),
        ("steps", "TP2 SP CP2 recomputed"),
    ],
)
def test_loss_and_every_gradient_of_scores_are_those_of_the_torch_trainer(
    kind: str, layout: str, world: World, tiny: Callable[[str], Path]
) -> None:
    case, settings = LAYOUTS[layout]
    algo = algorithm_settings({**KINDS[kind], "max_grad_norm": 1e9})
    alone, forests = TorchTrainer(tiny(case), TorchConfig(device="cpu"), algo), forests_of(algo, kind, 5)
    expected = alone.logprobs(forests)
    batches = [alone.prepare(forest) for forest in forests]
    if alone.algorithm.sequence is not None:
        alone.sums = empty_sums(alone.algorithm, sequence_count(forests))
        alone.sum_sequences(batches, alone.sums)
    loss = sum(map(alone.backward, batches))
    found = run(world, "gradients", tiny(case), forests, algo=algo, distributed_optimizer=False, **settings)
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    for ours, theirs in zip(found["logps"], expected, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-4
    gradients = {name: p.grad for name, p in alone.model.named_parameters() if p.grad is not None}
    wanted = {name: each for name, each in gradients.items() if "experts" not in name}
    assert {"score.weight", *(["score.bias"] if kind == "steps" else [])} <= wanted.keys()
    far = distances({name: found["gradients"][name] for name in wanted}, wanted)
    assert not {name: each for name, each in far.items() if not each < 1e-5}


@pytest.mark.parametrize("per_token", [False, True])
def test_a_folders_bias_is_unknown_to_a_head_that_has_none(per_token: bool) -> None:
    """It was left out in silence, where the torch trainer refuses such a folder."""
    hf = SimpleNamespace(hidden_size=4, initializer_range=0.02, get_text_config=lambda: hf)
    family, drawn = prepare_scores(FAMILIES.find("llama"), hf, ScoreHead(("score",), per_token=per_token), 0)
    named = {name for layout in family.outside.values() for name in layout.names()}
    assert ("score.bias" in named) == ("score.bias" in drawn) == per_token


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ranks_learn_scores_go_on_from_a_checkpoint_and_write_the_folder_that_one_process_writes(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    algo, source = algorithm_settings({**KINDS["steps"], "lr": 1e-3}), tiny("smollm2")
    theirs = TorchTrainer(source, TorchConfig(device="cpu"), algo, total_steps=2)
    batches = [forests_of(algo, "steps", seed) for seed in (1, 2)]
    rows = [theirs.step(forests) for forests in batches]
    theirs.export(tmp_path / "theirs")
    config = MegatronConfig(tensor_parallel=2, timeout=350)
    ours = make_trainer(source, config, algo, total_steps=2)
    try:
        assert ours.step(batches[0])["loss"] == pytest.approx(rows[0]["loss"], rel=1e-4)
        ours.save(tmp_path / "state")
        first = ours.step(batches[1])
        ours.load(tmp_path / "state")
        again = ours.step(batches[1])
        assert again["loss"] == first["loss"] == pytest.approx(rows[1]["loss"], rel=1e-4)
        ours.export(tmp_path / "ours")
    finally:
        ours.close()
    held, wanted = (
        read_score_model(tmp_path / name, torch.float32, per_token=True).state_dict() for name in ("ours", "theirs")
    )
    assert held.keys() == wanted.keys()
    assert max(distances(held, wanted).values()) < 1e-3
    one, other = (AutoConfig.from_pretrained(tmp_path / name).to_dict() for name in ("ours", "theirs"))
    assert {name for name, value in one.items() if other[name] != value} == {"_name_or_path"}
    _, found = AutoModelForTokenClassification.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(found.values())
