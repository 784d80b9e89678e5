from __future__ import annotations

import random
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.config import AlgoConfig
from agentrl.errors import ConfigError, UnknownName
from agentrl.train.algorithms import ALGORITHMS, register
from agentrl.train.algorithms.advantages.grpo import Grpo, GrpoConfig
from agentrl.train.algorithms.advantages.reinforce import Reinforce
from agentrl.train.algorithms.advantages.rloo import Rloo
from agentrl.train.algorithms.advantages.sft import Sft
from agentrl.train.algorithms.credit import Credit, passed_to_helpers, trained_tokens
from agentrl.train.algorithms.returns import STD_FLOOR, step_returns
from agentrl.types import Group, Session, Status
from tests.train.trees import as_group, environment_node, linear_session, path, random_session, sampled_node

RAW = GrpoConfig(scale_by_std=False)


def group(name: str, rewards: list[float | None], turns: int = 1) -> Group:
    sessions = [
        linear_session(f"{name}{i}", [8, 9], [[30, 31]] * turns, reward=r, group=name) for i, r in enumerate(rewards)
    ]
    return as_group(sessions, name)


def advantages(credit: Credit, session: str) -> list[float]:
    return [s.advantage for (name, _), shares in credit.shares.items() if name == session for s in shares]  # type: ignore[misc]


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.floats(-5, 5), min_size=2, max_size=9), min_size=1, max_size=4))
def test_advantages_are_the_rewards_standardised_in_their_group_whatever_the_groups_sizes(
    rewards: list[list[float]],
) -> None:
    """A naive reference, group by group, with torch's own mean and (unbiased) standard deviation."""
    groups = [group(f"g{i}-", list(r)) for i, r in enumerate(rewards)]
    credit = Grpo(AlgoConfig()).credit(groups)
    for g, r in zip(groups, rewards, strict=True):
        if max(r) - min(r) < 1e-9:
            assert all(not advantages(credit, s.id) for s in g.sessions)
            continue
        values = torch.tensor(r, dtype=torch.float64)
        expected = (values - values.mean()) / (values.std() + STD_FLOOR)
        for session, e in zip(g.sessions, expected.tolist(), strict=True):
            assert advantages(credit, session.id) == pytest.approx([e])


def test_the_order_of_sessions_and_groups_means_nothing() -> None:
    groups = [group("a", [0.0, 1.0, 0.5]), group("b", [3.0, 1.0])]
    straight = Grpo(AlgoConfig()).credit(groups)
    shuffled = [Group(g.id, g.task, [s]) for g in groups for s in reversed(g.sessions)][::-1]
    again = Grpo(AlgoConfig()).credit(shuffled)
    assert again.shares.keys() == straight.shares.keys()
    for g in groups:
        for session in g.sessions:
            assert advantages(again, session.id) == pytest.approx(advantages(straight, session.id))


def test_a_group_without_variance_is_skipped_and_counted() -> None:
    credit = Grpo(AlgoConfig()).credit([group("a", [1.0, 1.0, 1.0]), group("b", [0.0, 1.0]), group("c", [0.3])])
    assert {name for name, _ in credit.shares} == {"b0", "b1"}
    assert credit.metrics["groups/zero_variance"] == 2
    assert credit.metrics["groups/trained"] == 1


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), normalize=st.sampled_from(["rollout", "token", "constant", "group"]))
@pytest.mark.slow
def test_groups_without_signal_stay_in_the_denominator_as_rows_do_in_trl_and_verl(seed: int, normalize: str) -> None:
    """Their aggregations over rows, by autograd: TRL's grpo, dapo and dr_grpo; verl's seq-mean-token-mean and so on.

    Sessions that nobody scored, or that failed for our reasons, are no rows. A gradient used to be up to as many times
    too large as there were groups for one with signal.
    """
    rng = random.Random(seed)
    groups = []
    for g in range(rng.randint(1, 4)):
        rewards = [rng.choice([None, 0.0, 1.0]) if rng.random() < 0.7 else 1.0 for _ in range(rng.randint(1, 4))]
        sessions = [
            linear_session(f"{g}-{i}", [8, 9], [[30] * rng.randint(1, 4)] * rng.randint(0, 3), reward=r, group=str(g))
            for i, r in enumerate(rewards)
        ]
        for session in sessions:
            session.status = rng.choice([Status.COMPLETED] * 4 + [Status.TRUNCATED, Status.INFRA_ERROR])
        groups.append(as_group(sessions, str(g)))
    config = AlgoConfig.model_validate({"normalize": normalize, "constant_tokens": 7})
    shares = Grpo(config).credit(groups).shares

    rows, losses = [], []
    for group in groups:
        members = [s for s in group.sessions if s.reward is not None and s.status is not Status.INFRA_ERROR]
        scores = torch.tensor([s.reward for s in members], dtype=torch.float64)
        deviation = scores.std() if len(members) > 1 else torch.tensor(0.0)
        of_group = []
        for session, centred in zip(members, scores - scores.mean(), strict=True):
            logp = torch.zeros(sum(map(trained_tokens, session.nodes)), dtype=torch.float64, requires_grad=True)
            rows.append((session, logp))
            of_group.append(-centred / (deviation + STD_FLOOR) * (logp - logp.detach()).exp())
        if of_group:
            losses.append(of_group)
    flat = [row for of_group in losses for row in of_group]
    total = torch.zeros((), dtype=torch.float64)
    match normalize:
        case "rollout":
            total = sum((row.sum() / max(len(row), 1) for row in flat), total) / max(len(flat), 1)
        case "token":
            total = sum((row.sum() for row in flat), total) / max(sum(map(len, flat)), 1)
        case "constant":
            total = sum((row.sum() for row in flat), total) / (7 * max(len(flat), 1))
        case "group":
            means = [sum((r.sum() for r in g), total) / max(sum(map(len, g)), 1) for g in losses]
            total = sum(means, total) / max(len(means), 1)
    if rows:
        total.backward()  # type: ignore[no-untyped-call]
    for session, logp in rows:
        ours = [
            -sum(share.weight * share.advantage for share in shares.get((session.id, node.id), ()))  # type: ignore[operator]
            for node in session.nodes
            for _ in range(trained_tokens(node))
        ]
        assert ours == pytest.approx([] if logp.grad is None else logp.grad.tolist())
    assert {name for name, _ in shares} <= {session.id for session, _ in rows}


@pytest.mark.parametrize("term", ["kl_coef", "entropy_coef"])
def test_a_group_without_signal_is_packed_where_a_penalty_or_bonus_applies_to_it(term: str) -> None:
    groups = [group("a", [1.0, 1.0]), group("b", [0.0, 1.0])]
    shares = Grpo(AlgoConfig.model_validate({term: 0.1})).credit(groups).shares
    assert {name for name, _ in shares} == {"a0", "a1", "b0", "b1"}
    assert [share.advantage for share in shares["a0", 1]] == [0.0]
    assert {share.weight for each in shares.values() for share in each} == {1 / 4 / 2}


def test_failures_of_ours_and_unrewarded_sessions_are_neither_trained_nor_in_a_baseline() -> None:
    g = group("a", [0.0, 1.0, None, 100.0])
    g.sessions[3].status = Status.INFRA_ERROR
    credit = Grpo(RAW).credit([g, group("b", [None, None])])
    assert advantages(credit, "a0") == [-0.5]
    assert advantages(credit, "a1") == [0.5]
    assert not advantages(credit, "a2")
    assert not advantages(credit, "a3")
    assert credit.metrics["groups/sessions_left_out"] == 4
    assert credit.metrics["groups/unscored"] == 1


def test_an_agents_own_error_with_a_reward_counts() -> None:
    g = group("a", [0.0, 1.0])
    g.sessions[0].status = Status.AGENT_ERROR
    assert advantages(Grpo(RAW).credit([g]), "a0") == [-0.5]


def test_the_final_reward_is_credited_to_every_turn() -> None:
    credit = Grpo(RAW).credit([group("a", [0.0, 1.0], turns=3)])
    assert advantages(credit, "a1") == [0.5, 0.5, 0.5]


def test_a_step_reward_belongs_to_the_turns_before_it_and_to_its_own() -> None:
    g = group("a", [None, None], turns=3)
    first, second = g.sessions
    first.nodes[1].reward, first.nodes[5].reward = 1.0, 4.0
    second.nodes[2].reward = 3.0  # on the environment's answer to the first turn
    credit = Grpo(RAW).credit([g])
    returns_first, returns_second = [5.0, 4.0, 4.0], [3.0, 0.0, 0.0]
    means = [statistics.fmean(pair) for pair in zip(returns_first, returns_second, strict=True)]
    assert advantages(credit, "a0") == pytest.approx([r - m for r, m in zip(returns_first, means, strict=True)])
    assert advantages(credit, "a1") == pytest.approx([r - m for r, m in zip(returns_second, means, strict=True)])


def test_a_session_that_is_over_has_nothing_to_come() -> None:
    long, short = group("a", [None, None], turns=2).sessions
    short.nodes = short.nodes[:3]
    long.nodes[3].reward, short.nodes[1].reward = 2.0, 0.0
    credit = Grpo(RAW).credit([as_group([long, short], "a")])
    assert advantages(credit, long.id) == [1.0, 1.0]
    assert advantages(credit, short.id) == [-1.0]


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce"])
def test_rewards_earned_at_different_turns_are_a_signal_though_the_totals_are_equal(name: str) -> None:
    """The second turn of the first session earned nothing more, that of the other everything."""
    g = group("a", [None, None], turns=2)
    early, late = g.sessions
    early.nodes[1].reward, late.nodes[3].reward = 1.0, 1.0
    assert early.score == late.score == 1.0
    credit = ALGORITHMS.find(name)().credit([g])
    scaled = 0.5 / (0.5**0.5 + STD_FLOOR)  # by the deviation where returns deviate: at the second turn
    first, second = {"grpo": (0.0, scaled), "rloo": (0.0, 1.0), "reinforce": (1.0, 1.0)}[name]
    assert advantages(credit, late.id) == pytest.approx([first, second])
    assert advantages(credit, early.id) == pytest.approx([first, 0.0 if name == "reinforce" else -second])
    assert credit.metrics["groups/trained"] == 1


def test_equal_returns_at_every_turn_are_no_signal() -> None:
    g = group("a", [0.1, 0.1, 0.1], turns=2)
    for session in g.sessions:
        session.nodes[3].reward = 0.3
    credit = Grpo(AlgoConfig()).credit([g])
    assert not credit.shares
    assert credit.metrics["groups/zero_variance"] == 1


def stepwise_group(rng: random.Random, sessions: int = 3) -> Group:
    """Random trees with step rewards; every path holds a turn, and nothing is given before it."""
    members = []
    for i in range(sessions):
        session = random_session(rng, f"s{i}", [8], depth=5, branching=3)
        for leaf in set(range(len(session.nodes))) - {node.parent for node in session.nodes}:
            sampled_node(session, leaf, [40])
        for node in session.nodes:
            turn_before = any(step.sampled for step in path(session, node.id))
            node.reward = rng.choice((None, rng.uniform(-1, 1))) if turn_before else None
        somewhere = any(node.reward is not None for node in session.nodes)  # without any reward it is in no group
        session.reward = rng.choice((None if somewhere else 0.0, rng.uniform(-1, 1), 0.5))
        members.append(session)
    return as_group(members)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
@pytest.mark.slow
def test_rloo_compares_every_path_with_the_other_sessions_alone(seed: int) -> None:
    """Against the definition, path by path. A session's own branches used to be in its baseline."""
    g = stepwise_group(random.Random(seed))
    paths = {s.id: step_returns(s) for s in g.sessions}

    def usual(session: Session, turn: int) -> float:
        """What a session had still to come at that turn: the mean over its paths, 0 on those that are over."""
        left = [list(p.values())[turn] if turn < len(p) else 0.0 for p in paths[session.id]]
        return (session.reward or 0.0) + statistics.fmean(left)

    expected: dict[tuple[str, int], list[float]] = {}
    for s in g.sessions:
        others = [o for o in g.sessions if o is not s]
        for p in paths[s.id]:
            for turn, (node, value) in enumerate(p.items()):
                advantage = (s.reward or 0.0) + value - statistics.fmean(usual(o, turn) for o in others)
                expected.setdefault((s.id, node), []).append(advantage)
    shares = Rloo().credit([g]).shares
    if any(abs(a) > 1e-9 for each in expected.values() for a in each):
        assert shares.keys() == expected.keys()
    for key, each in shares.items():
        found = [share.advantage for share in each]
        assert found == pytest.approx(expected[key] if len(found) > 1 else expected[key][:1])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_sessions_score_is_the_return_that_credit_sees_from_its_beginning(seed: int) -> None:
    """It used to add branches up, so a session that was told twice scored twice as much."""
    for session in stepwise_group(random.Random(seed), 1).sessions:
        returns = [next(iter(p.values())) for p in step_returns(session)]
        rewarded = session.reward is not None or any(node.reward is not None for node in session.nodes)
        assert session.score == (
            pytest.approx((session.reward or 0.0) + statistics.fmean(returns)) if rewarded else None
        )


def test_a_turn_that_is_copied_counts_once_in_the_score() -> None:
    session = linear_session("s", [8], [])
    turn = sampled_node(session, 0, [30], reward=2.0)
    again = environment_node(session, 0, [5])
    again.copy_of = turn.id
    sampled_node(session, again.id, [31], reward=3.0)
    assert session.score == 2.0 + 3.0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_at_a_branch_the_return_is_the_leaf_weighted_mean_of_the_children(seed: int) -> None:
    rng = random.Random(seed)
    session = random_session(rng, "s", [8], depth=6, branching=4)
    for node in session.nodes:
        node.reward = rng.choice((None, rng.uniform(-1, 1)))
    children = {n.id: [c for c in session.nodes if c.parent == n.id] for n in session.nodes}
    sampled = {n.id for n in session.nodes if n.sampled}

    def on_path(node: int | None) -> bool:
        return node is not None and (node in sampled or on_path(session.nodes[node].parent))

    def leaf_count(node: int) -> int:
        return sum(leaf_count(c.id) for c in children[node]) or 1

    def value(node: int) -> float:
        n = leaf_count(node)
        below = sum(leaf_count(c.id) / n * value(c.id) for c in children[node])
        return (session.nodes[node].reward or 0.0) + below

    paths = step_returns(session)
    for node in sampled:
        assert statistics.fmean(p[node] for p in paths if node in p) == pytest.approx(value(node))


def test_branches_that_judge_a_shared_turn_differently_give_it_a_share_each() -> None:
    session = linear_session("s", [8], [])
    shared = sampled_node(session, 0, [30, 31])
    for reward in (1.0, -1.0):
        after = environment_node(session, shared.id, [5])
        sampled_node(session, after.id, [32], reward=reward)
    other = linear_session("o", [8], [[30]], reward=0.5)
    shares = Grpo(RAW).credit([as_group([session, other])]).shares["s", shared.id]
    assert len(shares) == 2
    assert shares[0].weight == shares[1].weight
    assert shares[0].advantage - shares[1].advantage == pytest.approx(2.0)  # type: ignore[operator]


@pytest.mark.parametrize("normalize", ["rollout", "token", "turn", "group", "constant"])
def test_weights_say_what_the_loss_is_averaged_over(normalize: str) -> None:
    """Session a0 has 2 trained tokens, a1 six, b0 and b1 two each."""
    a, b = group("a", [0.0, 1.0]), group("b", [0.0, 1.0])
    a.sessions[1] = linear_session("a1", [8, 9], [[30, 31]] * 3, reward=1.0, group="a")
    config = AlgoConfig.model_validate({"normalize": normalize, "constant_tokens": 100})
    shares = Grpo(config).credit([a, b]).shares
    found = {name: sum(s.weight for s in shares[name, 1]) for name in ("a0", "a1", "b0")}
    expected = {
        "rollout": {"a0": 1 / 4 / 2, "a1": 1 / 4 / 6, "b0": 1 / 4 / 2},
        "token": {"a0": 1 / 12, "a1": 1 / 12, "b0": 1 / 12},
        "turn": {"a0": 1 / 6 / 2, "a1": 1 / 6 / 2, "b0": 1 / 6 / 2},
        "group": {"a0": 1 / 2 / 8, "a1": 1 / 2 / 8, "b0": 1 / 2 / 4},
        "constant": {"a0": 1 / 4 / 100, "a1": 1 / 4 / 100, "b0": 1 / 4 / 100},
    }[normalize]
    assert found == pytest.approx(expected)


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    credit = Rloo().credit([group("a", [0.0, 1.0, 5.0])])
    assert [advantages(credit, f"a{i}")[0] for i in range(3)] == pytest.approx([0 - 3, 1 - 2.5, 5 - 0.5])


def test_reinforce_takes_the_reward_as_it_is_and_skips_no_group() -> None:
    credit = Reinforce().credit([group("a", [2.0, 2.0])])
    assert advantages(credit, "a0") == [2.0]


def test_sft_trains_what_was_demonstrated_and_nothing_that_was_sampled() -> None:
    session = linear_session("s", [8], [[30, 31]], demonstrated=True)
    own = sampled_node(session, len(session.nodes) - 1, [40])
    credit = Sft().credit([as_group([session])])
    assert ("s", 1) in credit.shares
    assert ("s", own.id) not in credit.shares
    assert Grpo(AlgoConfig()).credit([group("a", [0.0, 1.0])]).shares.keys() == {("a0", 1), ("a1", 1)}


def test_a_demonstrated_turn_in_a_rollout_is_not_trained_by_a_policy_algorithm() -> None:
    g = group("a", [0.0, 1.0])
    g.sessions[0].nodes[1].sampling = None
    assert {name for name, _ in Grpo(AlgoConfig()).credit([g]).shares} == {"a1"}


def test_trained_tokens_leaves_out_a_roots_first_token() -> None:
    session = Session("s", as_group([]).task)
    assert trained_tokens(sampled_node(session, None, [1, 2, 3], opening=())) == 2


def test_an_unknown_algorithm_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'grpo'"):
        ALGORITHMS.find("grop")
    with pytest.raises(UnknownName, match=r"there is no 'NOTHING' in agentrl\.train\.algorithms\.advantages\.grpo"):
        ALGORITHMS.find("agentrl.train.algorithms.advantages.grpo:NOTHING")
    with pytest.raises(ConfigError, match="no algorithm"):
        ALGORITHMS.find("agentrl.train.algorithms.advantages.gigpo:step_returns")


def test_an_algorithm_is_found_by_import_path_and_by_the_name_it_registers() -> None:
    assert ALGORITHMS.find("agentrl.train.algorithms.advantages.rloo:Rloo") is ALGORITHMS.find("rloo")

    class Mine(Grpo):
        name = "mine-for-this-test"

    register(Mine)
    assert ALGORITHMS.find("mine-for-this-test") is Mine


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 0.5, 0.0])
def test_helpers_get_their_part_of_the_outcome_and_what_was_forgotten_or_summarised_all_of_it(factor: float) -> None:
    """A sub-agent's root has another system prompt, and so another agent; a compaction has the main agent's."""
    sessions = []
    for i, reward in enumerate((0.0, 1.0)):
        session = linear_session(f"s{i}", [8, 9], [[30], [31]], reward=reward)
        compaction = environment_node(session, None, [8, 7])
        sampled_node(session, compaction.id, [32])
        brief = environment_node(session, None, [6, 7])
        sampled_node(session, brief.id, [33])
        brief.agent = session.nodes[-1].agent = "agent-2"
        sessions.append(session)
    group = as_group(sessions)
    whole = Grpo(RAW).credit([group])
    passed = passed_to_helpers(whole, [group], factor)
    helpers = {(session.id, len(session.nodes) - 1) for session in sessions}
    assert helpers < whole.shares.keys()
    assert passed.shares.keys() == whole.shares.keys() - (helpers if not factor else set())
    for key, (share,) in passed.shares.items():
        assert share.advantage == whole.shares[key][0].advantage * (factor if key in helpers else 1)
        assert share.weight == whole.shares[key][0].weight
