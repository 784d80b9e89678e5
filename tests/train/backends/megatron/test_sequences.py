"""Sequence-level losses over ranks: sums over sequences that several ranks hold parts of."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import AlgoConfig
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.pairs import pair_credit
from agentrl.train.forest.packing import pack, pack_credited
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.backends.megatron.batches import run
from tests.train.backends.megatron.world import World
from tests.train.test_labels import kto
from tests.train.test_minibatches import ragged, values_of
from tests.train.test_pairs import dpo, random_pairs
from tests.train.test_sequences import gspo
from tests.train.trees import as_group, leaf_credit, random_session


@pytest.mark.parametrize(
    "settings", [{"ranks": 2}, {"pipeline_parallel": 2}, {"tensor_parallel": 2}, {"context_parallel": 2}], ids=str
)
@pytest.mark.slow
def test_two_updates_with_sums_over_ranks_are_those_of_the_torch_trainer(
    settings: dict[str, Any], world: World, tiny: Callable[[str], Path]
) -> None:
    """The second update's gradient depends on every sequence's sum, and its tokens lie in several forests."""
    rng = random.Random(8)
    sessions = [random_session(rng, f"s{i}", [8, 9], depth=6, branching=3) for i in range(3)]
    credit, _ = leaf_credit(rng, sessions)
    algo = gspo("session", lr=3e-2, epochs=2)

    def batch() -> list[Any]:
        return pack([as_group(sessions)], credit, 60, sequence="session")

    assert len(batch()) > 2
    trainer = TorchTrainer(tiny("smollm2"), algo=algo)
    expected = trainer.step(batch())
    [got] = run(world, "steps", tiny("smollm2"), [batch()], algo=algo.model_dump(), **settings)["rows"]  # type: ignore[arg-type]
    assert 0 < expected["policy/clip_fraction"] < 1
    assert got["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    assert got["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
    assert got["policy/clip_fraction"] == pytest.approx(expected["policy/clip_fraction"])


@pytest.mark.parametrize(
    ("settings", "algo"),
    [
        ({"ranks": 2}, dpo(lr=3e-2, epochs=2)),
        ({"tensor_parallel": 2}, algorithm_settings({"name": "orpo", "lr": 3e-2, "epochs": 2})),
        (
            {"context_parallel": 2},
            algorithm_settings({"name": "dpo", "loss": {"name": "ipo"}, "lr": 3e-2, "epochs": 2}),
        ),
        *(
            ({f"{kind}_parallel": 2}, kto(lr=3e-2, epochs=2, desirable_above=0.0))
            for kind in ("tensor", "pipeline", "context")
        ),
        ({"ranks": 2}, kto(lr=3e-2, epochs=2, desirable_above=0.0)),
    ],
    ids=lambda each: each.name if isinstance(each, AlgoConfig) else str(each),
)
@pytest.mark.slow
def test_two_updates_with_pairs_or_verdicts_over_ranks_are_those_of_the_torch_trainer(
    settings: dict[str, Any], algo: AlgoConfig, world: World, tiny: Callable[[str], Path]
) -> None:
    """The baseline of verdicts is a mean over completions that lie in several forests and on several ranks."""
    rng = random.Random(9)
    sessions = [random_session(rng, f"s{i}", [8, 9 + i % 2], depth=6, branching=3) for i in range(3)]
    groups = [as_group(sessions)]
    credit = pair_credit(sessions, random_pairs(rng, sessions, "session"), "session")
    if algo.name == "kto":
        credit = make_algorithm(algo).credit(groups)

    def batch() -> list[Any]:
        return pack(groups, credit, 40, sequence="session")

    assert len(batch()) > 2
    expected = TorchTrainer(tiny("smollm2"), algo=algo).step(batch())
    [got] = run(world, "steps", tiny("smollm2"), [batch()], algo=algo.model_dump(), **settings)["rows"]  # type: ignore[arg-type]
    for name in ("preference/margin", *(["preference/baseline"] if algo.name == "kto" else [])):
        assert expected[name] != 0
        assert got[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-6)
    assert got["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    assert got["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
    assert got["preference/accuracy"] == pytest.approx(expected["preference/accuracy"])


@pytest.mark.parametrize(
    "settings", [{"pipeline_parallel": 2, "ranks": 4}, {"tensor_parallel": 2, "context_parallel": 2}], ids=str
)
@pytest.mark.slow
def test_two_updates_with_corrections_over_turns_and_sessions_are_those_of_the_torch_trainer(
    settings: dict[str, Any], world: World, tiny: Callable[[str], Path]
) -> None:
    """Weights of turns and masks of sessions are exact before the gradient, where several ranks hold parts of them."""
    rng = random.Random(8)
    sessions = [random_session(rng, f"s{i}", [8, 9], depth=6, branching=3) for i in range(3)]
    credit, _ = leaf_credit(rng, sessions)
    correction = {"proximal": "recomputed", "weight": "turn", "weight_max": 1.5, "weight_mean": True}
    correction |= {"mask_session": (1e-2, 2.0), "mask_negative": 0.02}
    algo = AlgoConfig.model_validate({"lr": 3e-2, "epochs": 2, "correction": correction})

    def batch() -> list[Any]:
        return pack([as_group(sessions)], credit, 60, merge="channels", sequence="session")

    expected = TorchTrainer(tiny("smollm2"), algo=algo).step(batch())
    [got] = run(world, "steps", tiny("smollm2"), [batch()], algo=algo.model_dump(), **settings)["rows"]  # type: ignore[arg-type]
    assert 0 < expected["correction/mask_fraction"] < 1
    assert 0 < expected["correction/clip_fraction"] < 1
    for name in ("loss", "grad_norm", *(each for each in expected if each.startswith("correction/"))):
        assert got[name] == pytest.approx(expected[name], rel=1e-4), name


@pytest.mark.parametrize("settings", [{"ranks": 2}, {"pipeline_parallel": 2, "context_parallel": 2}], ids=str)
@pytest.mark.slow
def test_updates_with_parts_of_a_batch_are_those_of_the_torch_trainer(
    settings: dict[str, Any], world: World, tiny: Callable[[str], Path]
) -> None:
    """Ratios of later parts, sums of a sequence loss, and a critic's updates; ranks may have nothing of a part."""
    for name, more in (("gspo", {"loss": {"name": "gspo", "clip_high": 0.05}}), ("ppo", {"value_epochs": 2})):
        algo = algorithm_settings({"name": name, "lr": 1e-2, "minibatches": 3, "epochs": 2, **more})
        groups = ragged(7, 5)
        forests = pack_credited(make_algorithm(algo), groups, values_of(algo, groups), 60, 0)[1]
        places = [{forest.updates[epoch].place for forest in forests} for epoch in (0, 1)]
        assert places == [{0, 1, 2}] * 2
        assert len({forest.updates for forest in forests}) > 3, "groups that are together in one epoch are not in both"
        expected = TorchTrainer(tiny("smollm2"), algo=algo).step(forests)
        [got] = run(world, "steps", tiny("smollm2"), [forests], algo=algo.model_dump(), **settings)["rows"]  # type: ignore[arg-type]
        assert got.keys() == expected.keys()
        for metric, value in expected.items():
            assert got[metric] == pytest.approx(value, rel=1e-3, abs=1e-5), metric
