"""A field that a plug-in's loss declares is in its loss, whatever trains and however a batch is split."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config import AlgoConfig
from agentrl.errors import InvalidInput
from agentrl.plugins.algorithm import ForestField
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.credit import Credit, NodeAdvantage
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack
from agentrl.train.record.provenance import forest_hash
from agentrl.train.trainers.fsdp.settings import FsdpConfig
from agentrl.train.trainers.fsdp.trainer import FsdpTrainer
from agentrl.train.trainers.ranks.balance import trees
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Session
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import run
from tests.train.backends.megatron.conftest import tiny, world  # noqa: F401
from tests.train.backends.megatron.world import World
from tests.train.trees import as_group, environment_node, leaf_credit, random_session, sampled_node

PLUGIN = """
from agentrl.plugins.loss import ForestField, PolicyLoss

SCALE = ForestField("scale", lambda session, node: [1 + token % 5 for token in node.token_ids])
KEPT = ForestField("kept", lambda session, node: [range(token % 4) for token in node.token_ids], "int32", ragged=True)
PLACE = ForestField("place", lambda session, node: (node.id, 7), "int64", scope="node", shape=(2,), padding=-1)

class Scaled(PolicyLoss):
    name = "scaled"
    affine = True
    fields = (SCALE, KEPT, PLACE)

    def __call__(self, tokens):
        kept = tokens.fields["kept"]
        tokens.metrics["policy/kept"] = kept.offsets.diff().to(tokens.logp)
        assert bool((tokens.fields["place"].values[:, 0] == tokens.turn).all())
        return -tokens.fields["scale"].values * tokens.ratio * tokens.advantage
"""


@pytest.fixture
def algo(tmp_path: Path) -> AlgoConfig:
    (tmp_path / "scaled.py").write_text(PLUGIN)
    return algorithm_settings({"name": "reinforce", "loss": {"name": f"{tmp_path}/scaled.py:Scaled"}, "lr": 1e-2})


def forests(algo: AlgoConfig) -> list[Forest]:
    rng = random.Random(5)
    sessions = [random_session(rng, f"s{i}", [8, 9], depth=4, branching=3) for i in range(3)]
    credit, _ = leaf_credit(rng, sessions)
    groups = [as_group([session], session.id) for session in sessions]
    return pack(groups, credit, 80, fields=make_algorithm(algo).fields)


def lists(forest: Any) -> list[list[int]]:
    column = forest.fields["kept"]
    return [part.tolist() for part in torch.tensor_split(column.values, column.offsets[1:-1])]


def agrees(forest: Any, known: int) -> bool:
    """Whether each token's fields are what its id says, and unknown from `known` on."""
    ids = forest.token_ids.tolist()
    scale = [1.0 + i % 5 for i in ids[:known]] + [0.0] * (len(ids) - known)
    kept = [list(range(i % 4)) for i in ids[:known]] + [[]] * (len(ids) - known)
    return forest.fields["scale"].values.tolist() == scale and lists(forest) == kept


def test_fields_stay_with_their_tokens_however_a_forest_is_cut_padded_and_read(algo: AlgoConfig) -> None:
    packed = forests(algo)
    assert len(packed) > 1
    for forest in packed:
        forest.check()
        rows, padded = forest.rows(), forest.padded(len(forest) + 3)
        padded.check()
        assert agrees(forest, len(forest))
        assert agrees(rows, len(rows))
        assert agrees(padded, len(forest))
        assert padded.fields["place"].values[-3:].eq(-1).all()
        assert torch.equal(forest.fields["place"].values[:, 0], forest.node_id)
        some = rows.take(torch.arange(len(rows)) % 3 == 1)
        assert agrees(some, len(some))
        assert agrees(some.to("cpu"), len(some))
        starts = [*torch.nonzero(forest.position == 0).flatten().tolist(), len(forest)]
        for start, stop in itertools.pairwise(starts):
            assert agrees(trees(forest, start, stop), stop - start)
    before = forest_hash(packed)
    packed[0].fields["scale"].values[0] += 1
    assert forest_hash(packed) != before


def test_a_loss_on_torch_reads_the_fields_and_refuses_a_forest_without_them(algo: AlgoConfig, tmp_path: Path) -> None:
    folder = zoo.write("smollm2", tmp_path / "model")
    trainer = TorchTrainer(folder, TorchConfig(device="cpu"), algo)
    packed = forests(algo)
    rows = [forest.rows() for forest in packed]
    scaled = sum(float((r.weight * -r.advantage * (1 + r.token_ids % 5)).sum()) for r in rows)  # ratios are 1
    kept = torch.cat([r.token_ids % 4 for r in rows]).float().mean()
    found = trainer.step(packed)
    assert found["loss"] == pytest.approx(scaled, rel=1e-4)
    assert found["policy/kept"] == pytest.approx(float(kept))
    for forest in packed:
        forest.fields = {}
    with pytest.raises(InvalidInput, match="'scale', 'kept', 'place'"):
        trainer.step(packed)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_fsdp_ranks_learn_from_the_fields_as_one_process_does(algo: AlgoConfig, tmp_path: Path) -> None:
    folder = zoo.write("smollm2", tmp_path / "model")
    wanted = TorchTrainer(folder, TorchConfig(device="cpu"), algo).step(forests(algo))
    ours = FsdpTrainer(folder, FsdpConfig.model_validate({"ranks": 2, "timeout": 250}), algo)
    try:
        same(ours.step(forests(algo)), wanted)
    finally:
        ours.close()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"context_parallel": 2}, {"ranks": 2}], ids=str)
def test_megatrons_ranks_learn_from_the_fields_as_one_process_does(
    settings: dict[str, Any],
    algo: AlgoConfig,
    world: World,  # noqa: F811
    tiny: Callable[[str], Path],  # noqa: F811
) -> None:
    wanted = TorchTrainer(tiny("smollm2"), TorchConfig(device="cpu"), algo).step(forests(algo))
    answer = run(world, "steps", tiny("smollm2"), [forests(algo)], algo=algo.model_dump(), **settings)  # type: ignore[arg-type]
    same(answer["rows"][0], wanted)


def same(found: dict[str, float], wanted: dict[str, float]) -> None:
    for name in ("loss", "grad_norm", "policy/kept"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-4), name


def twins(apart: bool) -> Forest:
    """Two sessions of the same tokens, with different values."""
    made = []
    for name in "ab":
        session = Session(name, "task")
        sampled_node(session, environment_node(session, None, [5, 6]).id, [7, 8, 9])
        made.append(session)
    shares = {(s.id, n.id): (NodeAdvantage(1.0, 0.5),) for s in made for n in s.nodes if n.sampled}
    field = ForestField("who", lambda session, node: session.id == "b", "bool", scope="session", apart=apart)
    [forest] = pack([as_group(made)], Credit(shares), 100, fields=[field])
    return forest


def test_tokens_with_other_values_are_computed_apart_where_the_field_says_so() -> None:
    together, apart = twins(False), twins(True)
    assert together.trained == 3
    assert apart.trained == 6
    assert len(apart) == len(together) + 3
    apart.check()
    rows = apart.rows()
    assert rows.fields["who"].values.tolist() == rows.session.bool().tolist()
    assert rows.session.sum() == 3


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        (ForestField("x", lambda s, n: [1.0]), "1 values for 2 tokens"),
        (ForestField("x", lambda s, n: [[1.0]] * 2), "shape"),
        (ForestField("x", lambda s, n: [1, 2], ragged=True), "shape"),
        (ForestField("x", lambda s, n: ["a", "b"]), "field 'x', session 's'"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(field: ForestField, problem: str) -> None:
    session = Session("s", "task")
    node = environment_node(session, None, [5, 6])
    with pytest.raises(InvalidInput, match=problem):
        field.of_node(session, node)
