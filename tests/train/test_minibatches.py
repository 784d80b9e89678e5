"""A step's groups in parts, each of which makes an update of its own (`algo.minibatches`)."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.config import AlgoConfig, RunConfig
from agentrl.errors import ConfigError, InvalidInput
from agentrl.overrides import validate
from agentrl.train.algorithms import ALGORITHMS, algorithm_settings, make_algorithm
from agentrl.train.algorithms.credit import Credit, NodeKey, Pair
from agentrl.train.algorithms.pairs import pair_credit, sequence_keys
from agentrl.train.algorithms.table import list_built_in
from agentrl.train.driver.minibatches import describe_updates, updates_of
from agentrl.train.forest.forest import Forest, sequence_count
from agentrl.train.forest.packing import pack_credited
from agentrl.train.record.provenance import forest_hash
from agentrl.train.trainers import TRAINERS, check_trainer
from agentrl.train.trainers.plugin import TrainerFactoryPlugin
from agentrl.train.trainers.ranks.balance import Division
from agentrl.train.trainers.ranks.balance import updates_of as places_of
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import GREEDY, Group
from tests.train.test_pairs import dpo
from tests.train.trees import as_group, linear_session, with_counterfactuals

NAMES = sorted(list_built_in(ALGORITHMS, "agentrl."))


def ragged(seed: int, groups: int, name: str = "g") -> list[Group]:
    """Groups of two sessions with one to three turns of some tokens; of some both have the same reward."""
    rng, found = random.Random(seed), []
    for g in range(groups):
        members = []
        for i in range(2):
            turns = [[8 + i, *[rng.randrange(8, 40)] * rng.randint(0, 6)] for _ in range(rng.randint(1, 3))]
            reward = float(i) if rng.random() < 0.8 else 0.5
            members.append(linear_session(f"{name}{g}-{i}", [8, 9 + g], turns, reward=reward, group=f"{name}{g}"))
            members[-1].rewards = {"right": reward, "short": 1 / sum(map(len, turns))}
            with_counterfactuals(members[-1])
        found.append(as_group(members, f"{name}{g}"))
    return found


def grpo(**settings: Any) -> AlgoConfig:
    return algorithm_settings({"name": "grpo", **settings})


def packed(algo: AlgoConfig, groups: Sequence[Group], seed: int = 0, budget: int = 60) -> tuple[Credit, list[Forest]]:
    return pack_credited(make_algorithm(algo), groups, values_of(algo, groups), budget, seed)


def values_of(algo: AlgoConfig, groups: Sequence[Group]) -> dict[NodeKey, list[float]] | None:
    needs = make_algorithm(algo).needs
    if not needs.values:
        return None
    return {(s.id, n.id): [0.1 * n.id] * len(n.token_ids) for g in groups for s in g.sessions for n in s.nodes}


def trained(forests: Sequence[Forest], epoch: int = 0) -> list[int]:
    """The trained tokens of each part of an epoch, in order."""
    found = Counter[int]()
    for forest in forests:
        found[forest.updates[epoch].place] += forest.trained
    assert sorted(found) == [*range(len(found))]
    return [found[place] for place in sorted(found)]


def parts_of(groups: Sequence[Group], credit: Credit, algo: AlgoConfig, epoch: int = 0) -> list[list[Group]]:
    """The groups of each part of an epoch, in order."""
    places = updates_of(groups, credit, algo, 0)
    count = 1 + max(members[epoch].place for members in places.values())
    return [[group for group in groups if places[group.id][epoch].place == place] for place in range(count)]


@given(seed=st.integers(0, 10**6), count=st.integers(1, 9), parts=st.integers(2, 5), epochs=st.integers(1, 3))
@settings(deadline=None, max_examples=30)
@pytest.mark.slow
def test_groups_are_dealt_whole_to_parts_that_differ_by_no_more_than_the_largest_group(
    seed: int, count: int, parts: int, epochs: int
) -> None:
    groups = ragged(seed, count)
    algo = grpo(minibatches=parts, epochs=epochs)
    credit, forests = packed(algo, groups, seed)
    places = updates_of(groups, credit, algo, seed)
    assert places.keys() == {group.id for group in groups}, "all groups are in denominators"
    for forest in forests:
        names = {forest.sessions[number].split("-")[0] for number in forest.session_id[forest.weight > 0].tolist()}
        assert {places[name] for name in names} == {forest.updates}
    with_tokens = [sum(1 for key in credit.shares if key[0].startswith(f"{g.id}-")) > 0 for g in groups]
    largest = max(sum(sum(n.trainable) for s in g.sessions for n in s.nodes) for g in groups)
    for epoch in range(epochs):
        tokens = trained(forests, epoch)
        assert len(tokens) == min(parts, sum(with_tokens))
        assert not tokens or max(tokens) - min(tokens) <= largest


@pytest.mark.slow
@pytest.mark.parametrize("normalize", ["rollout", "token", "turn", "group", "constant"])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("sft", "vine")])
def test_a_part_has_the_advantages_of_the_step_and_the_denominators_of_a_step_of_its_own(
    name: str, normalize: str
) -> None:
    """With an entropy bonus, or scores, every session is trained, so the part by itself has the same tokens."""
    seen = set()
    tree = {"name": name, "normalize": normalize}
    tree |= {"entropy_coef": 0.01} if make_algorithm(algorithm_settings(tree)).needs.head is None else {}
    groups = ragged(4, 6)
    for group in groups:
        beside = linear_session(f"{group.id}-x", [8, 9], [[30]], reward=0.25, group=group.id)
        beside.phase = GREEDY
        group.sessions += [beside] if name == "remax" else []
    whole, _ = packed(algorithm_settings(tree), groups)
    algo = algorithm_settings(tree | {"minibatches": 3, "epochs": 2})
    credit, _ = packed(algo, groups)
    assert credit.shares == whole.shares
    own = {session.id for group in groups for session in group.sessions}
    places = updates_of(groups, credit, algo, 0)
    for epoch, part in ((number, part) for number in (0, 1) for part in parts_of(groups, credit, algo, number)):
        [scale] = {places[group.id][epoch].scale for group in part}
        alone, _ = packed(algorithm_settings(tree), part)
        for key, shares in alone.shares.items():
            seen.add((epoch, key))
            if key[0] not in own:  # what is only measured is below another prompt
                continue
            weight = scale * math.fsum(share.weight for share in credit.shares[key])
            assert weight == pytest.approx(math.fsum(share.weight for share in shares))
    assert {key for _, key in seen if key[0] in own} == {key for key in credit.shares if key[0] in own}
    assert len(seen) == 2 * len({key for _, key in seen})


def test_parts_and_their_order_are_drawn_anew_for_each_epoch_and_by_the_seed() -> None:
    groups = ragged(1, 8)
    drawn, apart = set(), set()
    algo = grpo(minibatches=4, epochs=12)
    for seed in range(4):
        credit, _ = packed(algo, groups, seed)
        places = {
            name: tuple(m.place for m in members) for name, members in updates_of(groups, credit, algo, seed).items()
        }
        drawn.add(tuple(sorted(places.items())))
        trained_groups = {key[0].split("-")[0] for key in credit.shares}
        for one, other in itertools.combinations(sorted(trained_groups), 2):
            apart |= {(one, other, a == b) for a, b in zip(places[one], places[other], strict=True)}
    assert len(drawn) == 4
    pairs = {(one, other) for one, other, _ in apart}
    assert len(apart) > 1.5 * len(pairs), "most pairs of groups are together in some epochs and apart in others"


def test_pairs_and_agents_of_one_group_stay_together() -> None:
    """Two agents of a group are compared with their own kind, and are of one game."""
    groups = ragged(2, 4)
    sessions = [session for group in groups for session in group.sessions]
    keys = [sequence_keys(session, "session")[0] for session in sessions]
    pairs = [Pair(keys[0], keys[5], 0.25), Pair(keys[2], keys[7], 0.25), Pair(keys[4], keys[1], 0.5)]
    credit = pair_credit(sessions, pairs, "session")
    algo = dpo(minibatches=4, epochs=3)
    for epoch in range(3):
        parts = parts_of(groups, credit, algo, epoch)
        assert sorted([group.id for group in part] for part in parts) == [["g0", "g2"], ["g1", "g3"]]
    weights = {
        name: math.fsum(pair.weight for pair in pairs if pair.chosen[0][:2] in name) for name in ("g0g2", "g1g3")
    }
    for name, members in updates_of(groups, credit, algo, 0).items():
        [own] = (weight for names, weight in weights.items() if name in names)
        assert own * members[0].scale == pytest.approx(1)

    views = []
    for group in ragged(3, 3, "h"):
        for session in group.sessions:
            session.agent_rewards = {"main": session.reward, "other": 0.0}
            session.nodes[0].agent = session.nodes[1].agent = "main"
            for node in session.nodes[2:]:
                node.agent, node.parent = ("main", node.parent)
        views += group.by_agent()
    assert {view.view_of for view in views} == {"h0", "h1", "h2"}
    for part in parts_of(views, make_algorithm(grpo()).credit(views), grpo(minibatches=3, entropy_coef=1.0)):
        together = [group.view_of for group in part]
        assert all(together.count(name) == 2 for name in together)


def test_a_session_in_two_groups_is_refused() -> None:
    groups = ragged(2, 2)
    groups[1].sessions.append(groups[0].sessions[0])
    with pytest.raises(InvalidInput, match="unique"):
        packed(grpo(minibatches=2), groups)


def test_one_minibatch_is_the_step_as_it_was_and_others_are_other_trained_tokens() -> None:
    groups = ragged(5, 4)
    (one, forests), (same, others) = packed(grpo(), groups), packed(grpo(minibatches=1, epochs=3), groups)
    assert one.shares == same.shares
    assert forest_hash(forests) == forest_hash(others)
    assert not any(forest.updates for forest in [*forests, *others])
    twice = [forest_hash(packed(grpo(minibatches=2, epochs=2), groups, seed)[1]) for seed in (0, 0, 1)]
    assert twice[0] == twice[1] != twice[2]


@pytest.mark.parametrize("epochs", [1, 2, 3])
@pytest.mark.parametrize(("copies", "multiple"), [(1, 1), (2, 1), (3, 1), (2, 2)])
def test_every_rank_has_as_many_micro_batches_of_each_update(copies: int, multiple: int, epochs: int) -> None:
    _, forests = packed(algorithm_settings({"name": "gspo", "minibatches": 3, "epochs": epochs}), ragged(6, 7))
    shares = Division(tuple(range(copies)), 8, multiple).shares(forests)
    counts = [Counter(each for forest in share.forests for each in places_of(forest)) for share in shares]
    assert all(count == counts[0] for count in counts)
    assert all(number % multiple == 0 for number in counts[0].values())
    assert len({len(share.works) for share in shares}) == 1
    assert len(shares[0].works) % multiple == 0
    scales = {each: m.scale for f in forests for each, m in zip(places_of(f), f.updates, strict=True)}
    for forest in (forest for share in shares for forest in share.forests):
        assert all(forest.updates[epoch].scale == scales[epoch, place] for epoch, place in places_of(forest))
    placed = {(w.origin, w.offset): w.forest for share in shares for w in share.works if w.origin >= 0}
    for (origin, _), forest in placed.items():
        assert forest.updates == forests[origin].updates
        assert set(forest.token_ids.tolist()) <= set(forests[origin].token_ids.tolist())
    assert sum(forest.trained for forest in placed.values()) == sum(forest.trained for forest in forests)
    assert {share.sequences for share in shares} == {sequence_count(forests)}


def learn(folder: Path, algo: AlgoConfig, groups: Sequence[Group], steps: int = 1) -> tuple[TorchTrainer, list[Any]]:
    trainer = TorchTrainer(folder, TorchConfig(device="cpu", threads=1), algo)
    rows = [trainer.step(packed(algo, groups, step)[1]) for step in range(steps)]
    return trainer, rows


@pytest.mark.slow
def test_tokens_of_later_parts_have_other_ratios_than_1_and_the_version_rises_once_a_step(tiny_llama: Path) -> None:
    groups = ragged(7, 6)
    (_, [one]), (trainer, rows) = (
        learn(tiny_llama, grpo(lr=1e-2), groups),
        learn(tiny_llama, grpo(lr=1e-2, minibatches=3), groups, 2),
    )
    assert "minibatches" not in one
    assert one["policy/approx_kl"] == 0
    assert rows[0]["policy/approx_kl"] > 0
    assert [row["minibatches"] for row in rows] == [3, 3]
    assert trainer.version == trainer.optimizer.steps == 2
    assert {int(state["step"]) for state in trainer.optimizer.adam.state.values()} == {6}
    for name in ("mismatch/abs_mean", "mismatch/abs_max", "mismatch/kl"):  # of all tokens, before the first update
        assert rows[0][name] == pytest.approx(one[name], rel=1e-4)


@pytest.mark.parametrize("epochs", [1, 2])
def test_old_log_probabilities_are_taken_once_before_the_first_update(
    epochs: int, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    score = TorchTrainer._score

    def counted(self: TorchTrainer, batch: Any, *more: Any) -> torch.Tensor:
        passes.append(int({int(s["step"]) for s in self.optimizer.adam.state.values()} != set()))
        return score(self, batch, *more)

    monkeypatch.setattr(TorchTrainer, "_score", counted)
    algo = grpo(lr=1e-2, minibatches=3, epochs=epochs)
    _, forests = packed(algo, ragged(7, 6), budget=1000)
    TorchTrainer(tiny_llama, TorchConfig(device="cpu", threads=1), algo).step(forests)
    assert passes == [0] * len([f for f in forests if f.updates[0].place])
    assert passes


def test_a_part_that_is_masked_moves_no_weight_and_the_others_do(tiny_llama: Path) -> None:
    algo = grpo(lr=1e-2, minibatches=2, weight_decay=0.5, correction={"mask_token": (0.9, 1.1)})
    trainer = TorchTrainer(tiny_llama, TorchConfig(device="cpu", threads=1), algo)
    _, forests = packed(algo, ragged(8, 4), budget=1000)
    for forest, logp in zip(forests, trainer.logprobs(forests), strict=True):
        forest.behaviour_logp = logp if forest.updates[0].place == 0 else logp - 9
    metrics = trainer.step(forests)
    assert {int(state["step"]) for state in trainer.optimizer.adam.state.values()} == {1}
    assert metrics["grad_norm"] > 0
    assert 0 < metrics["correction/mask_fraction"] < 1
    assert trainer.version == 1


def test_a_step_without_trained_tokens_makes_no_update_and_fewer_groups_make_fewer(tiny_llama: Path) -> None:
    algo = grpo(minibatches=4)
    flat = ragged(9, 4)
    for group in flat:
        for session in group.sessions:
            session.reward = 1.0
    trainer, [row] = learn(tiny_llama, algo, flat)
    assert (row["minibatches"], row["grad_norm"], trainer.version) == (0, 0, 1)
    assert not describe_updates(row, algo)
    flat[1].sessions[0].reward = flat[2].sessions[0].reward = 0.0
    _, [row] = learn(tiny_llama, algo, flat)
    assert row["minibatches"] == 2
    assert "fewer groups of a step than algo.minibatches=4" in describe_updates(row, algo)
    assert not describe_updates(row, grpo())


@pytest.mark.parametrize("trunk", ["policy", "own"])
def test_a_critic_makes_an_update_with_each_part_in_each_of_its_epochs(trunk: str, tiny_llama: Path) -> None:
    algo = algorithm_settings({"name": "ppo", "minibatches": 3, "value_epochs": 2, "value_trunk": trunk})
    trainer, [row] = learn(tiny_llama, algo, ragged(7, 6))
    assert trainer.critic is not None
    first, *others = ({int(s["step"]) for s in each.adam.state.values()} for each in trainer.critic.optimizers)
    assert first == {6}
    assert others in ([], [{5}]), "a row of zeros has no gradient for its trunk at first"
    assert row["critic/loss"] > 0


@pytest.mark.slow
def test_pairs_are_learned_part_by_part(tiny_llama: Path) -> None:
    groups = ragged(2, 4)
    sessions = [session for group in groups for session in group.sessions]
    keys = [sequence_keys(session, "session")[0] for session in sessions]
    credit = pair_credit(sessions, [Pair(keys[i], keys[i + 1], 0.25) for i in (0, 2, 4, 6)], "session")
    algo = dpo(minibatches=2, lr=1e-2, epochs=2)
    algorithm = make_algorithm(algo)
    algorithm.credit = lambda groups, values=None: credit  # type: ignore[method-assign,assignment]
    _, forests = pack_credited(algorithm, groups, None, 30, 0)
    trainer = TorchTrainer(tiny_llama, TorchConfig(device="cpu", threads=1), algo)
    rows = [trainer.step(forests) for _ in range(3)]
    assert {int(state["step"]) for state in trainer.optimizer.adam.state.values()} == {12}
    assert rows[-1]["loss"] < rows[0]["loss"]


class OneUpdate:
    """Stands for a trainer of somebody's own that knows nothing of parts."""


@pytest.mark.slow
def test_settings_that_no_step_can_have_are_refused_before_a_run() -> None:
    tree = {"env": "calculator", "algo": {"name": "grpo", "minibatches": 5}, "rollout": {"groups_per_step": 4}}
    with pytest.raises(
        ConfigError, match=r"algo\.minibatches=5: .*rollout\.groups_per_step=4; use algo\.minibatches<=4"
    ):
        validate(tree, RunConfig)
    with pytest.raises(ConfigError, match=r"algo\.minibatches"):
        validate(tree | {"algo": {"name": "grpo", "minibatches": 0}}, RunConfig)
    assert not TrainerFactoryPlugin(OneUpdate).takes_minibatches  # type: ignore[arg-type]
    assert all(TRAINERS.find(name).takes_minibatches for name in ("torch", "fsdp", "megatron"))
    own = type(TRAINERS.find("torch").settings())(name=f"{__name__}:OneUpdate")
    check_trainer(own, make_algorithm(grpo()))
    with pytest.raises(ConfigError, match=r"algo\.minibatches=2: trainer=.*OneUpdate makes one update"):
        check_trainer(own, make_algorithm(grpo(minibatches=2)))
