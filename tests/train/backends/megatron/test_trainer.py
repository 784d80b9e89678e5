"""The trainer as the loop sees it: processes that are started, called, and named when they fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl import cluster
from agentrl.config import AlgoConfig
from agentrl.errors import ConfigError, InfraError, InvalidInput
from agentrl.train.algorithms import make_algorithm
from agentrl.train.trainers import Averager, Trainer, make_trainer, proof
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.megatron.trainer import MegatronTrainer
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import distances, random_forests

ALGO = AlgoConfig(
    lr=1e-3, kl_coef=0.1, kl_target=0.05, reference_decay=0.5, epochs=2, entropy_coef=0.01, entropy_target=3.0
)
TP2 = MegatronConfig(tensor_parallel=2, timeout=350, average_decay=0.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = zoo.write("smollm2", tmp_path_factory.mktemp("trainer") / "smollm2")
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def trainer(folder: Path) -> Iterator[Trainer]:
    pytest.importorskip("megatron.core")
    made = make_trainer(folder, TP2, ALGO)
    yield made
    made.close()


@pytest.mark.slow
def test_its_steps_metrics_and_weights_are_the_torch_trainers(trainer: Trainer, folder: Path, tmp_path: Path) -> None:
    """The state of the run's algorithm reaches every rank: in the second step the KL penalty is 100 times as much."""
    assert isinstance(trainer, Trainer)
    torch_trainer = TorchTrainer(folder, TorchConfig(device="cpu", average_decay=0.5), ALGO)
    algorithm = make_algorithm(ALGO)
    for step in range(2):
        forests, state = random_forests(step, old=False), algorithm.snapshot()
        ours, theirs = trainer.step(forests, state), torch_trainer.step(forests, state)
        algorithm.adaptive.kl_coef *= 100
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert ours[name] == pytest.approx(value, rel=2e-3, abs=1e-5), name
    assert trainer.version == torch_trainer.version == 2
    far = distances(dict(trainer.weights()), dict(torch_trainer.weights()))
    assert max(far.values()) < 1e-3
    reference = trainer.logprobs(forests, reference=True)
    for one, other in zip(reference, torch_trainer.logprobs(forests, reference=True), strict=True):
        assert torch.allclose(one, other, atol=1e-4)

    assert isinstance(trainer, Averager)
    averaged = dict(trainer.averaged_weights())
    assert max(distances(averaged, dict(torch_trainer.averaged_weights())).values()) < 1e-3
    trainer.export(tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer_config.json").exists()
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32, attn_implementation="eager")
    weights = dict(trainer.weights())
    assert all(torch.equal(exported.state_dict()[name], tensor) for name, tensor in weights.items())
    assert any(not torch.equal(averaged[name], tensor) for name, tensor in weights.items())
    inner = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "averaged", dtype=torch.float32).state_dict()
    assert all(torch.equal(inner[name], tensor) for name, tensor in averaged.items())

    trainer.save(tmp_path / "deep" / "state")
    after = trainer.step(random_forests(7, old=False), state)
    trainer.begin(ALGO.model_copy(update={"lr": ALGO.lr / 7}), 3)
    trainer.load(tmp_path / "deep" / "state")
    assert trainer.step(random_forests(7, old=False))["lr"] == pytest.approx(ALGO.lr / 7), "the settings are today's"
    trainer.begin(ALGO, 1)
    trainer.load(tmp_path / "deep" / "state")
    assert trainer.version == 2
    assert all(torch.equal(averaged[name], tensor) for name, tensor in trainer.averaged_weights())
    assert trainer.step(random_forests(7, old=False), state) == after


PLUGIN = """
import dataclasses

from agentrl.train.trainers.megatron.models.families.llama import LLAMA, head_dim
from agentrl.train.trainers.megatron.models.rotary import Rotary

WRONG = dataclasses.replace(LLAMA, name="wrong", rotary=lambda hf: Rotary.of(hf, head_dim(hf), neighbours=True))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("own_proofs")
def test_a_runs_ranks_try_the_architecture_in_their_layout_before_they_build_the_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("megatron.core")
    (tmp_path / "plugin.py").write_text(PLUGIN)
    tried: list[MegatronTrainer] = []

    def first(trainer: MegatronTrainer) -> None:
        right = trainer.config
        trainer.config = right.model_copy(update={"family": f"{tmp_path}/plugin.py:WRONG"})
        refused = r"trained by trainer=megatron.*in the layout tensor=2, log-probabilities differ by up to"
        with pytest.raises(ConfigError, match=refused):
            proof.prove_on_ranks(folder, "mine")(trainer)
        trainer.config = right
        proof.prove_on_ranks(folder, "mine")(trainer)
        tried.append(trainer)

    trainer = MegatronTrainer(folder, TP2, ALGO, first=first)
    try:
        monkeypatch.setattr(MegatronTrainer, "attempt", lambda *_: pytest.fail("it was proved, and is tried again"))
        proof.prove_on_ranks(folder, "mine")(tried[0])
        read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
        assert all(torch.equal(read[name], tensor) for name, tensor in trainer.weights())
        assert trainer.step(random_forests(0, old=False))["grad_norm"] > 0
    finally:
        trainer.close()


@pytest.mark.slow
def test_a_reader_that_stops_reading_weights_early_may_continue_training(trainer: Trainer) -> None:
    for _ in trainer.weights():
        break
    assert trainer.step([])["tokens/trained"] == 0
    assert len(dict(trainer.weights())) > 10


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_trainer_with_an_error_and_leaves_no_process_behind(folder: Path) -> None:
    trainer = MegatronTrainer(folder, TP2, ALGO)
    workers = trainer.ranks.workers
    workers[1].kill()
    with pytest.raises(InfraError, match="rank 1 of 2"):
        trainer.step(random_forests(0, old=False))
    assert all(worker.poll() is not None for worker in workers)
    with pytest.raises(InfraError, match="closed"):
        trainer.step([])
    trainer.close()


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1 << 22], ids=["a call", "more than a socket holds"])
def test_a_rank_that_is_stopped_is_named_long_before_the_deadline(
    size: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that could not be sent was sent for ever: nobody looked at the heartbeats meanwhile."""
    monkeypatch.setattr(cluster.current(), "silence_timeout", 2.0)
    trainer = MegatronTrainer(folder, MegatronConfig(tensor_parallel=2, timeout=500), ALGO)
    share = trainer._division.shares(random_forests(0, old=False))[0]
    os.killpg(cast(Any, trainer.ranks.workers[1].process).server.pid, signal.SIGSTOP)
    with pytest.raises(InfraError, match=r"rank 1 of 2: rank 1 of 2 on this machine is given up: .* no life"):
        trainer.ranks.call("step", share, {**make_algorithm(ALGO).snapshot(), "": bytes(size)})
    assert not trainer.ranks.alive


@pytest.mark.slow
def test_another_models_checkpoint_is_refused_by_the_name_of_a_weight(folder: Path, tmp_path: Path) -> None:
    alone = MegatronConfig(timeout=350)
    trainer = MegatronTrainer(folder, alone, ALGO)
    trainer.save(tmp_path / "state")
    trainer.close()
    other = zoo.write("qwen3", tmp_path / "other")
    trainer = MegatronTrainer(other, alone, ALGO)
    with pytest.raises(InvalidInput, match=r"of another model: .* is not in the checkpoint"):
        trainer.load(tmp_path / "state")
    trainer.close()


@pytest.mark.slow
def test_what_a_rank_raises_on_purpose_is_raised_as_what_it_was(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(InvalidInput, match=r"no model\.safetensors"):
        MegatronTrainer(tmp_path, MegatronConfig(timeout=350), ALGO)


@pytest.mark.parametrize(
    ("case", "settings", "words"),
    [
        ("smollm2", {"tensor_parallel": 3}, "does not divide the model's 4 attention heads"),
        ("smollm2", {"pipeline_parallel": 3}, "do not divide the model's 4 layers"),
        ("smollm2", {"pipeline_parallel": 2, "virtual_pipeline": 4}, "8 chunks"),
        ("smollm2", {"virtual_pipeline": 2}, "trainer.pipeline_parallel is 1"),
        ("smollm2", {"tensor_parallel": 2, "ranks": 3}, "not a multiple of tensor x pipeline x context"),
        ("smollm2", {"expert_parallel": 2}, "without experts"),
        ("qwen3_moe", {"expert_parallel": 3}, "does not divide the model's 8 experts"),
        ("qwen3_moe", {"expert_parallel": 4, "ranks": 2}, "not a multiple of pipeline x expert"),
        ("qwen3_moe", {"tensor_parallel": 2, "sequence_parallel": False}, "needs the sequence shared"),
        ("qwen3_moe", {"moe": {"capacity": 1.0, "dispatcher": "allgather"}}, "needs trainer.moe.dispatcher=alltoall"),
        ("qwen3_moe", {"moe": {"capacity": 1.0, "routing_replay": "forward"}}, "can't be replayed"),
        ("smollm2", {"sequence_parallel": True}, "trainer.tensor_parallel is 1"),
        ("smollm2", {"moe": {"z_loss": 0.1}}, "has no experts"),
        ("smollm2", {"dtype": "float16"}, "would underflow"),
    ],
)
@pytest.mark.slow
def test_a_layout_that_breaks_a_rule_is_refused_by_name(
    case: str, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = zoo.write(case, tmp_path / case)
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        MegatronTrainer(folder, MegatronConfig.model_validate({**settings}), ALGO)
