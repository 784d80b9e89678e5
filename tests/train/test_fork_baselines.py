"""Advantages that have baselines of their own, in sessions that were forked on purpose."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentrl.config import AlgoConfig, RunConfig
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.advantages.gigpo import Gigpo, GigpoConfig
from agentrl.train.algorithms.advantages.grpo import Grpo, GrpoConfig
from agentrl.types import Group
from agentrl.types.branches import token_weights
from tests.train.forked import Segment, Turn, reference_advantages, session_of, value_at
from tests.train.test_branch_returns import FEW, PROMPT, every_turn, forked_group
from tests.train.trees import as_group


def advantages(algo: AlgoConfig, group: Group) -> dict[tuple[str, int], float]:
    shares = make_algorithm(algo).credit([group]).shares
    return {key: float(share.advantage) for key, (share,) in shares.items()}  # type: ignore[arg-type]


def configured(name: str, **fields: object) -> AlgoConfig:
    return algorithm_settings({"name": name, **fields})


@FEW
@given(seed=st.integers(0, 10**6), name=st.sampled_from(["none", "constant", "moving", "rae"]))
def test_a_baseline_of_its_own_is_subtracted_from_what_the_turns_own_branches_return(seed: int, name: str) -> None:
    segments, group = forked_group(seed)
    mean = fmean(session.score or 0.0 for session in group.sessions)
    baseline = {"none": 0.0, "constant": 0.4, "moving": mean, "rae": mean * (1 - 0.95 ** len(segments))}[name]
    algo = configured("rae") if name == "rae" else configured("reinforce", baseline=name, baseline_value=0.4)
    found = advantages(algo, group)
    for session, segment in zip(group.sessions, segments, strict=True):
        for each in every_turn(segment):
            for depth, turn in enumerate(each.turns):
                if (session.id, turn.node) in found:
                    assert found[session.id, turn.node] == pytest.approx(value_at(each, depth) - baseline, abs=1e-9)
                else:
                    assert value_at(each, depth) == pytest.approx(baseline), "a turn with a signal is not trained"


@FEW
@given(seed=st.integers(0, 10**6))
def test_a_batchs_mean_is_the_baseline_above_forks_and_siblings_below(seed: int) -> None:
    segments, group = forked_group(seed)
    found = advantages(configured("reinforce", baseline="batch"), group)
    expected = reference_advantages(segments, leave_one_out=False)
    for session, segment in zip(group.sessions, segments, strict=True):
        for turn in (turn for each in every_turn(segment) for turn in each.turns):
            assert found.get((session.id, turn.node), 0.0) == pytest.approx(expected[id(turn)], abs=1e-9)


@FEW
@given(seed=st.integers(0, 10**6), name=st.sampled_from(["reinforce_pp", "reinforce_pp_baseline"]))
def test_batches_are_standardised_by_what_tokens_weigh_below_forks(seed: int, name: str) -> None:
    _, group = forked_group(seed)
    found = advantages(configured(name), group)
    weighted = [
        (parts * sum(node.trainable), found[session.id, node.id])
        for session in group.sessions
        for node, parts in zip(session.nodes, token_weights(session), strict=True)
        if (session.id, node.id) in found
    ]
    if not weighted:
        return
    total = math.fsum(weight for weight, _ in weighted)
    assert math.fsum(weight * value for weight, value in weighted) == pytest.approx(0, abs=1e-6 * total)
    if total > 1:
        assert math.fsum(weight * value**2 for weight, value in weighted) == pytest.approx(total - 1, rel=1e-4)


@FEW
@given(seed=st.integers(0, 10**6))
def test_maxrl_divides_what_a_turn_returns_beyond_its_siblings_by_the_groups_mean(seed: int) -> None:
    _, group = forked_group(seed, rewards=False)
    plain = {
        key: float(share.advantage)  # type: ignore[arg-type]
        for key, (share,) in Grpo(GrpoConfig(scale_by_std=False)).credit([group]).shares.items()
    }
    mean = fmean(session.score or 0.0 for session in group.sessions)
    found = advantages(configured("maxrl"), group)
    assert found.keys() == plain.keys()
    assert found == pytest.approx({key: value / (mean + 1e-6) for key, value in plain.items()})


def test_gigpo_compares_turns_in_one_state_by_the_outcomes_of_their_own_branches() -> None:
    """Two siblings begin in the same state; the session's mean reward would make them equal."""
    good, bad = (Segment([Turn([10 + i], [-1.0], 0.0)], outcome=outcome) for i, outcome in enumerate((1.0, 0.0)))
    tree = Segment([Turn([12], [-1.0], 0.0)], below=[good, bad])
    other = Segment([Turn([13], [-1.0], 0.0)], outcome=0.5)
    group = as_group([session_of("s0", tree, PROMPT), session_of("s1", other, PROMPT)])
    config = GigpoConfig(step_gamma=1.0, step_weight=1.0, scale_by_std=False)
    found = {key: share.advantage for key, (share,) in Gigpo(config).credit([group]).shares.items()}
    assert found["s0", good.turns[0].node] == pytest.approx(0.5 + 0.5), "against its sibling, and in its state"
    assert found["s0", bad.turns[0].node] == pytest.approx(-0.5 - 0.5)


@pytest.mark.parametrize("name", ["reinforce", "reinforce_pp", "rae", "gigpo", "maxrl"])
def test_continuations_for_a_value_alone_are_not_trained(name: str) -> None:
    below = [Segment([Turn([20 + i], [-1.0], 0.0)], outcome=float(i)) for i in range(3)]
    tree = Segment([Turn([12], [-1.0], 0.0)], below=below)
    other = Segment([Turn([13], [-1.0], 0.0)], outcome=0.25)
    group = as_group([session_of("s0", tree, PROMPT, trained=False), session_of("s1", other, PROMPT)])
    trained = {node for session, node in make_algorithm(configured(name)).credit([group]).shares if session == "s0"}
    assert trained <= {tree.turns[0].node, below[0].turns[0].node}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opo", "pass_at_k", "raft_pp", "gdpo"])
def test_advantages_of_whole_sessions_refuse_forks_by_name(name: str) -> None:
    fork = {"rollout": {"branch": {"name": "every"}}}
    with pytest.raises(ValidationError, match=f"rollout.branch=every forks sessions, and algo={name} compares whole"):
        RunConfig.model_validate({"env": {"name": "castle"}, "algo": {"name": name}, **fork})
    assert RunConfig.model_validate({"env": {"name": "castle"}, "algo": {"name": name}})
