"""Every registered advantage against a formula written from its paper, on ragged groups of sessions of single turns.

A session here is its reward, its length and its named rewards; formulas give one advantage for each session. The
properties hold for whatever is registered.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Sequence

import pytest

from agentrl.train.algorithms import ALGORITHMS, algorithm_settings, make_algorithm
from agentrl.train.algorithms.credit import Credit
from agentrl.train.algorithms.table import list_built_in
from agentrl.types import Group, Session
from tests.train.trees import as_group, environment_node, linear_session, sampled_node

FLOOR = 1e-4
"""What is added to a group's standard deviation, here as in TRL."""

NEEDS = {
    name: make_algorithm(algorithm_settings({"name": name})).needs for name in list_built_in(ALGORITHMS, "agentrl.")
}
NAMES = [
    name
    for name, needs in NEEDS.items()  # the others: test_gae, test_prime, test_vine, test_remax, test_counterfactuals
    if needs.engine and not (needs.values or needs.branches or needs.greedy)
    if not (needs.pairs or needs.labels or needs.counterfactuals)
]
"""Those whose credit needs no numbers of tokens, forked or greedy sessions, demonstrations, pairs or labels."""

Batch = Sequence[Sequence[Session]]
Formula = Callable[[Batch], list[list[float]]]


def ragged(seed: int) -> list[Group]:
    """Groups of two to five sessions of some lengths, with rewards of 0, 1/2 and 1; the last one has no signal."""
    rng, groups = random.Random(seed), []
    for g in range(4):
        members = []
        for i in range(rng.randint(2, 5)):
            ids = [rng.randrange(8, 40) for _ in range(rng.randint(1, 6))]
            reward = 0.5 if g == 3 else i % 2 if i < 2 else rng.choice((0.0, 0.5, 1.0))
            members.append(linear_session(f"{g}-{i}", [8, 9 + g], [ids], reward=float(reward), group=f"g{g}"))
            members[-1].rewards = {"right": float(reward), "short": 1 / len(ids)}
        groups.append(as_group(members, f"g{g}"))
    return groups


def rewards(group: Sequence[Session]) -> list[float]:
    return [session.reward or 0.0 for session in group]


def lengths(group: Sequence[Session]) -> list[int]:
    return [sum(node.trainable) for session in group for node in session.nodes if node.sampled]


def centred(group: Sequence[Session]) -> list[float]:
    r = rewards(group)
    return [x - statistics.fmean(r) for x in r]


def standardised(values: Sequence[float]) -> list[float]:
    """DeepSeekMath, arXiv:2402.03300, section 4.1.2."""
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    return [(x - mean) / (deviation + FLOOR) if deviation > 1e-9 else 0.0 for x in values]


def whitened(batch: Batch, found: list[list[float]]) -> list[list[float]]:
    """Over all tokens of the batch, arXiv:2501.03262, as verl's masked_whiten has it."""
    every = [
        a
        for group, each in zip(batch, found, strict=True)
        for a, n in zip(each, lengths(group), strict=True)
        for _ in range(n)
    ]
    mean, variance = statistics.fmean(every), statistics.variance(every)
    return [[(a - mean) / math.sqrt(variance + 1e-8) for a in each] for each in found]


def by_group(formula: Callable[[Sequence[Session]], list[float]]) -> Formula:
    return lambda batch: [formula(group) for group in batch]


def leave_one_out(group: Sequence[Session]) -> list[float]:
    """arXiv:2402.14740, section 3.3."""
    r = rewards(group)
    return [x - (sum(r) - x) / (len(r) - 1) for x in r]


def optimal(group: Sequence[Session]) -> list[float]:
    """arXiv:2505.23585: the baseline is the mean reward weighted by length."""
    r, n = rewards(group), lengths(group)
    baseline = sum(a * b for a, b in zip(n, r, strict=True)) / sum(n)
    return [x - baseline if max(r) > min(r) else 0.0 for x in r]


def maximum_likelihood(group: Sequence[Session]) -> list[float]:
    """arXiv:2602.02710: divided by the mean."""
    mean = statistics.fmean(rewards(group))
    return [a / (mean + 1e-6) for a in centred(group)]


def best(group: Sequence[Session]) -> list[float]:
    """arXiv:2504.11343: the indicator of the group's highest reward."""
    r = rewards(group)
    return [float(x == max(r) > min(r)) for x in r]


def best_of(k: int) -> Callable[[Sequence[Session]], list[float]]:
    """arXiv:2508.10751, section 2.2: every subset of k samples is a group member whose reward is its best."""

    def formula(group: Sequence[Session]) -> list[float]:
        r = rewards(group)
        subsets = list(itertools.combinations(range(len(r)), min(k, len(r) - 1)))
        values = [max(r[i] for i in subset) for subset in subsets]
        mean, deviation = statistics.fmean(values), statistics.pstdev(values)
        if deviation < 1e-9:
            return [0.0] * len(r)
        own = [[v for v, s in zip(values, subsets, strict=True) if i in s] for i in range(len(r))]
        return [(statistics.fmean(each) - mean) / deviation for each in own]

    return formula


def decoupled(batch: Batch) -> list[list[float]]:
    """arXiv:2601.05242: each reward standardised in its group, added, standardised over the batch."""

    def group_sum(group: Sequence[Session]) -> list[float]:
        parts = [standardised([s.rewards[name] for s in group]) for name in ("right", "short")]
        return [sum(each) for each in zip(*parts, strict=True)]

    return whitened(batch, [group_sum(group) for group in batch])


def by_role(batch: Batch) -> list[list[float]]:
    """arXiv:2506.24119, algorithm 1, with the batch's mean for each session's reward."""
    every = [x for group in batch for x in rewards(group)]
    baseline = 0.0
    for _ in every:
        baseline = 0.95 * baseline + 0.05 * statistics.fmean(every)
    return [[x - baseline for x in rewards(group)] for group in batch]


grpo = by_group(lambda group: standardised(rewards(group)))

FORMULAS: dict[str, Formula] = {
    "dapo": grpo,
    "dr_grpo": by_group(centred),
    "gdpo": decoupled,
    "gigpo": by_group(lambda group: [2 * a for a in standardised(rewards(group))]),  # all turns are in the same state
    "grpo": grpo,
    "gspo": grpo,
    "magrpo": by_group(centred),
    "maxrl": by_group(maximum_likelihood),
    "opo": by_group(optimal),
    "pass_at_k": by_group(best_of(4)),
    "rae": by_role,
    "raft_pp": by_group(best),
    "reinforce": by_group(rewards),
    "reinforce_pp": lambda batch: whitened(batch, [rewards(group) for group in batch]),
    "reinforce_pp_baseline": lambda batch: whitened(batch, [centred(group) for group in batch]),
    "rloo": by_group(leave_one_out),
}
"""By the name of the advantage; one that is registered needs one here."""


def found(credit: Credit) -> dict[str, float]:
    """The advantage of each session of a single turn; those that are not trained are left out."""
    return {session: shares[0].advantage for (session, _), shares in credit.shares.items()}  # type: ignore[misc]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_advantages_are_their_papers_formulas_on_ragged_groups(name: str, seed: int) -> None:
    groups = ragged(seed)
    credit = make_algorithm(algorithm_settings({"name": name})).credit(groups)
    expected = FORMULAS[name]([group.sessions for group in groups])
    names = [[session.id for session in group.sessions] for group in groups]
    ours = found(credit)
    for sessions, each in zip(names, expected, strict=True):
        silent = all(abs(a) < 1e-9 for a in each)
        assert silent or set(sessions) <= set(ours)
        assert [ours.get(session, 0.0) for session in sessions] == pytest.approx(each, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_neither_the_order_of_groups_and_sessions_nor_a_group_in_parts_changes_anything(name: str) -> None:
    groups = ragged(5)
    parts = [Group(g.id, g.task, [s]) for g in groups for s in g.sessions]
    random.Random(1).shuffle(parts)
    made = [make_algorithm(algorithm_settings({"name": name})).credit(each) for each in (groups, parts)]
    first, second = made
    assert first.shares.keys() == second.shares.keys()
    for key, shares in first.shares.items():
        assert [s.weight for s in shares] == pytest.approx([s.weight for s in second.shares[key]])
        assert [s.advantage for s in shares] == pytest.approx([s.advantage for s in second.shares[key]])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("normalize", ["rollout", "token", "turn", "group"])
@pytest.mark.slow
def test_denominators_are_those_of_all_scored_sessions_whatever_has_signal(name: str, normalize: str) -> None:
    """With an entropy bonus every token is packed, and the weights of all of them add up to 1."""
    algo = algorithm_settings({"name": name, "normalize": normalize, "entropy_coef": 0.01})
    groups = ragged(2)
    shares = make_algorithm(algo).credit(groups).shares
    count = {s.id: n for g in groups for s, n in zip(g.sessions, lengths(g.sessions), strict=True)}
    assert math.fsum(count[key[0]] * s.weight for key, each in shares.items() for s in each) == pytest.approx(1)
    without = make_algorithm(algo.model_copy(update={"entropy_coef": 0.0})).credit(groups).shares
    for key, each in without.items():
        assert [s.weight for s in each] == [s.weight for s in shares[key]]


@pytest.mark.parametrize("name", NAMES)
def test_turns_that_branches_share_have_the_advantages_of_all_paths_and_one_weight(name: str) -> None:
    session = linear_session("a", [8, 9], [], reward=1.0)
    session.rewards = {"right": 1.0}
    shared = sampled_node(session, 0, [30, 31])
    for token, reward in ((40, 0.5), (41, -0.5)):
        sampled_node(session, environment_node(session, shared.id, [token]).id, [32], reward=reward)
    other = linear_session("b", [8, 9], [[33], [34]], reward=0.0)
    other.rewards = {"right": 0.0}
    algorithm = make_algorithm(algorithm_settings({"name": name, "normalize": "token"}))
    shares = algorithm.credit([as_group([session, other])]).shares
    trained = {key: sum(s.weight for s in each) for key, each in shares.items()}
    assert max(trained.values()) == pytest.approx(min(trained.values()))
    assert all(len(each) in (1, 2) for each in shares.values())


def test_reinforce_s_baselines() -> None:
    groups = ragged(3)
    every = [x for group in groups for x in rewards(group.sessions)]
    mean = statistics.fmean(every)
    constant = found(make_algorithm(_reinforce("constant", baseline_value=0.25)).credit(groups))
    batch = found(make_algorithm(_reinforce("batch")).credit(groups))
    moving = make_algorithm(_reinforce("moving", baseline_decay=0.8))
    first = found(moving.credit(groups))
    higher = [as_group([linear_session("x", [8], [[30]], reward=mean + 1)], "x")]
    moving.credit(higher)
    resumed = make_algorithm(_reinforce("moving", baseline_decay=0.8))
    resumed.restore(moving.state())
    third = found(resumed.credit(higher))
    for session in (s for group in groups for s in group.sessions):
        assert constant[session.id] == pytest.approx((session.reward or 0.0) - 0.25)
        assert batch[session.id] == pytest.approx((session.reward or 0.0) - mean)
        assert first[session.id] == pytest.approx((session.reward or 0.0) - mean)
    assert third == pytest.approx({"x": 1 - 0.2})


def _reinforce(baseline: str, **more: float):  # type: ignore[no-untyped-def]
    return algorithm_settings({"name": "reinforce", "baseline": baseline, **more})


def test_rae_keeps_a_baseline_for_each_environment_and_agent_and_resumes_with_it() -> None:
    def game(number: int) -> list[Group]:
        sessions = []
        for agent, reward in (("first", 1.0), ("second", -1.0)):
            session = linear_session(f"{agent}{number}", [8], [[30]], reward=reward, group=f"{number}/{agent}")
            session.environment = "game"
            for node in session.nodes:
                node.agent = agent
            sessions.append(as_group([session], session.group))
        return sessions

    algorithm = make_algorithm(algorithm_settings({"name": "rae", "baseline_decay": 0.5}))
    assert found(algorithm.credit(game(0))) == pytest.approx({"first0": 0.5, "second0": -0.5})
    resumed = make_algorithm(algorithm.config)
    resumed.restore(algorithm.state())
    assert found(resumed.credit(game(1))) == pytest.approx({"first1": 0.25, "second1": -0.25})


@pytest.mark.parametrize("told", [False, True])
def test_the_score_of_an_agent_that_never_moved_is_of_its_own_role(told: bool) -> None:
    """The game ended before its turn, after it was told the rules or before."""
    session = linear_session("s", [8], [[30]], reward=0.0)
    session.environment, session.agent_rewards = "game", {"first": -1.0, "second": 1.0}
    for node in session.nodes:
        node.agent = "first"
    if told:
        environment_node(session, None, [8]).agent = "second"
    algorithm = make_algorithm(algorithm_settings({"name": "rae", "baseline_decay": 0.5}))
    algorithm.credit(as_group([session]).by_agent())
    assert algorithm.state() == {"game/first": -0.5, "game/second": 0.5}


def test_gigpo_compares_turns_that_were_shown_the_same_messages() -> None:
    """Both sessions come to the state `door`, one of them a turn later; at other states each is alone."""
    sessions = []
    for name, said, reward in (("a", ["door"], 1.0), ("b", ["wall", "door"], 0.0)):
        session = linear_session(name, [8, 9], [[30]], reward=reward)
        session.nodes[0].message.content = f"start {name}"
        session.nodes.pop()
        for text in said:
            answer = environment_node(session, len(session.nodes) - 1, [3])
            answer.message.content = text
            sampled_node(session, answer.id, [31])
        sessions.append(session)
    settings = {"name": "gigpo", "scale_by_std": False, "step_gamma": 0.5, "step_weight": 2.0}
    shares = make_algorithm(algorithm_settings(settings)).credit([as_group(sessions)]).shares
    assert shares["a", 1][0].advantage == pytest.approx(0.5)  # the state `start a`
    assert shares["a", 3][0].advantage == pytest.approx(0.5 + 2 * 0.5)  # 1 at this `door`, 0 at the other one
    assert shares["b", 3][0].advantage == pytest.approx(-0.5)
    assert shares["b", 5][0].advantage == pytest.approx(-0.5 - 2 * 0.5)


@pytest.mark.parametrize("gamma", [0.0, 0.9])
def test_gigpo_compares_turns_with_the_agents_others_in_its_session_where_it_is_told_to(gamma: float) -> None:
    """Three groups of sessions of one to four turns with rewards of their own, against the formula of the paper."""
    rng = random.Random(5)
    config = {"name": "gigpo", "step_groups": "session", "step_gamma": gamma, "step_weight": 0.5}
    for _ in range(3):
        turns = {name: [rng.choice((0.0, 0.5, 1.0)) for _ in range(rng.randint(1, 4))] for name in "abc"}
        sessions = [linear_session(name, [8], [[30]] * len(own), reward=rng.random()) for name, own in turns.items()]
        for session in sessions:
            for node, reward in zip((each for each in session.nodes if each.sampled), turns[session.id], strict=True):
                node.reward = reward
        plain, nested = (
            make_algorithm(algorithm_settings(each)).credit([as_group(sessions)]).shares
            for each in ({"name": "grpo"}, config)
        )
        for session in sessions:
            rewarded = [*turns[session.id]]
            rewarded[-1] += session.reward or 0.0
            later = [rewarded[i:] for i in range(len(rewarded))]
            returns = [sum(gamma**k * reward for k, reward in enumerate(each)) for each in later]
            inner = standardised(returns) if len(returns) > 1 else [0.0]
            for key, own in zip((key for key in plain if key[0] == session.id), inner, strict=True):
                assert nested[key][0].advantage == pytest.approx(plain[key][0].advantage + 0.5 * own)
