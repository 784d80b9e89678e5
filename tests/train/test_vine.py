"""VinePPO's advantages, against the paper's formula on plain numbers."""

from __future__ import annotations

import random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from agentrl.config import RunConfig
from agentrl.train.algorithms.advantages.vine import Vine, VineConfig
from tests.train.forked import Segment, Turn, session_of
from tests.train.trees import as_group

FEW = settings(max_examples=20, deadline=None)


def turn(rng: random.Random) -> Turn:
    return Turn([rng.randrange(8, 40)], [-2.0], rng.choice((0.0, 0.5, -0.25)))


def vine(rng: random.Random, turns: int, count: int) -> tuple[Segment, list[Turn], list[list[Segment]], float]:
    """A session of so many turns, with `count` continuations from the state before each of them."""
    own = [turn(rng) for _ in range(turns)]
    others = [
        [Segment([turn(rng) for _ in range(rng.randint(1, 2))], outcome=rng.random()) for _ in range(count)]
        for _ in own
    ]
    final = rng.random()
    below: list[Segment] = []
    for each, continuations in zip(reversed(own), reversed(others), strict=True):
        segment = Segment([each], outcome=final, below=below)
        below = [segment, *continuations]
    return Segment([], below=below), own, others, final


def returned(segment: Segment) -> float:
    return sum(each.reward for each in segment.turns) + segment.outcome


@FEW
@given(seed=st.integers(0, 10**6), turns=st.integers(1, 4), count=st.integers(1, 3))
def test_a_turns_advantage_is_its_reward_and_the_rise_of_the_value_by_monte_carlo(
    seed: int, turns: int, count: int
) -> None:
    """Kazemnejad et al., arXiv:2410.01679: A(s, a) = r + V(s') - V(s), where V is the mean of K continuations."""
    tree, own, others, final = vine(random.Random(seed), turns, count)
    session = session_of("s0", tree, [8, 9], trained=False)
    shares = Vine(VineConfig()).credit([as_group([session])]).shares
    values = [fmean(map(returned, continuations)) for continuations in others]
    assert {node for _, node in shares} == {each.node for each in own}
    for place, each in enumerate(own):
        after = values[place + 1] if place + 1 < turns else final
        (share,) = shares["s0", each.node]
        assert share.advantage == pytest.approx(each.reward + after - values[place])


def test_the_first_states_value_also_comes_from_the_other_sessions_of_the_group() -> None:
    rng = random.Random(1)
    first, second = (Segment([turn(rng), turn(rng)], outcome=outcome) for outcome in (1.0, 0.25))
    group = as_group([session_of("s0", first, [8, 9]), session_of("s1", second, [8, 9])])
    shares = Vine(VineConfig()).credit([group]).shares
    for each in first.turns:
        (share,) = shares["s0", each.node]
        assert share.advantage == pytest.approx(returned(first) - returned(second))


def test_a_trained_continuation_is_compared_with_the_others_from_its_state() -> None:
    tree, own, others, _ = vine(random.Random(4), 2, 3)
    session = session_of("s0", tree, [8, 9])
    shares = Vine(VineConfig()).credit([as_group([session])]).shares
    for continuations in others:
        for continuation in continuations:
            rest = fmean(returned(other) for other in continuations if other is not continuation)
            (share,) = shares["s0", continuation.turns[0].node]
            assert share.advantage == pytest.approx(returned(continuation) - rest)
    assert {each.node for each in own} < {node for _, node in shares}


@pytest.mark.slow
def test_it_needs_continuations() -> None:
    with pytest.raises(ValidationError, match=r"algo=vine needs .*rollout.branch"):
        RunConfig.model_validate({"env": "calculator", "algo": "vine"})
    config = RunConfig.model_validate(
        {"env": "calculator", "algo": "vine", "rollout": {"branch": "every", "group_size": 1}}
    )
    assert not config.rollout.branch.nested
