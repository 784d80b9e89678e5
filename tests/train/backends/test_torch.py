from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentrl.config import AlgoConfig, RunConfig, TrainerConfig
from agentrl.errors import ConfigError, InvalidInput, UnknownName
from agentrl.overrides import validate
from agentrl.train.algorithms import make_algorithm
from agentrl.train.forest.forest import Forest, Rows
from agentrl.train.forest.packing import pack
from agentrl.train.trainers import Trainer, make_trainer
from agentrl.train.trainers.head import token_logps
from agentrl.train.trainers.optimizer import learning_rate
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.trees import as_group, linear_session

CPU = TorchConfig(device="cpu")
ALGO = AlgoConfig(lr=1e-2)


def trainer_on(path: Path, algo: AlgoConfig = ALGO, **more: int) -> TorchTrainer:
    return TorchTrainer(path, CPU, algo, **more)


def forests_for(algo: AlgoConfig, step: int = 0, budget: int = 64) -> list[Forest]:
    """A batch of two groups; `step` changes what was sampled."""
    demo = algo.name == "sft"
    groups = [
        as_group(
            [
                linear_session(
                    f"{g}{i}",
                    [8, 9, 10 + g],
                    [[12 + (7 * step + 5 * i + 3 * j + g) % 30 for j in range(6)]] * 2,
                    reward=float(i % 3),
                    demonstrated=demo,
                )
                for i in range(5)
            ],
            str(g),
        )
        for g in range(2)
    ]
    return pack(groups, make_algorithm(algo).credit(groups), budget, seed=step, merge=algo.merge)


def parameters(trainer: TorchTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_the_torch_trainer_is_a_trainer(tiny_llama: Path) -> None:
    trainer = make_trainer(tiny_llama, CPU, ALGO)
    assert isinstance(trainer, Trainer)
    with pytest.raises(UnknownName, match="did you mean 'torch'"):
        make_trainer(tiny_llama, TrainerConfig(name="toch"), ALGO)


@pytest.mark.parametrize(
    "algo",
    [
        AlgoConfig(lr=1e-2),
        AlgoConfig(lr=1e-2, epochs=2, kl_coef=0.1, entropy_coef=0.01, schedule="cosine", warmup_steps=1),
        AlgoConfig(name="rloo", lr=1e-2, merge="channels", schedule="linear", weight_decay=0.1),
    ],
)
@pytest.mark.slow
def test_two_steps_saved_and_two_more_equal_four_steps_bit_for_bit(
    algo: AlgoConfig, tiny_llama: Path, tmp_path: Path
) -> None:
    straight = trainer_on(tiny_llama, algo, total_steps=4)
    expected = [straight.step(forests_for(algo, step)) for step in range(4)]
    first = trainer_on(tiny_llama, algo, total_steps=4)
    for step in range(2):
        first.step(forests_for(algo, step))
    first.save(tmp_path / "deep" / "state")
    first.close()
    second = trainer_on(tiny_llama, algo, total_steps=4, seed=3)
    second.load(tmp_path / "deep" / "state")
    assert second.version == 2
    found = [second.step(forests_for(algo, step)) for step in range(2, 4)]
    assert found == expected[2:]
    assert same(parameters(second), parameters(straight))
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["state"]


@pytest.mark.slow
def test_a_resumed_run_learns_under_the_settings_that_it_is_given_not_those_it_was_saved_with(
    tiny_llama: Path, tmp_path: Path
) -> None:
    first = trainer_on(tiny_llama, ALGO, total_steps=4)
    first.step(forests_for(ALGO))
    first.save(tmp_path / "state")
    changed = ALGO.model_copy(update={"lr": ALGO.lr / 7, "weight_decay": 0.3, "betas": (0.5, 0.6), "kl_coef": 0.1})
    second = trainer_on(tiny_llama, changed, total_steps=4)
    second.load(tmp_path / "state")
    for group in second.optimizer.adam.param_groups:
        assert group["betas"] == (0.5, 0.6)
    assert second.optimizer.adam.param_groups[0]["weight_decay"] == 0.3
    assert second.step(forests_for(changed, 1))["lr"] == pytest.approx(ALGO.lr / 7)
    assert second.reference is not None


@pytest.mark.slow
def test_an_exported_folder_loads_in_transformers_with_equal_logits(tiny_llama: Path, tmp_path: Path) -> None:
    (tiny_llama / "tokenizer_config.json").write_text("{}")
    trainer = trainer_on(tiny_llama)
    trainer.step(forests_for(ALGO))
    for _ in range(2):  # a second export replaces the first
        trainer.export(tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer_config.json").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager")
    ids = torch.arange(8, 24)[None]
    trainer.model.set_attn_implementation("eager")  # type: ignore[operator]
    assert torch.equal(exported(ids).logits, trainer.model(ids).logits)


@pytest.mark.slow
def test_published_weights_are_what_a_plain_model_needs(tiny_llama: Path) -> None:
    trainer = trainer_on(tiny_llama)
    trainer.step(forests_for(ALGO))
    plain = AutoModelForCausalLM.from_pretrained(tiny_llama)
    weights = dict(trainer.weights())
    missing, unexpected = plain.load_state_dict(weights, strict=False)
    assert not unexpected
    assert missing == ["lm_head.weight"]  # tied to the embedding, so it is sent once
    plain.tie_weights()
    assert same(parameters(trainer), plain.state_dict())
    assert not any(tensor.requires_grad for tensor in weights.values())


@pytest.mark.slow
def test_imitation_raises_the_likelihood_of_what_was_demonstrated(tiny_llama: Path) -> None:
    algo = AlgoConfig(name="sft", lr=3e-2, schedule="cosine")
    trainer = trainer_on(tiny_llama, algo, total_steps=30)
    losses = [trainer.step(forests_for(algo))["loss"] for _ in range(30)]
    assert losses[0] > 3
    assert losses[-1] < 0.5 * losses[0]
    assert not any(name.startswith("mismatch") for name in trainer.step(forests_for(algo)))


def test_better_samples_become_likelier_and_worse_ones_less_likely(tiny_llama: Path) -> None:
    trainer = trainer_on(tiny_llama)
    [forest] = forests_for(ALGO, budget=10_000)
    [before] = trainer.logprobs([forest])
    for _ in range(3):
        trainer.step([forest])
    [after] = trainer.logprobs([forest])
    change = (after - before) * forest.advantage
    assert float(change[forest.weight > 0].mean()) > 0


@pytest.mark.slow
def test_a_first_update_has_ratio_one_and_a_second_epoch_has_not(tiny_llama: Path) -> None:
    once = trainer_on(tiny_llama).step(forests_for(ALGO))
    assert once["policy/approx_kl"] == 0
    assert once["policy/clip_fraction"] == 0
    twice = trainer_on(tiny_llama, AlgoConfig(lr=0.1, epochs=3)).step(forests_for(ALGO))
    assert twice["policy/approx_kl"] > 0
    assert 0 < twice["policy/clip_fraction"] < 1
    assert twice["mismatch/abs_mean"] == pytest.approx(once["mismatch/abs_mean"])


def test_mismatch_is_the_distance_from_the_engine_before_the_update(tiny_llama: Path) -> None:
    trainer = trainer_on(tiny_llama)
    forests = forests_for(ALGO)
    exact = trainer.logprobs(forests)
    off = [dataclasses.replace(f, behaviour_logp=logp) for f, logp in zip(forests, exact, strict=True)]
    shifted = off[0].behaviour_logp.clone()
    shifted[torch.nonzero(off[0].weight)[0]] += 0.5
    off[0] = dataclasses.replace(off[0], behaviour_logp=shifted)
    metrics = trainer.step(off)
    assert metrics["mismatch/abs_max"] == pytest.approx(0.5, abs=1e-4)
    assert metrics["mismatch/abs_mean"] == pytest.approx(0.5 / metrics["tokens/trained"], abs=1e-4)


@pytest.mark.slow
def test_the_reference_is_the_policy_that_the_phase_began_with(tiny_llama: Path) -> None:
    algo = AlgoConfig(lr=1e-2, kl_coef=0.5)
    trainer = trainer_on(tiny_llama, algo)
    forests = forests_for(algo)
    before = trainer.logprobs(forests)
    assert trainer.step(forests)["policy/kl_reference"] == pytest.approx(0, abs=1e-6)
    assert trainer.step(forests)["policy/kl_reference"] > 0
    for one, other in zip(before, trainer.logprobs(forests, reference=True), strict=True):
        assert torch.equal(one, other)
    trainer.begin(ALGO, 1)
    with pytest.raises(InvalidInput, match="kl_coef"):
        trainer.logprobs(forests, reference=True)


def test_a_gradient_that_is_not_finite_costs_a_step_and_nothing_else(tiny_llama: Path) -> None:
    trainer = trainer_on(tiny_llama)
    before = parameters(trainer)
    [forest] = forests_for(ALGO, budget=10_000)
    broken = dataclasses.replace(forest, advantage=torch.full_like(forest.advantage, float("inf")))
    metrics = trainer.step([broken])
    assert metrics["skipped_updates"] == 1
    assert not math.isfinite(metrics["grad_norm"])
    assert same(parameters(trainer), before)
    metrics = trainer.step([forest])
    assert metrics["skipped_updates"] == 0
    assert not same(parameters(trainer), before)


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [1, 3])
def test_the_schedule_reaches_its_end_with_the_run_whatever_the_epochs_and_steps_without_signal(
    epochs: int, tiny_llama: Path
) -> None:
    """Updates used to be counted: with three epochs, the last two thirds of a run had a learning rate of 0."""
    algo = AlgoConfig(lr=1e-3, schedule="linear", warmup_steps=1, epochs=epochs)
    trainer = trainer_on(tiny_llama, algo, total_steps=5)
    rates, moved = [], []
    for step in range(5):
        before = parameters(trainer)
        rates.append(trainer.step([] if step == 1 else forests_for(algo, step))["lr"])
        moved.append(not same(parameters(trainer), before))
    assert rates == pytest.approx([0.5e-3, 1e-3, 0.75e-3, 0.5e-3, 0.25e-3])
    assert moved == [True, False, True, True, True]


def test_a_batch_without_forests_changes_no_weight(tiny_llama: Path) -> None:
    trainer = trainer_on(tiny_llama)
    before = parameters(trainer)
    assert trainer.step([])["tokens/trained"] == 0
    assert trainer.version == 1
    assert same(parameters(trainer), before)


@pytest.mark.slow
def test_a_new_phase_forgets_the_optimizers_past(tiny_llama: Path) -> None:
    """After a warm start, reinforcement learning begins like it would on the exported weights."""
    sft = AlgoConfig(name="sft", lr=1e-2)
    trainer = trainer_on(tiny_llama, sft)
    trainer.step(forests_for(sft))
    weights = parameters(trainer)
    trainer.begin(ALGO, 1)
    trainer.step(forests_for(ALGO))
    fresh = trainer_on(tiny_llama)
    fresh.model.load_state_dict(weights)
    fresh.version = trainer.version - 1
    fresh.step(forests_for(ALGO))
    assert same(parameters(trainer), parameters(fresh))


@pytest.mark.slow
def test_bfloat16_computes_near_float32_and_keeps_float32_weights(tiny_llama: Path) -> None:
    forests = forests_for(ALGO)
    exact = trainer_on(tiny_llama).step(forests)
    trainer = TorchTrainer(tiny_llama, TorchConfig(device="cpu", dtype="bfloat16"), ALGO)
    rough = trainer.step(forests)
    assert rough["policy/logp"] == pytest.approx(exact["policy/logp"], rel=0.02)
    assert rough["grad_norm"] == pytest.approx(exact["grad_norm"], rel=0.1)
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    with pytest.raises(ValueError, match="float16"):
        TorchConfig(device="cpu", dtype="float16")


def head_of(tiny_llama: Path) -> tuple[Any, Tensor, Rows]:
    """A head, random hidden states of a forest, and its trained rows."""
    [forest] = forests_for(ALGO, budget=10_000)
    head = trainer_on(tiny_llama).model.get_output_embeddings()  # type: ignore[operator]
    return head, torch.randn(len(forest), 32, requires_grad=True), forest.rows()


def test_the_head_in_chunks_equals_the_head_at_once(tiny_llama: Path) -> None:
    head, hidden, rows = head_of(tiny_llama)
    results = []
    for limit in (1 << 24, 48 * 7):
        logp, entropy = token_logps(head, hidden, rows, limit)
        results.append((logp, entropy, *torch.autograd.grad((logp - 0.3 * entropy).sum(), (hidden, head.weight))))
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_blocks_of_rows_change_no_bit_of_a_chunk_or_its_gradients(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, hidden, rows = head_of(tiny_llama)
    results = []
    for block in (1 << 30, 48 * 2):
        monkeypatch.setattr("agentrl.train.trainers.head.BLOCK_ELEMENTS", block)
        logp, entropy = token_logps(head, hidden, rows, 48 * 7)
        grads = torch.autograd.grad((logp - 0.3 * entropy).sum(), (hidden, head.weight))
        results.append((logp, entropy, *grads))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_under_autocast_the_head_in_chunks_is_as_near_as_at_once_and_sums_in_float32(tiny_llama: Path) -> None:
    head, hidden, rows = head_of(tiny_llama)
    results = []
    for limit, autocast in ((1 << 24, False), (1 << 24, True), (48 * 7, True)):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logp, entropy = token_logps(head, hidden, rows, limit)
        found = logp, entropy, *torch.autograd.grad((logp - 0.3 * entropy).sum(), (hidden, head.weight))
        assert {one.dtype for one in found} == {torch.float32}
        results.append(found)
    for exact, whole, chunked in zip(*results, strict=True):
        assert (chunked - exact).norm() <= 2 * (whole - exact).norm()


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1 / 3, 2 / 3, 1, 1, 1, 1]),
        ("linear", [1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25]),
        ("cosine", [1 / 3, 2 / 3, 1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5]),
    ],
)
def test_the_learning_rate_warms_up_and_follows_its_schedule(schedule: str, expected: list[float]) -> None:
    algo = AlgoConfig.model_validate({"lr": 1.0, "schedule": schedule, "warmup_steps": 2})
    assert [learning_rate(algo, step, 6) for step in range(6)] == pytest.approx(expected)
    assert learning_rate(algo, 10**6, 6) == (1.0 if schedule == "constant" else pytest.approx(0.0))


@pytest.mark.slow
def test_recomputed_layers_give_the_same_update_bit_for_bit_and_hold_fewer_activations(tiny_llama: Path) -> None:
    forests = forests_for(ALGO)
    kept = trainer_on(tiny_llama)
    recomputing = TorchTrainer(tiny_llama, TorchConfig(device="cpu", recompute="full"), ALGO)
    saved: dict[str, int] = {}
    for name, trainer in (("kept", kept), ("recomputing", recomputing)):
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: (s.append(t.numel()), t)[1], lambda t: t):
            trainer.step(forests)
        saved[name] = sum(sizes)
    assert same(parameters(kept), parameters(recomputing))
    assert saved["recomputing"] < saved["kept"] / 2


@pytest.mark.parametrize("name", ["grpo", "sft"])
@pytest.mark.slow
def test_forests_side_by_side_change_no_bit_of_a_step_or_its_metrics(
    name: str, tiny_llama: Path, allow_cores: Callable[[int], None]
) -> None:
    allow_cores(3)
    algo = AlgoConfig(name=name, lr=1e-2)
    together, apart = trainer_on(tiny_llama, algo), TorchTrainer(tiny_llama, TorchConfig(device="cpu", threads=1), algo)
    assert (together.together is None, together.threads) == (False, 1)
    assert (apart.together, apart.threads) == (None, 1)
    for step in range(3):
        forests = forests_for(algo, step)
        assert len(forests) > 1
        assert together.step(forests) == apart.step(forests_for(algo, step))
        assert same(parameters(together), parameters(apart))


def test_settings_of_the_torch_trainer_are_taken_and_those_of_megatron_refused() -> None:
    taken = TorchConfig(device="cpu", dtype="bfloat16", token_budget=64, threads=2, recompute="full", proof=False)
    assert (taken.threads, taken.proof) == (2, False)
    with pytest.raises(
        ConfigError, match=r"trainer\.pipeline_parallel=2 belongs to trainer=megatron, not trainer=torch"
    ):
        validate({"env": "calculator", "trainer": {"pipeline_parallel": 2}}, RunConfig)
