"""Credit in sessions that were forked on purpose."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import AutoModelForCausalLM

from agentrl.config import AlgoConfig, ShapingConfig
from agentrl.train.algorithms import gae, make_algorithm
from agentrl.train.algorithms.adaptive import Adaptive
from agentrl.train.algorithms.advantages.grpo import Grpo, GrpoConfig
from agentrl.train.algorithms.shaping import shaped_groups
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Group, Status
from agentrl.types.branches import token_weights
from agentrl.types.session import path_weights, siblings
from tests.train.forked import (
    Segment,
    random_segment,
    reference_advantages,
    rows,
    session_of,
    weighted_rows,
)
from tests.train.test_forest_reference import CLIP, clipped, compare
from tests.train.trees import as_group, environment_node, reference_loss, sampled_node

PROMPT = [8, 9]
FEW = settings(max_examples=20, deadline=None)


def forked_group(seed: int, sessions: int = 3, rewards: bool = True) -> tuple[list[Segment], Group]:
    rng = random.Random(seed)
    segments = [random_segment(rng, rng.choice((0, 2)), rewards, fork=not i) for i in range(sessions)]
    return segments, as_group([session_of(f"s{i}", each, PROMPT) for i, each in enumerate(segments)])


def every_turn(segment: Segment) -> list[Segment]:
    return [segment, *(below for each in segment.below for below in every_turn(each))]


@FEW
@given(seed=st.integers(0, 10**6), algo=st.sampled_from(["grpo", "rloo"]), sessions=st.integers(1, 3))
@pytest.mark.slow
def test_a_turn_is_compared_with_its_siblings_at_the_last_fork_and_above_all_forks_with_the_group(
    seed: int, algo: str, sessions: int
) -> None:
    segments, group = forked_group(seed, sessions)
    config = GrpoConfig(scale_by_std=False) if algo == "grpo" else AlgoConfig(name="rloo")
    shares = make_algorithm(config).credit([group]).shares
    expected = reference_advantages(segments, leave_one_out=algo == "rloo")
    if not any(abs(value) > 1e-9 for value in expected.values()):
        return
    for session, segment in zip(group.sessions, segments, strict=True):
        for turn in (turn for each in every_turn(segment) for turn in each.turns):
            (share,) = shares[session.id, turn.node]
            assert share.advantage == pytest.approx(expected[id(turn)], abs=1e-9)


@FEW
@given(seed=st.integers(0, 10**6))
def test_paths_weigh_what_equal_choices_at_forks_give_them_and_tokens_what_the_paths_below_do(
    seed: int,
) -> None:
    segments, group = forked_group(seed)
    for session, segment in zip(group.sessions, segments, strict=True):
        paths = rows(segment, [segment])
        weights, tokens = path_weights(session), token_weights(session)
        by_turns = {tuple(turn.node for turn in path.turns): path.weight for path in paths}
        for path in session.stored_paths():
            turns = tuple(node.id for node in path if node.sampled)
            assert weights[path[-1].id] == pytest.approx(by_turns[turns])
        for turn in (turn for path in paths for turn in path.turns):
            below = [path.weight for path in paths if turn in path.turns]
            assert tokens[turn.node] == pytest.approx(sum(below))
        assert session.score == pytest.approx(sum(path.weight * path.value(0) for path in paths))


@pytest.mark.slow
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(seed=st.integers(0, 10**6), budget=st.sampled_from((40, 10_000)))
def test_a_forked_batch_equals_every_path_as_a_row_that_weighs_what_the_path_does(
    seed: int, budget: int, tiny_llama: Path
) -> None:
    plain: nn.Module = AutoModelForCausalLM.from_pretrained(tiny_llama, attn_implementation="eager")
    config = CLIP.model_copy(update={"scale_by_std": False})
    trainer = TorchTrainer(tiny_llama, TorchConfig(device="cpu"), config)
    segments, group = forked_group(seed, 2)
    forests = pack([group], Grpo(config).credit([group]), budget, seed=seed, merge="channels")
    expected = reference_advantages(segments, leave_one_out=False)
    if forests:
        compare(trainer, plain, forests, reference_loss(plain, weighted_rows(segments, PROMPT, expected), clipped))


@FEW
@given(seed=st.integers(0, 10**6))
def test_generalised_advantages_are_the_mean_over_paths_by_their_weights(seed: int) -> None:
    """With lambda 1 and values of 0 a token's advantage is what its turn returns."""
    segments, group = forked_group(seed)
    for session, segment in zip(group.sessions, segments, strict=True):
        values = {node.id: [0.0] * len(node.token_ids) for node in session.nodes}
        found = gae.advantages(session, values, 1.0, 1.0)
        paths = rows(segment, [segment])
        for turn in (turn for each in every_turn(segment) for turn in each.turns):
            through = [(path.weight, path.value(path.turns.index(turn))) for path in paths if turn in path.turns]
            mean = sum(w * value for w, value in through) / sum(w for w, _ in through)
            assert found[turn.node][-1] == pytest.approx(mean)


def test_branches_of_a_client_are_no_siblings_and_weigh_as_before() -> None:
    """A compaction (another root), an echo or a retry: none of them is compared with the turn that it stands beside."""
    _, group = forked_group(3, 1, rewards=False)
    (session,) = group.sessions
    fork = siblings(session)
    head = session.nodes[fork[0][0]].parent
    last = session.branches[-1]
    colder = sampled_node(session, head, [30, 31], temperature=0.5)
    said_again = environment_node(session, head, [30])
    sampled_node(session, said_again.id, [31])
    summary = environment_node(session, None, [7, 7])
    compacted = sampled_node(session, summary.id, [32])
    last.end = len(session.nodes)
    assert siblings(session) == fork
    assert token_weights(session)[compacted.id] == token_weights(session)[0] == 1.0
    assert token_weights(session)[colder.id] == token_weights(session)[head or 0]
    assert sum(path_weights(session).values()) == pytest.approx(1.0)


@pytest.mark.parametrize("normalize", ["rollout", "token", "group", "constant"])
def test_continuations_for_a_value_are_baselines_and_are_not_trained(normalize: str) -> None:
    rng = random.Random(5)
    segments = [random_segment(rng, 2, rewards=False, fork=True) for _ in range(2)]
    trained = as_group([session_of(f"s{i}", each, PROMPT) for i, each in enumerate(segments)])
    config = GrpoConfig(scale_by_std=False, normalize=normalize)  # type: ignore[arg-type]
    full = Grpo(config).credit([trained]).shares
    only = as_group([session_of(f"s{i}", each, PROMPT, trained=False) for i, each in enumerate(segments)])
    shares = Grpo(config).credit([only]).shares
    trunks = {(s.id, node.id) for s in only.sessions for node in s.nodes[: s.branches[0].end] if node.sampled}
    assert shares.keys() == trunks < full.keys()
    assert all(shares[key][0].advantage == full[key][0].advantage for key in trunks)
    assert len({share.weight for key, (share,) in shares.items() if key[0] == "s0"}) == 1, "no fork has two siblings"


def test_a_group_can_be_the_baseline_of_every_turn() -> None:
    segments, group = forked_group(11, 2, rewards=False)
    config = GrpoConfig(scale_by_std=False, branch_baseline="group")
    shares = Grpo(config).credit([group]).shares
    scores = [session.score or 0.0 for session in group.sessions]
    for session, segment in zip(group.sessions, segments, strict=True):
        for path in rows(segment, [segment]):
            (share,) = shares[session.id, path.turns[-1].node]
            assert share.advantage == pytest.approx(path.outcome - sum(scores) / 2)


def test_branches_that_nobody_rewarded_are_neither_trained_nor_compared_with() -> None:
    _, group = forked_group(2, 1, rewards=False)
    (session,) = group.sessions
    lost = session.branches[-1]
    lost.reward = None
    for node in session.nodes[lost.start : lost.end]:
        node.reward = None
    shares = Grpo(GrpoConfig()).credit([group]).shares
    assert not {node for _, node in shares} & set(range(lost.start, lost.end))
    assert sum(path_weights(session).values()) == pytest.approx(1.0)


def test_shaped_rewards_reach_each_branch_by_its_own_end_and_length() -> None:
    _, group = forked_group(11, 2, rewards=False)
    session = group.sessions[0]
    cut = session.branches[-1]
    cut.status = Status.TRUNCATED
    config = AlgoConfig(shaping=ShapingConfig(truncated_penalty=0.5))
    (shaped,) = shaped_groups([group], config, Adaptive.of(config))
    found = [branch.reward for branch in shaped.sessions[0].branches]
    expected = [(branch.reward or 0.0) - 0.5 * (branch is cut) for branch in session.branches]
    assert found == pytest.approx(expected)
    lost = 0.5 * path_weights(session)[cut.end - 1]
    assert shaped.sessions[0].reward == pytest.approx((session.reward or 0.0) - lost)
    assert session.branches[-1] is cut, "the stored session keeps its rewards"


@FEW
@given(seed=st.integers(0, 10**6), budget=st.sampled_from((40, 10_000)))
@pytest.mark.slow
def test_a_loss_over_sessions_weighs_each_path_as_the_choices_at_its_forks_do(seed: int, budget: int) -> None:
    """What a path's tokens weigh together is its weight times its length, over the session's."""
    segments, group = forked_group(seed, 2)
    credit = Grpo(GrpoConfig()).credit([group])
    forests = pack([group], credit, budget, seed=seed, sequence="session")
    if not forests:
        return
    assert forests[0].sequences is not None
    found = sorted(total for total in forests[0].sequences.total.tolist() if total)
    expected = []
    for segment in segments:
        lengths = [(path.weight, sum(len(turn.ids) for turn in path.turns)) for path in rows(segment, [segment])]
        whole = sum(weight * length for weight, length in lengths)
        expected += [weight * length / whole / len(segments) for weight, length in lengths]
    assert found == pytest.approx(sorted(expected), rel=1e-5)


@pytest.mark.slow
def test_a_continuation_for_a_value_is_no_sequence() -> None:
    segments, group = forked_group(11, 2)
    trunks = [session_of(f"s{i}", segment, PROMPT, trained=False) for i, segment in enumerate(segments)]
    forests = pack([as_group(trunks)], Grpo(GrpoConfig()).credit([as_group(trunks)]), 10_000, sequence="session")
    assert forests[0].sequences is not None
    assert sum(total > 0 for total in forests[0].sequences.total.tolist()) == len(group.sessions)
