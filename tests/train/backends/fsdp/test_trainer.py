"""Ranks that share a model learn as one process does, and resume in any number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import agentrl
from agentrl.config import AlgoConfig
from agentrl.errors import ConfigError, InvalidInput, TrainerError
from agentrl.overrides import validate
from agentrl.train.algorithms.advantages.distill import DistillConfig
from agentrl.train.algorithms.advantages.ppo import PpoConfig
from agentrl.train.record.verify import verify
from agentrl.train.trainers import Averager, JointCritic, MemoryReleasing, Trainer, make_trainer
from agentrl.train.trainers.fsdp.settings import FsdpConfig, ranks_of
from agentrl.train.trainers.fsdp.trainer import FsdpTrainer
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import random_forests, teacher_head, told

SETTINGS = {"freeze": ["*layers.0.mlp*"], "lr_factors": {"*norm*": 2.0}, "average_decay": 0.5, "timeout": 350}
ALGO = AlgoConfig(lr=1e-3, kl_coef=0.1, reference_decay=0.5, epochs=2, entropy_coef=0.01, weight_decay=0.1)
PLANNED = "faults: [{action: kill, target: trainer, point: trainer.call, nth: 6}]"


def fsdp(ranks: int, **settings: Any) -> FsdpConfig:
    return FsdpConfig.model_validate({"ranks": ranks, **SETTINGS, **settings})


def one_process(folder: Path, algo: AlgoConfig, **settings: Any) -> TorchTrainer:
    own = {name: value for name, value in {**SETTINGS, **settings}.items() if name != "timeout"}
    return TorchTrainer(folder, TorchConfig.model_validate({"device": "cpu", **own}), algo)


def largest_difference(ours: Trainer, theirs: Trainer) -> float:
    one, other = dict(ours.weights()), dict(theirs.weights())
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in other)


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_two_ranks_are_one_process_and_what_they_saved_goes_on_under_one_and_three(tmp_path: Path) -> None:
    """A model with tied embeddings, a reference that moves, frozen weights, two epochs and an average, offloaded."""
    folder = zoo.write("smollm2", tmp_path / "model")
    (folder / "tokenizer_config.json").write_text("{}")
    ours, theirs = make_trainer(folder, fsdp(2, offload_optimizer=True), ALGO), one_process(folder, ALGO)
    assert isinstance(ours, MemoryReleasing)
    try:
        for step in range(3):
            forests = random_forests(step, old=False)
            found, wanted = ours.step(forests), theirs.step(forests)
            ours.release()
            assert found.keys() == wanted.keys()
            for name, value in wanted.items():
                assert found[name] == pytest.approx(value, rel=1e-5, abs=1e-5), name
        assert largest_difference(ours, theirs) < 1e-5
        assert isinstance(ours, Averager)
        averaged, policy = dict(ours.averaged_weights()), dict(ours.weights())
        assert all(torch.allclose(averaged[name], tensor, atol=1e-5) for name, tensor in theirs.averaged_weights())
        assert any(not torch.allclose(averaged[name], tensor, atol=1e-5) for name, tensor in policy.items())
        assert ours.step([])["tokens/trained"] == theirs.step([])["tokens/trained"] == 0
        assert ours.version == theirs.version == 4
        for reference in (False, True):
            pairs = zip(
                ours.logprobs(forests, reference=reference), theirs.logprobs(forests, reference=reference), strict=True
            )
            assert all(torch.allclose(one, other, atol=1e-5) for one, other in pairs)

        ours.export(tmp_path / "out")
        assert (tmp_path / "out" / "tokenizer_config.json").exists()
        for inner in ("", "averaged"):
            exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / inner, dtype=torch.float32).state_dict()
            if not inner:
                assert all(torch.equal(exported[name], tensor) for name, tensor in ours.weights())
                policy = exported
        assert any(not torch.equal(exported[name], policy[name]) for name in policy)

        ours.save(tmp_path / "deep" / "state")
        saved = dict(ours.weights())
        after = ours.step(random_forests(7, old=False))
    finally:
        ours.close()
    for ranks in (1, 3):
        resumed = make_trainer(folder, fsdp(ranks), ALGO)
        try:
            resumed.load(tmp_path / "deep" / "state")
            assert resumed.version == 4
            assert all(torch.equal(saved[name], tensor) for name, tensor in resumed.weights())
            again = resumed.step(random_forests(7, old=False))
            assert again == {name: pytest.approx(value, rel=1e-5, abs=1e-5) for name, value in after.items()}
            if ranks == 1:
                with pytest.raises(InvalidInput, match=r"no checkpoint of a trainer with ranks"):
                    resumed.load(tmp_path / "deep")
        finally:
            resumed.close()


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_muon_moves_sharded_matrices_as_whole_ones_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Up to what its iterations in bfloat16 make of the last bits of gradients."""
    folder, algo = zoo.write("smollm2", tmp_path / "model"), AlgoConfig(lr=1e-3, weight_decay=0.1)
    theirs = one_process(folder, algo, optimizer="muon")
    before = {name: tensor.clone() for name, tensor in theirs.weights()}
    ours = make_trainer(folder, fsdp(2, optimizer="muon"), algo)
    try:
        for step in range(2):
            forests = random_forests(step, old=False)
            found, wanted = ours.step(forests), theirs.step(forests)
            assert found == {name: pytest.approx(value, rel=1e-3, abs=1e-5) for name, value in wanted.items()}
        learned = dict(theirs.weights())
        moved = {name: tensor - before[name] for name, tensor in learned.items()}
        for name, tensor in ours.weights():
            assert (tensor - before[name] - moved[name]).norm() <= 5e-2 * moved[name].norm(), name
        ours.save(tmp_path / "state")
        after = ours.step(random_forests(7, old=False))
    finally:
        ours.close()
    resumed = make_trainer(folder, fsdp(1, optimizer="muon"), algo)
    try:
        resumed.load(tmp_path / "state")
        again = resumed.step(random_forests(7, old=False))
        assert again == {name: pytest.approx(value, rel=1e-5, abs=1e-5) for name, value in after.items()}
    finally:
        resumed.close()


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_experts_that_one_rank_alone_uses_recomputed_layers_and_a_critic_learn_as_in_one_process(
    tmp_path: Path,
) -> None:
    """The critic reads other forests than the policy, as one of joint paths does."""
    folder, algo = zoo.write("qwen3_moe", tmp_path / "model"), PpoConfig(lr=1e-3, value_epochs=2, value_path="joint")
    ours = make_trainer(folder, fsdp(2, recompute="full", freeze=[]), algo)
    theirs = one_process(folder, algo, freeze=[])
    assert isinstance(ours, JointCritic)
    try:
        for step in range(2):
            forests = random_forests(step, trees=1 + step, old=False)  # of one tree: a rank has none
            for forest in forests:
                forest.returns, forest.value = forest.advantage.abs(), torch.zeros(len(forest))
            values = zip(ours.values(forests, 0.5), theirs.values(forests, 0.5), strict=True)
            assert all(torch.allclose(one, other, atol=1e-5) for one, other in values)
            read = forests[: 2 - step]
            found, wanted = ours.step(forests, None, read), theirs.step(forests, None, read)
            assert found == {name: pytest.approx(value, rel=1e-4, abs=1e-5) for name, value in wanted.items()}
        assert largest_difference(ours, theirs) < 1e-5
        ours.ranks.workers[1].kill()  # type: ignore[attr-defined]
        with pytest.raises(TrainerError, match="rank 1 of 2"):
            ours.step(random_forests(0, old=False))
    finally:
        ours.close()


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_a_run_whose_rank_is_killed_publishes_resumes_and_ends_as_one_process_does(tmp_path: Path) -> None:
    """Mismatch compares the engine's log-probabilities, after a publication, with the trainer's."""
    settings: dict[str, Any] = {
        **{"warm_start.steps": 3, "warm_start.demos": 8, "warm_start.batch": 4, "checkpoint_every": 1, "seed": 0},
        **{"rollout.groups_per_step": 2, "rollout.group_size": 4, "rollout.turn_tokens": 16, "eval.tasks": 2},
    }
    (tmp_path / "faults.yaml").write_text(PLANNED)
    trainer = {"name": "fsdp", "ranks": 2, "timeout": 350}
    run = agentrl.train(
        "calculator",
        algo="ppo",
        steps=2,
        trainer=trainer,
        faults=str(tmp_path / "faults.yaml"),
        run_dir=str(tmp_path / "run"),
        **settings,
    )
    assert [row["version"] for row in run.metrics] == [4, 5]
    assert all(row["mismatch/abs_mean"] < 1e-4 for row in run.metrics), "the engine is not the trainer"
    assert (tmp_path / "run" / "checkpoints" / "step-000002" / "trainer" / "contents.json").is_file()
    report = verify(run.path)
    assert report.passed, list(report.lines())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ranks": 0}, r"trainer\.ranks"),
        ({"dtype": "float16"}, "dtype=float16 would underflow"),
        ({"tensor_parallel": 2}, r"tensor_parallel"),
    ],
)
def test_a_setting_that_shards_cannot_have_is_refused_by_name(settings: dict[str, Any], words: str) -> None:
    from agentrl.config import RunConfig

    with pytest.raises(ConfigError, match=words):
        validate({"env": "calculator", "trainer": {"name": "fsdp", **settings}}, RunConfig)


def test_a_trunk_of_the_critics_own_and_more_ranks_than_gpus_are_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=r"algo\.value_trunk=own: trainer=fsdp"):
        FsdpTrainer(tmp_path, fsdp(2), PpoConfig(value_trunk="own"))
    with pytest.raises(ConfigError, match=r"trainer\.ranks=3 needs as many GPUs, and there are 2"):
        ranks_of(fsdp(3), 2)
    assert ranks_of(FsdpConfig(), 4) == 4


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_two_ranks_learn_a_divergence_from_a_teacher_as_one_process_does(tmp_path: Path) -> None:
    folder, algo = zoo.write("smollm2", tmp_path / "model"), DistillConfig(lr=1e-3, divergence="jsd", top_k=5)
    ours, theirs = make_trainer(folder, fsdp(2), algo), one_process(folder, algo)
    try:
        for forests in (told(4, 5), told(5, 5)[:1]):  # of one forest a rank has nothing
            found, wanted = ours.step(forests), theirs.step(forests)
            assert wanted["distill/divergence"] > 0.01
            for name, value in wanted.items():
                assert found[name] == pytest.approx(value, rel=1e-5, abs=1e-5), name
        whole = DistillConfig(lr=1e-3, divergence="jsd", top_k=None)
        for trainer in (ours, theirs):
            trainer.begin(whole, 1)
            trainer.set_teacher(teacher_head(4))
        found, wanted = (trainer.step(told(6, None)) for trainer in (ours, theirs))
        assert found["distill/divergence"] == pytest.approx(wanted["distill/divergence"], rel=1e-5)
        assert wanted["distill/divergence"] > 0.01
        assert largest_difference(ours, theirs) < 1e-5
    finally:
        ours.close()
