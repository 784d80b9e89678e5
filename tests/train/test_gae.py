"""Advantages over a tree are the mean over its paths of what the definition says on each path alone."""

from __future__ import annotations

import json
import random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import InvalidInput
from agentrl.train.algorithms import gae
from agentrl.train.algorithms.advantages.ppo import Ppo, PpoConfig
from agentrl.train.algorithms.advantages.reinforce import Reinforce
from agentrl.train.algorithms.credit import NodeAdvantage, trainable_nodes
from agentrl.train.algorithms.values import mean_return
from agentrl.types import Session
from tests.train.forked import Segment, random_segment, session_of, value_at
from tests.train.ragged_rows import OPENING
from tests.train.trees import (
    add_extensions,
    as_group,
    environment_node,
    linear_session,
    path,
    random_session,
    sampled_node,
)

FRACTIONS = st.sampled_from([0.0, 0.3, 0.9, 0.95, 1.0])
Values = dict[tuple[str, int], list[float]]


def rewarded_session(rng: random.Random, name: str = "s") -> Session:
    """A random tree with rewards anywhere, and branches that tell a turn again."""
    session = random_session(rng, name, [7, 8, 9][: rng.randint(1, 3)], depth=5, branching=3)
    for node in [node for node in session.nodes if node.sampled]:
        if rng.random() < 0.2:
            again = environment_node(session, node.parent, [rng.randrange(3, 9)])
            again.copy_of = node.id
            if rng.random() < 0.8:
                sampled_node(session, again.id, [rng.randrange(8, 40) for _ in range(rng.randint(1, 3))])
    add_extensions(rng, session)
    for node in session.nodes:
        node.reward = rng.choice((None, None, rng.uniform(-1, 1)))
    session.reward = rng.choice((None, 1.0, rng.uniform(-2, 2)))
    return session


def random_values(rng: random.Random, *sessions: Session) -> Values:
    """A value at each trained token, 0 elsewhere."""
    return {
        (s.id, n): [rng.uniform(-1, 1) if i in steps else 0.0 for i in range(len(s.nodes[n].token_ids))]
        for s in sessions
        for n, steps in gae.all_steps(s).items()
    }


def by_turns(session: Session, values: Values, gamma: float, lam: float) -> dict[tuple[int, int], list[float]]:
    """For each (node, token) its advantage on every path, where a turn is a step: its tokens have its advantage."""
    gone_on = {n.parent for n in session.nodes} | {n.copy_of for n in session.nodes}
    found: dict[tuple[int, int], list[float]] = {}
    for leaf in (n.id for n in session.nodes if n.id not in gone_on):
        turns: list[list[tuple[int, int]]] = []
        rewards: list[float] = []
        for node in path(session, leaf):
            original = node if node.copy_of is None else session.nodes[node.copy_of]
            taken = [(original.id, i) for i in gae.steps(original, node.copied_tokens)]
            if (session.id, original.id) in values and taken:
                turns.append(taken)
                rewards.append(0.0)
            if rewards:
                rewards[-1] += original.reward or 0.0
        if not turns:
            continue
        rewards[-1] += session.reward or 0.0
        v = [values[session.id, turn[0][0]][turn[0][1]] for turn in turns] + [0.0]
        delta = [r + gamma * v[t + 1] - v[t] for t, r in enumerate(rewards)]
        for t, turn in enumerate(turns):
            total = sum((gamma * lam) ** (k - t) * delta[k] for k in range(t, len(turns)))
            for place in turn:
                found.setdefault(place, []).append(total)
    return found


def by_definition(session: Session, values: Values, gamma: float, lam: float) -> dict[tuple[int, int], list[float]]:
    """For each (node, token) its advantage on every path: the double sum, leaf by leaf."""
    gone_on = {n.parent for n in session.nodes} | {n.copy_of for n in session.nodes}
    found: dict[tuple[int, int], list[float]] = {}
    for leaf in (n.id for n in session.nodes if n.id not in gone_on):
        places: list[tuple[int, int]] = []
        rewards: list[float] = []
        for node in path(session, leaf):
            original = node if node.copy_of is None else session.nodes[node.copy_of]
            if (session.id, original.id) in values:
                places += [(original.id, i) for i in gae.steps(original, node.copied_tokens)]
                rewards += [0.0] * (len(places) - len(rewards))
            if rewards:
                rewards[-1] += original.reward or 0.0
        if not places:
            continue
        rewards[-1] += session.reward or 0.0
        v = [values[session.id, node][i] for node, i in places] + [0.0]
        delta = [r + gamma * v[t + 1] - v[t] for t, r in enumerate(rewards)]
        for t, place in enumerate(places):
            total = sum((gamma * lam) ** (k - t) * delta[k] for k in range(t, len(places)))
            found.setdefault(place, []).append(total)
    return found


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), gamma=FRACTIONS, lam=FRACTIONS, step=st.sampled_from(["token", "turn"]))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_the_mean_over_paths_is_what_one_walk_over_the_tree_finds(
    seed: int, gamma: float, lam: float, step: gae.Step
) -> None:
    rng = random.Random(seed)
    session = rewarded_session(rng)
    values = random_values(rng, session)
    found = gae.advantages(session, {node: v for (_, node), v in values.items()}, gamma, lam, step)
    expected = (by_definition if step == "token" else by_turns)(session, values, gamma, lam)
    steps = gae.all_steps(session)
    assert {(node, i) for node in found for i in steps[node]} == expected.keys()
    assert all(not told or i in steps[node] for node in found for i, told in enumerate(found[node]))
    for (node, i), each in expected.items():
        assert found[node][i] == pytest.approx(sum(each) / len(each), abs=1e-9)


def by_recursion(
    segment: Segment, values: Values, name: str, gamma: float, lam: float, step: gae.Step, trained: bool
) -> dict[tuple[int, int], float]:
    """For each (node, token) of a forked session its advantage, from the rule of docs/branching.md as it is written."""
    found: dict[tuple[int, int], float] = {}

    def judge(part: Segment) -> tuple[float, float]:
        """The value before a segment's first step, and that step's advantage."""
        value, advantage, reward = 0.0, 0.0, part.outcome
        if part.below:
            own, others = part.below[0], part.below[1:]
            first = judge(own)
            rest = [(*judge(other), 0.0) if trained else (0.0, 0.0, value_at(other, 0)) for other in others]
            value, advantage, reward = map(fmean, zip((*first, 0.0), *rest, strict=True))
        for turn in reversed(part.turns):
            reward += turn.reward
            places = [OPENING + i for i in range(len(turn.ids))]
            for taken in [places] if step == "turn" else [[place] for place in reversed(places)]:
                before = values[name, turn.node][taken[0]]
                advantage = reward + gamma * value - before + gamma * lam * advantage
                value, reward = before, 0.0
                found.update({(turn.node, place): advantage for place in taken})
        return value, advantage

    judge(segment)
    return found


@pytest.mark.slow
@given(
    seed=st.integers(0, 10**6),
    gamma=FRACTIONS,
    lam=FRACTIONS,
    step=st.sampled_from(["token", "turn"]),
    trained=st.booleans(),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_across_a_fork_a_step_takes_the_mean_of_what_follows_in_its_continuations(
    seed: int, gamma: float, lam: float, step: gae.Step, trained: bool
) -> None:
    """With continuations that are trained, and with those that only say what the state before them is worth."""
    rng = random.Random(seed)
    segments = [random_segment(rng, 2, rewards=True, fork=not i) for i in range(2)]
    group = as_group([session_of(f"s{i}", each, [8, 9], trained=trained) for i, each in enumerate(segments)])
    values = random_values(rng, *group.sessions)
    config = PpoConfig(gamma=gamma, gae_lambda=lam, gae_step=step, scale_by_std=False)
    shares = Ppo(config).credit([group], values).shares
    places = {(s.id, n, i) for s in group.sessions for n, steps in gae.all_steps(s).items() for i in steps}
    expected = {
        (session.id, *place): advantage
        for session, segment in zip(group.sessions, segments, strict=True)
        for place, advantage in by_recursion(segment, values, session.id, gamma, lam, step, trained).items()
    }
    assert places == expected.keys()
    for (session, node, i), each in expected.items():
        assert advantage(shares[session, node][0], i) == pytest.approx(each, abs=1e-9)


@given(
    rewards=st.lists(st.floats(-2, 2), min_size=1, max_size=6), seed=st.integers(0, 999), gamma=FRACTIONS, lam=FRACTIONS
)
@settings(derandomize=True, deadline=None, max_examples=100)
@pytest.mark.slow
def test_on_a_single_path_it_is_the_textbook_recursion(
    rewards: list[float], seed: int, gamma: float, lam: float
) -> None:
    rng = random.Random(seed)
    session = linear_session("s", [7, 8], [[9] * rng.randint(1, 4) for _ in rewards], reward=rng.uniform(-1, 1))
    turns = [node for node in session.nodes if node.sampled]
    per_token: list[float] = []
    for node, reward in zip(turns, rewards, strict=True):
        node.reward = reward
        per_token += [0.0] * (len(gae.steps(node)) - 1) + [reward]
    per_token[-1] += session.reward or 0.0
    values = random_values(rng, session)
    flat = [values["s", node.id][i] for node in turns for i in gae.steps(node)]
    expected, last = [0.0] * len(flat), 0.0
    for t in reversed(range(len(flat))):
        following = flat[t + 1] if t + 1 < len(flat) else 0.0
        delta = per_token[t] + gamma * following - flat[t]
        expected[t] = last = delta + gamma * lam * last
    found = gae.advantages(session, {node: v for (_, node), v in values.items()}, gamma, lam)
    assert [found[node.id][i] for node in turns for i in gae.steps(node)] == pytest.approx(expected, abs=1e-9)


def test_a_reward_on_the_way_goes_to_the_last_token_before_it() -> None:
    session = linear_session("s", [7, 8], [[10, 11], [12]], reward=4.0)
    session.nodes[2].reward = 1.0  # the environment's answer to the first turn
    found = gae.advantages(session, {1: [0.0] * 4, 3: [0.0] * 3}, gamma=0.5, lam=1.0)
    assert found == {1: [0.0, 0.0, 0.5 * (1.0 + 0.5 * 4.0), 1.0 + 0.5 * 4.0], 3: [0.0, 0.0, 4.0]}


@pytest.mark.slow
@given(seed=st.integers(0, 10**6))
@settings(derandomize=True, deadline=None, max_examples=30)
def test_with_a_critic_that_expects_nothing_it_is_reinforce(seed: int) -> None:
    rng = random.Random(seed)
    groups = [as_group([rewarded_session(rng, f"{g}{i}") for i in range(3)], str(g)) for g in range(2)]
    config = PpoConfig(gamma=1.0, gae_lambda=1.0, scale_by_std=False)
    nothing = {(s.id, n.id): [0.0] * len(n.token_ids) for g in groups for s in g.scored for n in trainable_nodes(s)}
    ours, theirs = Ppo(config).credit(groups, nothing), Reinforce().credit(groups)
    steps = {(s.id, n): each for g in groups for s in g.sessions for n, each in gae.all_steps(s).items()}
    assert ours.shares.keys() == theirs.shares.keys()
    for key, (share,) in ours.shares.items():
        each = theirs.shares[key]
        assert share.weight == pytest.approx(sum(other.weight for other in each))
        assert not isinstance(share.advantage, float)
        for i in steps[key]:
            mean = sum(other.weight * advantage(other, i) for other in each) / sum(other.weight for other in each)
            assert share.advantage[i] == pytest.approx(mean, abs=1e-9)


def advantage(share: NodeAdvantage, place: int) -> float:
    return share.advantage if isinstance(share.advantage, float) else share.advantage[place]


@given(seed=st.integers(0, 10**6), gamma=FRACTIONS)
@settings(derandomize=True, deadline=None, max_examples=10)
def test_whole_returns_do_not_depend_on_what_the_critic_said(seed: int, gamma: float) -> None:
    rng = random.Random(seed)
    groups = [as_group([rewarded_session(rng, f"s{i}") for i in range(3)])]
    config = PpoConfig(gamma=gamma, gae_lambda=1.0)
    one, other = (Ppo(config).credit(groups, random_values(rng, *groups[0].scored)) for _ in range(2))
    for key, (share,) in one.shares.items():
        assert share.returns == pytest.approx(other.shares[key][0].returns, abs=1e-9)


def test_advantages_are_centred_and_scaled_over_the_tokens_that_are_trained() -> None:
    rng = random.Random(1)
    groups = [as_group([rewarded_session(rng, f"s{i}") for i in range(6)])]
    steps = {(s.id, n): each for s in groups[0].scored for n, each in gae.all_steps(s).items()}
    credit = Ppo(PpoConfig()).credit(groups, random_values(rng, *groups[0].scored))
    weighed = [
        (share.weight, share.advantage[i])  # type: ignore[index]  # one for each token
        for key, (share,) in credit.shares.items()
        for i in steps[key]
    ]
    assert sum(w for w, _ in weighed) == pytest.approx(1.0)
    assert sum(w * a for w, a in weighed) == pytest.approx(0.0, abs=1e-9)
    assert sum(w * a * a for w, a in weighed) == pytest.approx(1.0, rel=1e-6)


def test_the_explained_variance_is_one_for_a_critic_that_knows_and_none_for_one_that_says_always_the_same() -> None:
    sessions = [linear_session(f"s{i}", [7, 8], [[10, 11], [12]], reward=float(i)) for i in range(4)]
    groups, config = [as_group(sessions)], PpoConfig()

    def explained(values: Values) -> float:
        return Ppo(config).credit(groups, values).metrics["critic/explained_variance"]

    tokens = {(s.id, n.id): (s, len(n.token_ids)) for s in sessions for n in trainable_nodes(s)}
    assert explained({key: [s.reward or 0.0] * n for key, (s, n) in tokens.items()}) == pytest.approx(1.0)
    assert explained({key: [0.7] * n for key, (s, n) in tokens.items()}) == pytest.approx(0.0, abs=1e-9)
    for session in sessions:
        session.reward = 0.3
    told = Ppo(config).credit(groups, random_values(random.Random(0), *sessions)).metrics
    assert "critic/explained_variance" not in told, "returns that are all the same leave nothing to explain"


def test_sessions_that_nobody_rewarded_are_not_trained_and_no_values_are_an_error() -> None:
    silent = linear_session("silent", [7], [[9]])
    told = linear_session("told", [7], [[9]], reward=1.0)
    credit = Ppo(PpoConfig()).credit([as_group([silent, told])], random_values(random.Random(0), told))
    assert credit.shares.keys() == {("told", 1)}
    assert "critic/explained_variance" not in credit.metrics
    with pytest.raises(InvalidInput, match="ppo"):
        Ppo().credit([as_group([told])])


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), step=st.sampled_from(["token", "turn"]))
@settings(derandomize=True, deadline=None, max_examples=20)
def test_normalised_returns_give_the_advantages_of_a_critic_in_plain_units(seed: int, step: gae.Step) -> None:
    """Over three batches; targets are the returns by the moments of all batches so far, of equal weight."""
    rng = random.Random(seed)
    fields = {"gamma": 0.9, "gae_lambda": 0.8, "gae_step": step}
    plain = Ppo(PpoConfig.model_validate(fields))
    normalised = Ppo(PpoConfig.model_validate(fields | {"normalize_returns": True}))
    moments: list[tuple[float, float]] = []
    for batch in range(3):
        groups = [as_group([rewarded_session(rng, f"{batch}{i}") for i in range(3)])]
        said = random_values(rng, *groups[0].scored)
        if not said:
            continue
        mean, scale = spread(moments) if moments else (mean_return(groups, normalised.config), 1.0)
        values = {key: [mean + (scale if scale > 1e-6 else 1.0) * v for v in each] for key, each in said.items()}
        resumed = Ppo(normalised.config)
        resumed.load_snapshot(json.loads(json.dumps(normalised.snapshot())))
        ours, theirs, again = (
            normalised.credit(groups, said),
            plain.credit(groups, values),
            resumed.credit(groups, said),
        )
        assert ours.shares == again.shares, "the moments are part of the algorithm's state"
        steps = {(s.id, n): each for s in groups[0].scored for n, each in gae.all_steps(s).items()}
        whole = sum(share.weight * len(steps[key]) for key, (share,) in ours.shares.items())
        for key, (share,) in theirs.shares.items():
            assert share.returns is not None
            moments += [(share.weight / whole, share.returns[i]) for i in steps[key]]
        mean, scale = spread(moments)
        for key, (share,) in ours.shares.items():
            (other,) = theirs.shares[key]
            assert share.values == said[key]
            assert share.returns is not None
            assert other.returns is not None
            for i in steps[key]:
                assert advantage(share, i) == pytest.approx(advantage(other, i), abs=1e-6)
                target = (other.returns[i] - mean) / (scale if scale > 1e-6 else 1.0)
                assert share.returns[i] == pytest.approx(target, abs=1e-6)


def spread(weighted: list[tuple[float, float]]) -> tuple[float, float]:
    """Mean and standard deviation, in two passes."""
    total = sum(w for w, _ in weighted)
    mean = sum(w * x for w, x in weighted) / total
    return mean, (sum(w * (x - mean) ** 2 for w, x in weighted) / total) ** 0.5
