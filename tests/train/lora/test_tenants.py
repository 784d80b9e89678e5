"""Several adapters on one base, held once: each learns what it would learn alone."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from pydantic import ValidationError

import agentrl
from agentrl.config import AlgoConfig, RunConfig
from agentrl.rollout.weights.buckets import ADAPTER
from agentrl.train.forest.forest import Forest
from agentrl.train.record.state import TRAINER, part
from agentrl.train.record.verify import verify
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.backends.test_torch import forests_for
from tests.train.lora.test_lora import same, trainer_on, weights
from tests.train.test_resume import end, start, words
from tests.train.test_several_learners import BOTH, DEMAND, alone
from tests.train.test_several_learners import weights as saved_weights

ALGO = AlgoConfig(lr=1e-2, kl_coef=0.1)


@pytest.mark.slow
def test_adapters_on_one_base_learn_the_bits_that_each_would_learn_alone_and_hold_it_once(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """Modules that one of them trains in full are its own; both are saved and resumed."""
    settings: list[dict[str, Any]] = [{"rank": 3}, {"rank": 2, "full": ("model.norm",)}]
    shared, apart = ([trainer_on(tiny_llama, ALGO, **each) for each in settings] for _ in range(2))
    first, second = shared
    assert second.share_base(first)
    own = {id(each) for each in first.model.parameters()}
    held = {name for name, each in second.model.named_parameters() if id(each) not in own}
    assert held == {name for name in held if "lora_" in name} | {"model.norm.weight"}
    for step in range(3):
        for one, other in zip(shared, apart, strict=True):
            assert one.step(forests_for(ALGO, step)) == other.step(forests_for(ALGO, step))
    for number, (one, other) in enumerate(zip(shared, apart, strict=True)):
        assert same(weights(one), weights(other))
        one.save(tmp_path / str(number))
    for number, one in enumerate(shared):  # whichever is loaded first, the base stays
        one.step(forests_for(ALGO, 7))
        one.load(tmp_path / str(number))
    for one, other in zip(shared, apart, strict=True):
        assert same(weights(one), weights(other))
    first.close()
    assert same(weights(second), weights(apart[1]))


@pytest.mark.slow
def test_a_base_of_another_model_is_not_shared(tiny_llama: Path, tmp_path: Path) -> None:
    trainer_on(tiny_llama, ALGO, rank=2).export(tmp_path)
    first, second, whole = (trainer_on(tiny_llama, ALGO, **each) for each in ({"rank": 2}, {"rank": 2}, {"rank": 0}))
    other = trainer_on(tmp_path, ALGO, rank=2)
    assert not other.share_base(first)
    assert not second.share_base(whole)
    assert not second.shared_base


@pytest.mark.slow
def test_passes_over_trees_of_several_adapters_are_those_of_each_alone_up_to_rounding(tiny_llama: Path) -> None:
    """Also where one has more updates than the other, whose step ends first, and where a step fails."""
    algos = (AlgoConfig(lr=1e-2, kl_coef=0.1, epochs=2), AlgoConfig(lr=1e-2))
    shared, apart = ([trainer_on(tiny_llama, algo, rank=2 + n) for n, algo in enumerate(algos)] for _ in range(2))
    first, second = shared
    assert second.share_base(first)
    second.prove_mixing()

    def step(trainer: TorchTrainer, forests: list[Forest]) -> dict[str, float]:
        try:
            return trainer.step(forests)
        finally:
            trainer.end_mixing()

    for number in range(2):
        with first.mixing([second]), ThreadPoolExecutor() as pool:
            found = list(pool.map(step, shared, (forests_for(ALGO, number), forests_for(ALGO, number + 5))))
        for metrics, other, seed in zip(found, apart, (number, number + 5), strict=True):
            alone = other.step(forests_for(ALGO, seed))
            assert metrics == {name: pytest.approx(value, rel=1e-4, abs=1e-5) for name, value in alone.items()}
    for one, other in zip(shared, apart, strict=True):
        theirs = weights(other)
        assert all(torch.allclose(weight, theirs[name], atol=1e-5) for name, weight in weights(one).items())

    with first.mixing([second]), ThreadPoolExecutor() as pool:
        bad = forests_for(ALGO, 3)
        bad[0].token_ids[0] = 1 << 40
        ended = pool.submit(step, second, forests_for(ALGO, 4))
        with pytest.raises(IndexError):
            step(first, bad)
        assert "loss" in ended.result(timeout=60)


@pytest.mark.slow
def test_policies_with_adapters_share_the_base_that_a_warm_start_left_and_a_killed_run_goes_on(tmp_path: Path) -> None:
    """Each learns what its own run would; the base is written once, and their engines get adapters."""
    short = {"steps": 2, "checkpoint_every": 2, "warm_start.steps": 4, "warm_start.demos": 16, "lora.rank": 2}
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    settings = BOTH | short | {"algo.warmup_steps": 0, "algo.lr": 1e-2, "policies.other.algo.lr": 1e-2}
    agentrl.train(run_dir=str(straight), **settings)
    report = verify(straight)
    assert report.passed, report
    for policy in ("main", "other"):
        last = saved_weights(straight, policy, 2)
        assert same(alone(straight, policy, tmp_path / policy), last)
        assert not same(saved_weights(straight, policy, 0), last)
        state = torch.load(part(straight / "checkpoints" / "step-000002", policy) / TRAINER, weights_only=True)
        assert all("lora_" in name for name in state["model"])
    assert same(saved_weights(straight, "main", 0), saved_weights(straight, "other", 0))
    assert not (straight / "checkpoints" / "base-other").exists()
    lines = [orjson.loads(line) for line in (straight / "provenance.jsonl").read_bytes().splitlines()]
    published = [line["published"] for line in lines if "published" in line]
    assert {each.get("policy", "main") for each in published} == {"main", "other"}
    assert all(set(each["parts"]) == {ADAPTER} for each in published)
    process = start(*words(settings), f"run_dir={killed}")
    rows = killed / "metrics.jsonl"
    end(process, signal.SIGKILL, lambda: rows.exists() and rows.read_bytes().count(b"\n") >= 1)
    agentrl.train(resume=str(killed))
    assert verify(killed).passed
    assert all(same(saved_weights(straight, each, 2), saved_weights(killed, each, 2)) for each in ("main", "other"))

    mixed = tmp_path / "mixed"
    agentrl.train(run_dir=str(mixed), **settings | {"steps": 1, "lora.tenants": "mixed"})
    assert verify(mixed).passed
    ours, theirs = (orjson.loads((run / "metrics.jsonl").read_bytes().splitlines()[0]) for run in (mixed, straight))
    for name in ("loss", "other/loss", "grad_norm", "other/grad_norm", "reward/mean"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), name


@pytest.mark.slow
def test_a_policy_with_an_adapter_of_its_own_learns_beside_one_that_is_trained_whole(tmp_path: Path) -> None:
    short = {"steps": 1, "checkpoint_every": 1, "warm_start.steps": 2, "warm_start.demos": 8, "algo.warmup_steps": 0}
    agentrl.train(run_dir=str(tmp_path), **BOTH | short | {"policies.other.lora.rank": 2})
    for policy in ("main", "other"):
        state = torch.load(part(tmp_path / "checkpoints" / "step-000001", policy) / TRAINER, weights_only=True)
        assert {"lora_" in name for name in state["model"]} == {policy == "other"}
        last = saved_weights(tmp_path, policy, 1)
        assert same(alone(tmp_path, policy, tmp_path / f"again-{policy}"), last)
    report = verify(tmp_path)
    assert report.passed, report


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"lora": {"rank": 0}}, r"lora\.tenants=mixed without an adapter \(other\) is not there"),
        ({"lora": {"rank": 4, "tenants": "mixed"}}, r"lora\.tenants is one for all policies of a run"),
        ({"weights": {"transport": "inproc"}}, r"weights\.\* is of no use to a policy that does not learn"),
    ],
)
def test_sections_of_a_policy_that_do_not_fit_are_refused(other: dict[str, Any], named: str) -> None:
    both = {"env": {"name": DEMAND}, "agents": {"right": "other"}, "policies": {"other": other}}
    with pytest.raises(ValidationError, match=named):
        RunConfig.model_validate(both | {"lora": {"rank": 2, "tenants": "mixed"}})


def test_mixed_passes_of_what_can_not_be_mixed_are_refused() -> None:
    both = {"env": {"name": DEMAND}, "agents": {"right": "other"}, "policies": {"other": {"trainer": "torch"}}}
    lora = {"rank": 2, "tenants": "mixed", "full": ["lm_head"]}
    with pytest.raises(ValidationError, match=r"lora\.tenants=mixed with lora\.full or .* \(main\) is not there"):
        RunConfig.model_validate(both | {"lora": lora})
    assert RunConfig.model_validate(both | {"lora": lora | {"full": []}}).lora.tenants == "mixed"
    for settings in (
        {"env": {"name": DEMAND}, "lora": {"rank": 2, "tenants": "mixed"}},
        both | {"lora": {"tenants": "mixed"}},
    ):
        with pytest.raises(ValidationError, match=r"several policies that learn adapters together, and there are none"):
            RunConfig.model_validate(settings)
