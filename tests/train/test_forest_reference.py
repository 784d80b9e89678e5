"""The meaning of a forest, held against every root-to-leaf path as a row of its own, on a real tiny Llama."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from agentrl.config import AlgoConfig
from agentrl.train.algorithms import make_algorithm
from agentrl.train.algorithms.advantages.grpo import GrpoConfig
from agentrl.train.algorithms.credit import Credit
from agentrl.train.algorithms.policy_losses.clipped import ClippedConfig
from agentrl.train.algorithms.returns import STD_FLOOR
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Session
from tests.train.trees import (
    as_group,
    environment_node,
    leaf_credit,
    leaves,
    linear_session,
    path,
    random_session,
    reference_loss,
    rows_of,
    sampled_node,
)

RANDOM_TREES = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
CLIP = GrpoConfig(loss=ClippedConfig(clip_low=0.2, clip_high=0.3))


def clipped(logp: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
    ratio = (logp - old).exp()
    return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.3) * advantage)


def score_function(logp: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
    return -logp * advantage


@pytest.fixture(scope="module")
def trainer(tiny_llama: Path) -> TorchTrainer:
    return TorchTrainer(tiny_llama, TorchConfig(device="cpu"), CLIP)


@pytest.fixture(scope="module")
def plain(tiny_llama: Path) -> nn.Module:
    model: nn.Module = AutoModelForCausalLM.from_pretrained(tiny_llama, attn_implementation="eager")
    return model


def random_forest_batch(seed: int, trees: int = 2) -> tuple[random.Random, list[Session]]:
    rng = random.Random(seed)
    prompt = [rng.randrange(8, 48) for _ in range(rng.randint(1, 6))]
    return rng, [random_session(rng, f"s{i}", prompt, depth=6, branching=5) for i in range(trees)]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def assert_equal_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        distance = (ours[name] - expected).norm() / expected.norm().clamp(min=1e-8)
        assert distance < 2e-4, f"{name}: {distance:.1e}"


def compare(
    trainer: TorchTrainer, plain: nn.Module, forests: Sequence[Forest], expected: Tensor, old: bool = True
) -> None:
    ours = 0.0
    for forest in forests:
        forest.check()
        forest.old_logp = forest.behaviour_logp if old else None
        ours += trainer.backward(trainer.prepare(forest))
    expected.backward()
    assert ours == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    assert_equal_gradients(gradients(trainer.model), gradients(plain))


@RANDOM_TREES
@given(seed=st.integers(0, 10**6), budget=st.sampled_from((30, 120, 10_000)))
@pytest.mark.slow
def test_two_channels_equal_the_sum_over_paths_where_branches_judge_a_turn_differently(
    seed: int, budget: int, trainer: TorchTrainer, plain: nn.Module
) -> None:
    rng, sessions = random_forest_batch(seed)
    credit, advantages = leaf_credit(rng, sessions)
    trainer.begin(CLIP, 1)
    forests = pack([as_group(sessions)], credit, budget, seed=seed, merge="channels")
    if forests:
        compare(trainer, plain, forests, reference_loss(plain, rows_of(sessions, credit, advantages), clipped))


@RANDOM_TREES
@given(seed=st.integers(0, 10**6), budget=st.sampled_from((30, 120, 10_000)))
@pytest.mark.slow
def test_the_mean_equals_the_sum_over_paths_that_all_carry_the_mean(
    seed: int, budget: int, trainer: TorchTrainer, plain: nn.Module
) -> None:
    rng, sessions = random_forest_batch(seed)
    credit, _ = leaf_credit(rng, sessions)
    trainer.begin(CLIP, 1)
    forests = pack([as_group(sessions)], credit, budget, seed=seed, merge="mean")
    if forests:
        compare(trainer, plain, forests, reference_loss(plain, rows_of(sessions, credit, None), clipped))


@RANDOM_TREES
@given(seed=st.integers(0, 10**6))
@pytest.mark.slow
def test_without_a_clip_the_mean_equals_paths_that_judge_differently(
    seed: int, trainer: TorchTrainer, plain: nn.Module
) -> None:
    rng, sessions = random_forest_batch(seed)
    credit, advantages = leaf_credit(rng, sessions)
    trainer.begin(AlgoConfig(name="rloo"), 1)
    forests = pack([as_group(sessions)], credit, 10_000, merge="mean")
    if forests:
        expected = reference_loss(plain, rows_of(sessions, credit, advantages), score_function)
        compare(trainer, plain, forests, expected, old=False)


def test_by_default_branches_that_disagree_about_a_turn_are_clipped_each_for_itself(
    trainer: TorchTrainer, plain: nn.Module
) -> None:
    """Off-policy the mean of their advantages, which `merge=mean` takes, is another loss."""
    algo = GrpoConfig(epochs=2, scale_by_std=False, loss=ClippedConfig(clip_high=0.3))
    session = linear_session("s", [8, 9], [])
    shared = sampled_node(session, 0, [30, 31, 32, 33], logprobs=[-3.0, -4.2, -3.9, -3.5])
    for i, reward in enumerate((2.0, -1.0)):
        sampled_node(session, environment_node(session, shared.id, [5 + i]).id, [34, 35], reward=reward)
    other = linear_session("o", [8, 9], [[36, 37]], reward=0.25)
    group = as_group([session, other])
    credit = make_algorithm(algo).credit([group])
    below = [node.id for node in session.nodes if node.parent is not None and node.sampled and node is not shared]
    advantages = {(session.id, leaf): credit.shares[session.id, leaf][0].advantage for leaf in below}
    advantages[other.id, leaves(other)[0]] = credit.shares[other.id, 1][0].advantage
    rows = rows_of(group.sessions, credit, advantages)  # type: ignore[arg-type]
    trainer.begin(algo, 1)
    compare(trainer, plain, pack([group], credit, 10_000, merge=algo.merge), reference_loss(plain, rows, clipped))
    [mean] = pack([group], credit, 10_000, merge="mean")
    mean.old_logp = mean.behaviour_logp
    exact = reference_loss(plain, rows, clipped).item()
    assert trainer.backward(trainer.prepare(mean)) != pytest.approx(exact, rel=0.01)
    trainer.model.zero_grad()


def test_penalty_and_bonus_apply_to_every_scored_session_as_to_rows_in_trl(tiny_llama: Path, plain: nn.Module) -> None:
    """TRL's GRPO loss on rows, written out; one of the groups has no signal, and one session no reward."""
    algo = AlgoConfig(kl_coef=0.3, entropy_coef=0.02)
    turns = [([30, 31, 32], 0.0), ([33, 34], 1.0), ([35], 1.0), ([36, 37, 38, 39], 1.0), ([40, 41], None)]
    sessions = [linear_session(f"s{i}", [8, 9], [turn], reward=reward) for i, (turn, reward) in enumerate(turns)]
    groups = [as_group(sessions[:2], "a"), as_group(sessions[2:], "b")]
    learner = TorchTrainer(tiny_llama, TorchConfig(device="cpu"), algo)
    reference = copy.deepcopy(plain).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    assert learner.reference is not None
    learner.reference.load_state_dict(reference.state_dict())
    for forest in pack(groups, make_algorithm(algo).credit(groups), 10_000, merge=algo.merge):
        batch = learner.prepare(forest)
        learner.score_reference([batch])
        learner.backward(batch)

    rows = []
    deviation = torch.tensor([0.0, 1.0]).std().item() + STD_FLOOR
    for session, advantage in zip(sessions[:4], (-0.5 / deviation, 0.5 / deviation, 0.0, 0.0), strict=True):
        ids = torch.tensor([[token for node in session.nodes for token in node.token_ids]])
        mask = torch.tensor([trainable for node in session.nodes for trainable in node.trainable])[1:].float()
        logps, others = (torch.log_softmax(m(input_ids=ids).logits[0, :-1], -1) for m in (plain, reference))
        logp, ref = (x.gather(1, ids[0, 1:, None]).squeeze(1) for x in (logps, others))
        kl = (ref - logp).exp() - (ref - logp) - 1
        entropy = -(logps.exp() * logps).sum(-1)
        value = -advantage * (logp - logp.detach()).exp() + algo.kl_coef * kl - algo.entropy_coef * entropy
        rows.append((value * mask).sum() / mask.sum())
    torch.stack(rows).mean().backward()  # type: ignore[no-untyped-call]
    assert_equal_gradients(gradients(learner.model), gradients(plain))


@pytest.mark.slow
def test_samples_that_begin_with_the_same_sampled_tokens_are_merged_and_still_sum_over_paths(
    trainer: TorchTrainer, plain: nn.Module
) -> None:
    """Two samples wrote `9 10 11` before they parted, and one resampled a turn: shared once, judged by all."""
    rng, sessions = random_forest_batch(3)
    for i, session in enumerate(sessions):
        common = sampled_node(session, 0, [9, 10, 11, 12 + i], logprobs=[-3.8, -3.9, -4.0, -4.1], version=99)
        sampled_node(session, common.id, [20, 21], version=99)
        sampled_node(session, common.id, [20, 22], version=99)
    credit, advantages = leaf_credit(rng, sessions)
    trainer.begin(CLIP, 1)
    forests = pack([as_group(sessions)], credit, 10_000, merge="channels")
    distinct = {tuple(t for n in path(s, node.id) for t in n.token_ids) for s in sessions for node in s.nodes}
    assert sum(map(len, forests)) < sum(len(n.token_ids) for s in sessions for n in s.nodes)
    assert distinct
    compare(trainer, plain, forests, reference_loss(plain, rows_of(sessions, credit, advantages), clipped))


@RANDOM_TREES
@given(seed=st.integers(0, 10**6))
@pytest.mark.slow
def test_the_log_probability_of_every_trained_token_is_the_one_it_has_on_its_path_alone(
    seed: int, trainer: TorchTrainer, plain: nn.Module
) -> None:
    rng, sessions = random_forest_batch(seed)
    credit, _ = leaf_credit(rng, sessions)
    forests = pack([as_group(sessions)], credit, 200)
    for forest, logps in zip(forests, trainer.logprobs(forests), strict=True):
        parents = forest.parents().tolist()
        for leaf in torch.nonzero(forest.end == torch.arange(1, len(forest) + 1)).flatten().tolist():
            along = [leaf]
            while parents[along[0]] >= 0:
                along.insert(0, parents[along[0]])
            ids = forest.token_ids[along]
            logits = plain(input_ids=ids[None]).logits[0, :-1] / forest.temperature[along][1:, None]
            alone = torch.log_softmax(logits.detach(), -1).gather(1, ids[1:, None]).squeeze(1)
            trained = forest.weight[along][1:] > 0
            assert torch.allclose(logps[along][1:][trained], alone[trained], atol=2e-4)


def loss_and_gradient(
    trainer: TorchTrainer, sessions: list[Session], credit: Credit, budget: int, merge: Literal["mean", "channels"]
) -> tuple[float, dict[str, Tensor], int]:
    forests = pack([as_group(sessions)], credit, budget, seed=budget, merge=merge)
    loss = sum(trainer.backward(trainer.prepare(forest)) for forest in forests)
    return loss, gradients(trainer.model), len(forests)


@pytest.mark.parametrize("normalize", ["rollout", "token", "turn", "group", "constant"])
@pytest.mark.parametrize("merge", ["mean", "channels"])
@pytest.mark.slow
def test_loss_and_gradient_do_not_depend_on_how_the_batch_is_split_into_forests(
    normalize: Literal["rollout", "token", "turn", "group", "constant"],
    merge: Literal["mean", "channels"],
    trainer: TorchTrainer,
) -> None:
    _, sessions = random_forest_batch(11, trees=6)
    for session in sessions:
        session.nodes[-1].reward = 0.5
    algo = AlgoConfig(normalize=normalize, merge=merge, kl_coef=0.1, entropy_coef=0.01)
    trainer.begin(algo, 1)
    credit = trainer.algorithm.credit([as_group(sessions)], algo)
    whole_loss, whole, one = loss_and_gradient(trainer, sessions, credit, 100_000, merge)
    split_loss, split, many = loss_and_gradient(trainer, sessions, credit, 60, merge)
    assert one == 1
    assert many > 3
    assert split_loss == pytest.approx(whole_loss, rel=1e-4, abs=1e-6)
    assert_equal_gradients(split, whole)
