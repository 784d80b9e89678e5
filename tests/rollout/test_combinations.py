"""MAGRPO's cross pairing: all combinations of a group's completions are played, and compared as brute force would."""

from __future__ import annotations

from itertools import product
from statistics import fmean
from typing import Any

import pytest
from pydantic import ValidationError

from agentrl.config import RolloutConfig, RunConfig
from agentrl.envs.base import reward
from agentrl.errors import ConfigError
from agentrl.rollout.episodes.combinations import check_combinations
from agentrl.rollout.episodes.groups import TRAIN, Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.types import Group, Session, Task
from agentrl.types.session import COMBINATIONS
from tests.rollout.test_counterfactuals import AGENTS, PAYS, Dice, Matrix
from tests.train.trees import as_group, linear_session

CROSS = algorithm_settings({"name": "magrpo", "pairing": "cross"})


class OneRound(Matrix):
    """One round of the matrix game."""

    max_turns = len(AGENTS)

    def step(self, message: Any) -> Any:
        result = super().step(message)
        result.terminated = len(self.said) == len(AGENTS)
        return result

    @reward
    def paid(self, session: Session) -> dict[str, float]:
        return {"pair": PAYS[int(self.said[0])][int(self.said[1])]}


async def played(n: int, *, combinations: bool) -> Group:
    rollouts = Rollouts(OneRound, Policy(NullRenderer()), RolloutConfig(), 5, combinations=combinations)
    (group,) = await rollouts.collect([Task(id="t")], Dice(), phase=TRAIN, n=n)
    return group


async def test_completions_are_judged_by_all_that_the_others_said_in_the_group() -> None:
    """Equal to a loop over every combination; nothing of the sessions changes, and none is drawn."""
    plain, crossed = await played(5, combinations=False), await played(5, combinations=True)
    said = [[int(node.message.text) for node in session.nodes if node.sampled] for session in crossed.sessions]
    assert len({*map(tuple, said)}) > 1
    for one, other in zip(plain.sessions, crossed.sessions, strict=True):
        assert (one.nodes, one.agent_rewards, one.counters) == (other.nodes, other.agent_rewards, other.counters)
    every = {joint: PAYS[said[joint[0]][0]][said[joint[1]][1]] for joint in product(range(5), repeat=2)}
    mean = fmean(every.values())
    shares = make_algorithm(CROSS).credit(crossed.by_agent()).shares
    for place, session in enumerate(crossed.sessions):
        for number, agent in enumerate(AGENTS):
            (share,) = (share for (name, _), (share,) in shares.items() if name == f"{session.id}/{agent}")
            expected = sum(value - mean for joint, value in every.items() if joint[number] == place)
            assert share.advantage == pytest.approx(expected)


def test_the_papers_figures_come_out_of_a_groups_sessions() -> None:
    """[0, 1, 2, 3] at two agents and two samples: -2 and 2, -1 and 1."""
    algorithm = make_algorithm(CROSS)
    for agent, expected in zip(AGENTS, ([-2, 2], [-1, 1]), strict=True):
        sessions = [linear_session(f"{agent}{place}", [8], [[30]], reward=float(place)) for place in range(2)]
        for place, session in enumerate(sessions):
            for node in session.nodes:
                node.agent = agent
            returns = {agent: [0.0, 1.0, 2.0, 3.0]}
            session.info[COMBINATIONS] = {"agents": list(AGENTS), "place": place, "of": 2, "returns": returns}
        shares = algorithm.credit([as_group(sessions)]).shares
        assert [share.advantage for (share,) in shares.values()] == expected


def test_longer_games_and_too_many_combinations_are_refused_by_number() -> None:
    check_combinations(OneRound(), 8, 64)
    with pytest.raises(ConfigError, match=r"one joint turn.*Matrix has 2 agents, max_turns=None"):
        check_combinations(Matrix(), 2, 64)
    with pytest.raises(ConfigError, match=r"9\^2 = 81 joint actions.*more than algo.max_joint_actions=64"):
        check_combinations(OneRound(), 9, 64)


def test_cross_pairing_is_refused_with_what_it_lacks() -> None:
    algo = {"name": "magrpo", "pairing": "cross"}
    with pytest.raises(ValidationError, match=r"algo.pairing=cross combines turns, which is not there with agent="):
        RunConfig.model_validate({"env": {"name": "joint_length"}, "algo": algo, "agent": "play.py:play"})
