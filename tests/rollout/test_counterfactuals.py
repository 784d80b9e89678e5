"""COMA's baselines by play: in a game whose values can be enumerated, and turn by turn in the sessions' copies."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from itertools import product
from statistics import fmean, stdev
from typing import Any

import pytest
from pydantic import ValidationError

from agentrl.config import RolloutConfig, RunConfig
from agentrl.envs.base import Env, reward
from agentrl.errors import ConfigError
from agentrl.rollout.episodes.counterfactuals import check_counterfactuals
from agentrl.rollout.episodes.groups import TRAIN, Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.stream.seeds import derive
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.conversation import Conversation
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.advantages.teams.coma import baselines
from agentrl.train.algorithms.returns import step_returns
from agentrl.types import FinishReason, Group, Message, Node, Sampling, Session, StepResult, Task, Turn
from agentrl.types import VersionSpan as Span
from agentrl.types.session import COUNTERFACTUALS

AGENTS = ("row", "column")
PAYS = ((1.0, 0.0), (0.25, 0.75))
"""What a round pays, by what `row` and `column` say."""
CHANCES: Mapping[str, float] = {"row": 0.4, "column": 0.6}
"""How often each says 0."""
ROUNDS = 2


class Matrix(Env):
    """Two rounds of a matrix game; the second one pays double where the first was (0, 0)."""

    agents = AGENTS
    teams: Mapping[str, tuple[str, ...]] = {"pair": AGENTS}
    simultaneous = True

    def tasks(self, split: str = "train") -> list[dict[str, Any]]:
        return [{}]

    def reset(self, task: Task, *, seed: int | None = None) -> dict[str, str]:
        self.said: list[str] = []
        return dict.fromkeys(self.agents, "Say 0 or 1.")

    def step(self, message: Message) -> StepResult:
        self.said.append(message.text)
        if len(self.said) == len(AGENTS) * ROUNDS:
            return StepResult(terminated=True)
        if len(self.said) % len(AGENTS):
            return StepResult()
        again = [Message(role="user", content="Again.")]
        return StepResult(again, others={AGENTS[0]: again})

    def state(self) -> dict[str, Any]:
        return {"said": self.said}

    def restore(self, task: Task, state: dict[str, Any]) -> None:
        self.said = state["said"]

    @reward
    def paid(self, session: Session) -> dict[str, float]:
        return {"pair": worth([*map(int, self.said)])}


def worth(said: list[int]) -> float:
    first, second = PAYS[said[0]][said[1]], PAYS[said[2]][said[3]]
    return (first + second * (2 if said[:2] == [0, 0] else 1)) / 3


def expected(said: list[int], agent: int | None = None) -> float:
    """The value after these choices, by enumeration; with `agent`, its choice in the newest round is drawn again."""
    total = 0.0
    for rest in product((0, 1), repeat=len(AGENTS) * ROUNDS):
        drawn = [i for i in range(len(rest)) if i >= len(said) or (agent is not None and i == len(said) - 2 + agent)]
        if all(rest[i] == said[i] for i in range(len(said)) if i not in drawn):
            chances = (CHANCES[AGENTS[i % 2]] if rest[i] == 0 else 1 - CHANCES[AGENTS[i % 2]] for i in drawn)
            total += math.prod(chances) * worth([*rest])
    return total


class Dice:
    """Says 0 as often as `CHANCES` tells, by the seeds that a model's turns have."""

    def __init__(self) -> None:
        self.asked = 0

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        session, agent = conversation.session, conversation.agent
        self.asked += 1
        seed = derive(session.seed, "sample", session.sample, "turn", turn)
        word = 0 if random.Random(seed).random() < CHANCES[agent] else 1
        assert conversation.head is not None
        drawn = Turn(
            (3 + word,),
            (math.log(CHANCES[agent] if word == 0 else 1 - CHANCES[agent]),),
            (Span(0, 0, 1),),
            FinishReason.STOP,
        )
        said = Message(role="assistant", content=str(word))
        return conversation._advance(
            tree.add_turn(session, conversation.head.id, [5], drawn, Sampling(), said, agent=agent)
        )


async def played(n: int, count: int, **more: Any) -> tuple[Group, Dice]:
    rollouts = Rollouts(Matrix, Policy(NullRenderer()), RolloutConfig(), 5, counterfactuals=count, **more)
    dice = Dice()
    (group,) = await rollouts.collect([Task(id="t")], dice, phase=TRAIN, n=n)
    return group, dice


@pytest.mark.slow
async def test_a_baseline_is_the_value_with_the_agents_turn_drawn_again_and_the_others_as_played() -> None:
    """Within three standard errors of Σ π(u) Q(u, u₋a), by agent, by round and by what the other said."""
    group, _ = await played(n=250, count=4)
    found: dict[tuple[int, ...], list[float]] = {}
    for session in group.scored:
        said = [int(node.message.text) for node in session.nodes if node.sampled]
        for place, (agent, view) in enumerate(zip(AGENTS, session.by_agent(), strict=True)):
            assert view.main_agent == agent
            usual = [*baselines(view).values()]
            assert len(usual) == ROUNDS
            for number, value in enumerate(usual):
                upto = said[: 2 * number + 2]
                upto[2 * number + place] = -1  # whatever it said
                found.setdefault((place, *upto), []).append(value)
    assert len(found) == 2 * 2 + 2 * 2 * 4, "every state and every turn of the other occurs"
    for (place, *upto), values in found.items():
        error = stdev(values) / math.sqrt(len(values))
        assert abs(fmean(values) - expected(upto, place)) <= 3 * error + 1e-9, (AGENTS[place], upto)


@pytest.mark.slow
async def test_continuations_change_nothing_of_the_session_and_are_no_part_of_it() -> None:
    (plain, _), (forked, dice) = await played(n=6, count=0), await played(n=6, count=2)
    for one, other in zip(plain.sessions, forked.sessions, strict=True):
        assert (one.nodes, one.agent_rewards, one.status) == (other.nodes, other.agent_rewards, other.status)
        assert set(other.info) - set(one.info) == {COUNTERFACTUALS}
        assert other.counters == {**one.counters, "counterfactual/continuations": 2 * 2 * ROUNDS}
    first_round, second_round = 1 + 2, 1  # turns that are drawn: its own, and both of the next round
    assert dice.asked == 6 * (2 * ROUNDS + 2 * 2 * (first_round + second_round))


@pytest.mark.slow
async def test_an_advantage_is_the_return_less_the_baseline_and_turns_without_one_are_not_trained() -> None:
    group, _ = await played(n=8, count=3)
    algorithm = make_algorithm(algorithm_settings({"name": "coma", "counterfactuals": 3}))
    views = group.by_agent()
    shares = algorithm.credit(views).shares
    for view in (session for each in views for session in each.sessions):
        returns, usual = {k: v for path in step_returns(view) for k, v in path.items()}, baselines(view)
        for node, value in returns.items():
            (share,) = shares[view.id, node]
            assert share.advantage == pytest.approx((view.reward or 0.0) + value - usual[node])
    for session in group.sessions:
        session.info[COUNTERFACTUALS]["row"].pop("1")
    later = algorithm.credit(group.by_agent()).shares
    assert len(later) == len(shares) - 8


def test_where_joint_turns_can_not_be_continued_it_is_said_what_fits() -> None:
    class InTurn(Matrix):
        simultaneous = False

    class Unsaved(Env):
        agents, simultaneous = AGENTS, True

    check_counterfactuals("coma", Matrix())
    for env, named in ((InTurn(), r"move at once.*InTurn.*algo=vine"), (Unsaved(), r"state\(\).*Unsaved.*algo=vine")):
        with pytest.raises(ConfigError, match=named):
            check_counterfactuals("coma", env)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rollout": {"staleness": 1}}, "rollout.staleness=1"),
        ({"rollout": {"branch": {"name": "every"}}}, "rollout.branch=every"),
        ({"agent": "play.py:play"}, "agent="),
        ({"algo": {"name": "coma", "shaping": {"scale_rewards": True}}}, "algo.shaping"),
        ({"algo": {"name": "coma", "kl_coef": 0.1, "kl_as": "reward"}}, "kl_as=reward"),
    ],
)
def test_what_continuations_lack_is_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=rf"(algo=coma|{named}).*({named}|algo=coma)"):
        RunConfig.model_validate({"env": {"name": "joint_length"}, "algo": {"name": "coma"}, **settings})
