"""MAGRPO's tree of joint turns: what a group plays, what its sessions share, and credit as brute force has it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from statistics import fmean
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from agentrl.config import RolloutConfig, RunConfig
from agentrl.envs.base import Env, reward
from agentrl.errors import ConfigError, EnvError
from agentrl.rollout.episodes.combinations import check_tree, has_whole_tree
from agentrl.rollout.episodes.groups import TRAIN, Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.tree.conversation import Conversation
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.types import FinishReason, Group, Message, Node, Session, Status, StepResult, Task
from agentrl.types.session import COUNTERFACTUALS, JOINT_PATH, JointPath, joint_path
from tests.rollout.test_counterfactuals import AGENTS, PAYS, Dice, Matrix

GAMMA = 0.9
CROSS = algorithm_settings({"name": "magrpo", "pairing": "cross"})


class Rounds(Matrix):
    """Two rounds of the matrix game, each paid when it is played; after (1, 1) there is no second one."""

    max_turns = 2 * len(AGENTS)

    def step(self, message: Message) -> StepResult:
        result = super().step(message)
        place = len(self.said) % len(AGENTS)
        if not place:
            result.reward = PAYS[int(self.said[-2])][int(self.said[-1])]
            result.rewards = {AGENTS[0]: result.reward}
        result.terminated = result.terminated or (len(self.said) == len(AGENTS) and self.said == ["1", "1"])
        return result

    @reward
    def paid(self, session: Session) -> dict[str, float]:
        return {"pair": len(self.said) / 10}


async def played(pairing: str, size: int = 2, env: type[Matrix] = Rounds, **more: Any) -> Group:
    rollouts = Rollouts(env, Policy(NullRenderer()), RolloutConfig(), 5, combinations=pairing, **more)
    (group,) = await rollouts.collect([Task(id="t")], Dice(), phase=TRAIN, n=size)
    return group


def said(session: Session) -> list[tuple[str, ...]]:
    """What was said, by joint turn."""
    texts = [node.message.text for node in session.nodes if node.sampled]
    return [*zip(*[iter(texts)] * len(AGENTS), strict=True)]


def whole_path(session: Session) -> JointPath:
    path = joint_path(session, len(AGENTS))
    return (*path, *[(0,) * len(AGENTS)] * (len(said(session)) - len(path)))


@pytest.mark.parametrize(("pairing", "size"), [("aligned", 2), ("aligned", 3), ("cross", 2)])
async def test_every_state_has_all_joint_actions_and_a_completion_is_the_same_in_each(pairing: str, size: int) -> None:
    group = await played(pairing, size)
    texts = {whole_path(session): said(session) for session in group.sessions}
    assert len(texts) == len(group.sessions)
    assert {session.sample for session in group.sessions if JOINT_PATH not in session.info} == {*range(size)}
    wanted = [*product(range(size), repeat=2)] if pairing == "cross" else [(k, k) for k in range(size)]
    reached = {path[:depth] for path in texts for depth in range(len(path))}
    for state in reached:
        below = {path[len(state)] for path in texts if path[: len(state)] == state}
        assert below == {*wanted}
    for path, found in texts.items():
        assert len(found) == (1 if found[0] == ("1", "1") else 2)
        assert (path[:1] in reached) == (len(found) == 2)
    completions: dict[Any, Any] = {}
    for session in group.sessions:
        path, nodes = whole_path(session), [node for node in session.nodes if node.sampled]
        for place, node in enumerate(nodes):
            depth, agent = divmod(place, 2)
            drawn = (node.token_ids, node.logprobs, node.versions, node.message, node.trainable)
            assert completions.setdefault((path[:depth], agent, path[depth][agent]), drawn) == drawn
    assert has_whole_tree(group.sessions, size, size, pairing)
    assert not has_whole_tree(group.sessions[:-1], size, size, pairing)


@pytest.mark.parametrize("pairing", ["aligned", "cross"])
@pytest.mark.parametrize("baseline", ["mean", "max", "leave_one_out"])
async def test_credit_is_that_of_brute_force(pairing: str, baseline: Literal["mean", "max", "leave_one_out"]) -> None:
    """By the definitions, over what was said; a state's completions weigh alike, and so do its joint actions."""
    group = await played(pairing)
    texts = {whole_path(session): said(session) for session in group.sessions}
    everywhere = {path[:depth] for path in texts for depth in range(len(path) + 1)}

    def below(state: JointPath) -> list[JointPath]:
        return sorted(each for each in everywhere if len(each) == len(state) + 1 and each[:-1] == state)

    def value(turn: JointPath) -> float:
        text = next(found for path, found in texts.items() if path[: len(turn)] == turn)
        first, second = map(int, text[len(turn) - 1])
        final = 0.0 if below(turn) else 2 * len(turn) / 10
        return PAYS[first][second] + final + (GAMMA * fmean(map(value, below(turn))) if below(turn) else 0.0)

    def usual(values: list[float], place: int) -> float:
        others = values[:place] + values[place + 1 :]
        return {"mean": fmean(values), "max": max(values), "leave_one_out": fmean(others)}[baseline]

    algorithm = make_algorithm(
        algorithm_settings({"name": "magrpo", "pairing": pairing, "tree": True, "baseline": baseline, "gamma": GAMMA})
    )
    shares = algorithm.credit(group.by_agent()).shares
    weights: dict[Any, float] = {}
    for session in group.sessions:
        path = whole_path(session)
        for number, agent in enumerate(AGENTS):
            view = next(view for view in session.by_agent() if view.main_agent == agent)
            turns = [node.id for node in view.nodes if node.sampled]
            for depth, node in enumerate(turns):
                state, mine = path[:depth], path[depth][number]
                values = [value(turn) for turn in below(state)]
                expected = sum(
                    values[place] - usual(values, place)
                    for place, turn in enumerate(below(state))
                    if turn[-1][number] == mine
                )
                each = shares.get((view.id, node))
                if each is None:  # a group of which nothing differs
                    assert expected == pytest.approx(0)
                    continue
                assert each[0].advantage == pytest.approx(expected)
                key = (state, number, mine)
                weights[key] = weights.get(key, 0.0) + each[0].weight
    joint = len(below(()))
    for (state, _, _), weight in weights.items():
        assert weight == pytest.approx(1 / 2 / joint ** len(state) / len(AGENTS))


async def test_the_papers_figures_come_out_of_a_groups_sessions() -> None:
    """Returns [0, 1, 2, 3] of two agents with two samples each: advantages -2 and 2, -1 and 1."""

    class Figures(Matrix):
        max_turns = len(AGENTS)

        def step(self, message: Message) -> StepResult:
            self.said.append(message.text)
            return StepResult(terminated=len(self.said) == len(AGENTS))

        @reward
        def paid(self, session: Session) -> dict[str, float]:
            return {"pair": 0.0}

    group = await played("cross", env=Figures)
    for session in group.sessions:
        ((row, column),) = whole_path(session)
        session.agent_rewards = dict.fromkeys(AGENTS, 2.0 * row + column)
    shares = make_algorithm(CROSS).credit(group.by_agent()).shares
    for number, expected in enumerate(([-2, 2], [-1, 1])):
        for session in group.sessions:
            ((share,),) = (each for (name, _), each in shares.items() if name == f"{session.id}/{AGENTS[number]}")
            assert share.advantage == expected[whole_path(session)[0][number]]


@pytest.mark.slow
async def test_continuations_of_a_trees_turns_draw_anew_what_its_sessions_repeat() -> None:
    """Another policy may learn by `coma`: of each of the agent's turns, repeated ones too, other draws are compared."""
    plain, continued = await played("cross"), await played("cross", counterfactuals=20)
    for one, other in zip(plain.sessions, continued.sessions, strict=True):
        assert (one.nodes, one.agent_rewards) == (other.nodes, other.agent_rewards)
        returns = other.info[COUNTERFACTUALS]["row"]
        assert [*returns] == [*map(str, range(len(said(other))))]
        assert len({*returns["0"]}) > 1, "both words are said, whatever the session repeats"


async def test_a_completion_that_was_cut_off_is_combined_with_none() -> None:
    class CutOff(Dice):
        async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
            node = await super().act(conversation, env, turn, deadline)
            if (conversation.session.sample, turn) == (1, 0):
                node.finish_reason = FinishReason.LENGTH
            return node

    rollouts = Rollouts(Rounds, Policy(NullRenderer()), RolloutConfig(), 5, combinations="cross")
    (group,) = await rollouts.collect([Task(id="t")], CutOff(), phase=TRAIN, n=3)
    assert {whole_path(session)[0] for session in group.sessions} == {(1, 1), *product((0, 2), repeat=2)}
    (cut,) = (session for session in group.sessions if session.sample == 1)
    assert cut.status is Status.TRUNCATED
    shares = make_algorithm(CROSS).credit(group.by_agent()).shares
    weights: dict[int, float] = {}
    for session in group.sessions:
        action = whole_path(session)[0][0]
        weights[action] = weights.get(action, 0.0) + shares[f"{session.id}/row", 1][0].weight
    assert weights == pytest.approx({0: 2 / 5 / 2, 1: 1 / 5 / 2, 2: 2 / 5 / 2}), "joint actions weigh alike"


async def test_an_environment_that_is_not_the_same_again_ends_the_run() -> None:
    begun: list[int] = []

    class Forgetful(Rounds):
        def reset(self, task: Task, *, seed: int | None = None) -> dict[str, str]:
            super().reset(task, seed=seed)
            begun.append(0)
            return dict.fromkeys(self.agents, f"Game {len(begun)}.")

    with pytest.raises(EnvError, match=r"Forgetful told '\w+' 'Game \d+.' where .* it was 'Game [12].'"):
        await played("cross", env=Forgetful)


def test_what_can_be_no_tree_is_refused_by_name_and_too_many_joint_actions_by_number() -> None:
    class InTurn(Rounds):
        simultaneous = False

    def limits(size: int) -> RolloutConfig:
        return RolloutConfig(group_size=size)

    check_tree(Rounds(), limits(8), "cross", 64)
    check_tree(Rounds(), limits(64), "aligned", 64)
    check_tree(Matrix(), limits(2).model_copy(update={"max_turns": 4}), "cross", 64)
    with pytest.raises(ConfigError, match=r"move at once.*InTurn"):
        check_tree(InTurn(), limits(2), "cross", 64)
    with pytest.raises(ConfigError, match=r"Matrix to its last joint turn; set its max_turns"):
        check_tree(Matrix(), limits(2), "cross", 64)
    with pytest.raises(ConfigError, match=r"9\^2 = 81 joint actions.*more than algo.max_joint_actions=64"):
        check_tree(Rounds(), limits(9), "cross", 64)
    with pytest.raises(ConfigError, match=r"aligned plays 65 joint actions.*more than algo.max_joint_actions=64"):
        check_tree(Rounds(), limits(65), "aligned", 64)
    with pytest.raises(ConfigError, match=r"Matrix could have 4\^40 sessions"):
        check_tree(Matrix(), limits(2).model_copy(update={"max_turns": 80}), "cross", 64)


@pytest.mark.parametrize("own", [{"pairing": "cross"}, {"tree": True}])
def test_a_tree_is_refused_with_what_it_lacks(own: Mapping[str, Any]) -> None:
    algo = {"name": "magrpo", **own}
    with pytest.raises(
        ValidationError, match=r"algo.pairing=cross .or algo.tree. repeats turns, .* not there with agent="
    ):
        RunConfig.model_validate({"env": {"name": "joint_length"}, "algo": algo, "agent": "play.py:play"})
