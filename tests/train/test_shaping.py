"""Rewards as credit sees them, on rows and on trees."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from agentrl.config import AlgoConfig, RunConfig, ShapingConfig
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.adaptive import Adaptive
from agentrl.train.algorithms.advantages.reinforce import Reinforce
from agentrl.train.algorithms.credit import trainable_nodes
from agentrl.train.algorithms.shaping import SHAPED, compare_with_earlier, reference_kl, shaped_groups, views_of
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Group, Session, Status, Task
from agentrl.types.messages import FunctionCall, Message, ToolCall
from tests.train.backends.test_torch import CPU
from tests.train.trees import (
    as_group,
    environment_node,
    leaves,
    linear_session,
    path,
    random_groups,
    sampled_node,
)


def shaped(groups: Sequence[Group], **fields: object) -> list[Group]:
    config = AlgoConfig(shaping=ShapingConfig.model_validate(fields))
    return shaped_groups(groups, config, Adaptive.of(config))


def rewards(groups: Sequence[Group]) -> list[float | None]:
    return [session.reward for group in groups for session in group.sessions]


@settings(max_examples=40, deadline=None)
@given(length=st.integers(1, 40), longest=st.integers(2, 30), share=st.floats(0, 0.99))
def test_a_long_session_is_punished_as_dapo_says(length: int, longest: int, share: float) -> None:
    """DAPO, arXiv:2503.14476, equation 13."""
    buffer = int(share * longest)
    if length <= longest - buffer:
        expected = 0.0
    elif length <= longest:
        expected = ((longest - buffer) - length) / buffer
    else:
        expected = -1.0
    group = as_group([linear_session("a", [8, 9], [[30] * length], reward=0.25)])
    (found,) = rewards(shaped([group], overlong_tokens=longest, overlong_buffer=buffer, overlong_penalty=2.0))
    assert found == pytest.approx(0.25 + 2.0 * expected)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0.0, 1.0])), min_size=1, max_size=6))
def test_short_sessions_of_a_group_gain_as_kimi_says(members: list[tuple[int, float]]) -> None:
    """Kimi k1.5, arXiv:2501.12599, section 2.3.3."""
    sessions = [linear_session(f"{i}", [8], [[30] * n], reward=r) for i, (n, r) in enumerate(members)]
    lengths = [n for n, _ in members]
    for found, (length, correct) in zip(rewards(shaped([as_group(sessions)], length_reward=0.5)), members, strict=True):
        bonus = 0.0
        if max(lengths) > min(lengths):
            bonus = 0.5 - (length - min(lengths)) / (max(lengths) - min(lengths))
        assert found == pytest.approx(correct + 0.5 * (bonus if correct else min(0.0, bonus)))


def test_limits_and_unreadable_calls_cost_what_the_settings_say() -> None:
    session = linear_session("a", [8], [[30], [31]], reward=1.0)
    session.status = Status.TRUNCATED
    broken = ToolCall(id="1", function=FunctionCall(name="f"), error="no JSON")
    session.nodes[1].message = Message(role="assistant", content=".", tool_calls=[broken])
    (group,) = shaped([as_group([session])], truncated_penalty=0.5, format_penalty=0.25)
    assert group.sessions[0].reward == 0.5
    assert [node.reward for node in group.sessions[0].nodes] == [None, -0.25, None, None, None]
    assert (session.reward, session.nodes[1].reward) == (1.0, None), "what is stored keeps its rewards"


def test_rewards_are_divided_by_the_deviation_of_all_scores_so_far() -> None:
    config = AlgoConfig(shaping=ShapingConfig(scale_rewards=True))
    adaptive, seen = Adaptive.of(config), list[float]()
    for step in range(3):
        scores = [random.Random(10 * step + i).uniform(-3, 5) for i in range(4)]
        seen += scores
        group = as_group([linear_session(f"{i}", [8], [[30]], reward=r) for i, r in enumerate(scores)])
        again = Adaptive.of(config)
        again.restore(adaptive.state(), config)
        found = rewards(shaped_groups([group], config, adaptive))
        assert found == pytest.approx([r / statistics.pstdev(seen) for r in scores])
        assert rewards(shaped_groups([group], config, again)) == found, "a resumed run goes on with the same moments"


def test_without_settings_the_sessions_are_the_very_same_and_so_are_those_without_a_score() -> None:
    groups = [as_group([linear_session("a", [8], [[30]], reward=1.0), linear_session("b", [8], [[30]])])]
    assert shaped(groups)[0] is groups[0]
    (group,) = shaped(groups, overlong_tokens=1)
    assert group.sessions[1] is groups[0].sessions[1]
    with pytest.raises(ValidationError, match="below overlong_tokens"):
        ShapingConfig(overlong_tokens=4, overlong_buffer=4)


def single_paths(session: Session) -> list[Session]:
    """Every path of a tree as a session of its own."""
    found = []
    for leaf in leaves(session):
        nodes = [replace(node, id=i, parent=i - 1 if i else None) for i, node in enumerate(path(session, leaf))]
        found.append(replace(session, id=f"{session.id}/{leaf}", nodes=nodes))
    return found


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.slow
def test_a_kl_reward_on_a_tree_is_that_of_its_paths_one_by_one(estimator: str, tiny_llama: Path) -> None:
    """A turn's advantage without a baseline is its return: the mean over its paths, each scored alone."""
    config = AlgoConfig(name="reinforce", kl_coef=0.5, kl_as="reward", kl_estimator=estimator)
    trainer, algorithm = TorchTrainer(tiny_llama, CPU, config), Reinforce(config)

    def returns(groups: list[Group]) -> dict[tuple[str, int], list[float]]:
        estimates = reference_kl(trainer, groups, config, 64)
        credit = algorithm.credit(shaped_groups(groups, config, algorithm.adaptive, estimates))
        return {key: [a.advantage for a in each] for key, each in credit.shares.items()}  # type: ignore[misc]

    groups = random_groups(random.Random(3), groups=1, depth=4, branching=2)
    found = returns(groups)
    assert found
    for session in groups[0].sessions:
        wanted: dict[int, list[float]] = {}
        for leaf, alone in zip(leaves(session), single_paths(session), strict=True):
            for (_, place), (value,) in returns([as_group([alone])]).items():
                wanted.setdefault(path(session, leaf)[place].id, []).append(value)
        for node in trainable_nodes(session):
            ours = found[session.id, node.id]
            assert statistics.fmean(ours) == pytest.approx(statistics.fmean(wanted[node.id]), abs=1e-5)


def test_a_kl_reward_of_k1_is_the_difference_of_log_probabilities(tiny_llama: Path) -> None:
    config = AlgoConfig(name="reinforce", kl_coef=0.5, kl_as="reward", kl_estimator="k1")
    trainer = TorchTrainer(tiny_llama, CPU, config)
    session = linear_session("a", [8, 9], [[30, 31], [32]], reward=1.0)
    kl = reference_kl(trainer, [as_group([session])], config, 64).kl
    ids = [token for node in session.nodes for token in node.token_ids]
    plain = AutoModelForCausalLM.from_pretrained(tiny_llama)
    with torch.no_grad():
        logps = plain(torch.tensor([ids])).logits[0].log_softmax(-1)
    behaviour = [logp for node in session.nodes for logp in node.logprobs]
    trained = [flag for node in session.nodes for flag in node.trainable]
    each = [behaviour[i] - float(logps[i - 1, ids[i]]) if trained[i] else 0.0 for i in range(len(ids))]
    assert kl == pytest.approx({("a", 1): sum(each[:6]), ("a", 3): sum(each[6:])}, abs=1e-4)
    trainer.step(pack([as_group([session])], Reinforce(config).credit([as_group([session])]), 64))


@pytest.mark.slow
def test_gdpo_has_what_shaping_adds_as_one_more_reward() -> None:
    """`algo.shaping` used to change nothing there: GDPO reads rewards by name, and shaping has none of those."""
    rng = random.Random(0)
    lengths = [rng.randrange(1, 7) for _ in range(4)]
    sessions = [linear_session(f"s{i}", [8], [[30 + i] * n], reward=float(i % 2)) for i, n in enumerate(lengths)]
    for session in sessions:
        session.rewards = {"right": session.reward or 0.0}
    shaping = {"overlong_tokens": 6, "overlong_buffer": 5, "overlong_penalty": 2.0}
    algo = algorithm_settings({"name": "gdpo", "shaping": shaping})
    named = [
        replace(s, rewards=s.rewards | {"short": -max(n - 1, 0) / 5}) for s, n in zip(sessions, lengths, strict=True)
    ]
    adaptive = Adaptive.of(algo)
    shaped = shaped_groups([as_group(sessions)], algo, adaptive)
    plain = algorithm_settings({"name": "gdpo"})

    def advantages(algo: AlgoConfig, groups: list[Group]) -> list[float]:
        shares = make_algorithm(algo).credit(groups).shares
        return [share.advantage for each in shares.values() for share in each]  # type: ignore[misc]

    assert advantages(algo, shaped) == pytest.approx(advantages(plain, [as_group(named)]), abs=1e-3)  # a floor of 1e-4
    chosen = algo.model_copy(update={"weights": {"right": 1.0}})
    assert advantages(chosen, shaped) == advantages(algo, shaped)
    without = algo.model_copy(update={"weights": {"right": 1.0, SHAPED: 0.0}})
    assert advantages(without, shaped) == pytest.approx(advantages(plain, [as_group(sessions)]))
    with pytest.raises(ValueError, match="use kl_as=loss"):
        algorithm_settings({"name": "gdpo", "kl_coef": 0.1, "kl_as": "reward"})


MARTI = {"margin": [[1, 1, 1.125], [1, -0.5, 1.125]], "quality": [[1, 1.5, 1.375], [1, 0, 1.375]]}


@pytest.mark.parametrize("how", MARTI)
def test_turns_are_compared_with_all_agents_earlier_ones_as_marti_does_and_each_agent_is_credited_with_its_own(
    how: str,
) -> None:
    session = Session("s", Task(id="t"), group="g", status=Status.COMPLETED, reward=0.5)
    session.agent_rewards = {"a": 0.25, "b": 0.75}
    leaf = {agent: environment_node(session, None, [8]).id for agent in "ab"}
    for column in ((1.0, 1.0), (1.0, 0.0), (1.0, 1.0), (None, 0.0)):
        for agent, reward in zip("ab", column, strict=True):
            leaf[agent] = sampled_node(session, leaf[agent], [30], reward=reward).id
            session.nodes[-1].agent = agent
    session.nodes[1].agent, stored = "b", [node.reward for node in session.nodes]
    session.nodes[0].agent = "a"
    config = AlgoConfig(shaping=ShapingConfig.model_validate({"turns": how}))
    views = shaped_groups(views_of([as_group([session])], config), config, Adaptive.of(config))
    assert [view.id for view in views] == ["g/a", "g/b"]
    for view, expected, plain, final, last in zip(views, MARTI[how], (3, 2), (0.25, 0.75), (None, 0.0), strict=True):
        (own,) = view.sessions
        *turns, unrewarded = [node.reward for node in own.nodes if node.sampled]
        assert (turns, own.reward) == (expected, final)
        assert unrewarded == last or how == "margin"  # a turn without a reward has none
        assert own.rewards[SHAPED] == pytest.approx(sum(turns) + (unrewarded or 0.0) - plain)
    assert [node.reward for node in session.nodes] == stored, "what is stored keeps its rewards"


def test_a_turns_own_reward_and_its_comparison_have_weights() -> None:
    shaping = ShapingConfig(turns="margin", turn_alpha=2.0, turn_outcome=0.0)
    assert compare_with_earlier([[1.0, 0.5], [0.5]], shaping) == [[0.0, -0.5], [0.0]]
    fields = {"algo": {"shaping": {"turns": "margin"}}, "rollout": {"branch": {"name": "every"}}}
    with pytest.raises(ValidationError, match=r"algo.shaping.turns=margin compares a session's turns, and branch="):
        RunConfig.model_validate({"env": {"name": "castle"}, **fields})
