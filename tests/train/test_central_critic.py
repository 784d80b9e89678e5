"""What a team's agents are judged by: a critic of all of them, MAAC's error, and continuations of joint turns."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest

import agentrl
from agentrl.envs.base import Env, reward
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.record.verify import verify
from agentrl.types import Message, Session, StepResult, Task
from agentrl.types.session import JOINT_PATH
from tests.train.trees import as_group, linear_session


class HighCard(Env):
    """Each of two agents has a card and says its name; the higher card wins, whatever is said."""

    agents = ("left", "right")
    simultaneous = True

    def tasks(self, split: str = "train") -> Iterable[dict[str, Any]]:
        pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
        return [{"cards": pair} for place, pair in enumerate(pairs) if (place % 6 == 5) == (split == "eval")]

    def reset(self, task: Task, *, seed: int | None = None) -> dict[str, str]:
        self.cards, self.said = dict(zip(self.agents, task["cards"], strict=True)), 0
        return {agent: f"Card {card}" for agent, card in self.cards.items()}

    def critic_view(self, agent: str) -> list[float]:
        return [float(self.cards[agent] == max(self.cards.values()))]

    def step(self, message: Message) -> StepResult:
        self.said += 1
        return StepResult(terminated=self.said == len(self.agents))

    def expert(self, messages: list[Message]) -> str:
        return messages[0].text[-1]

    @reward
    def won(self, session: Session) -> dict[str, float]:
        return {agent: float(card == max(self.cards.values())) for agent, card in self.cards.items()}


@pytest.mark.parametrize("seed", range(20))
def test_a_turns_advantage_is_the_critics_error_over_one_turn_and_its_target_is_without_the_value_before(
    seed: int,
) -> None:
    """By a loop over the turns: what was earned until the next one, its discounted value, less the turn's own."""
    rng = random.Random(seed)
    turns = [[rng.randrange(30, 40) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 5))]
    session, gamma = linear_session("a", [8, 9], turns, reward=rng.choice((None, rng.random()))), rng.random()
    for node in session.nodes[1:]:
        node.reward = rng.choice((None, rng.uniform(-1, 1)))
    session.nodes[1].reward = session.nodes[1].reward or 0.0  # something is rewarded
    values = {("a", node.id): [rng.uniform(-1, 1) for _ in node.token_ids] for node in session.nodes}
    taken = [node for node in session.nodes if node.sampled]
    first = {node.id: node.trainable.index(True) for node in taken}
    states = [values["a", node.id][first[node.id]] for node in taken] + [0.0]
    ends = [node.id for node in taken[1:]] + [len(session.nodes)]
    settings = algorithm_settings({"name": "maac", "gamma": gamma})
    shares = make_algorithm(settings).credit([as_group([session])], values).shares
    for place, (node, end) in enumerate(zip(taken, ends, strict=True)):
        earned = sum(each.reward or 0.0 for each in session.nodes[node.id : end])
        earned += (session.reward or 0.0) if end == len(session.nodes) else 0.0
        target = earned + gamma * states[place + 1]
        (share,) = shares["a", node.id]
        trained = [at for at, on in enumerate(node.trainable) if on]
        expected = [target - states[place]] * len(trained)
        assert [share.advantage[at] for at in trained] == pytest.approx(expected)  # type: ignore[index]
        assert [share.returns[at] for at in trained] == pytest.approx([target] * len(trained))  # type: ignore[index]


@pytest.mark.slow
def test_of_two_policies_the_critic_that_sees_all_agents_explains_what_the_other_can_not(tmp_path: Path) -> None:
    """Both play the same game; who wins depends on both cards, and an agent sees its own."""
    settings: dict[str, Any] = {
        **{"env": f"{__file__}:HighCard", "agents.right": "other", "steps": 4, "seed": 3, "checkpoint_every": 4},
        **{"algo": "maac", "algo.value_view": 1, "policies.other.algo": "maac", "algo.gae_lambda": 1.0},
        **{"policies.other.algo.gae_lambda": 1.0, "warm_start.steps": 4, "warm_start.demos": 16, "eval.every": None},
        **{"rollout.groups_per_step": 10, "rollout.group_size": 2, "rollout.turn_tokens": 4},
    }
    agentrl.train(run_dir=str(tmp_path), **settings)
    rows = [orjson.loads(line) for line in (tmp_path / "metrics.jsonl").read_bytes().splitlines()]
    central, own = ([row[f"{prefix}critic/explained_variance"] for row in rows[1:]] for prefix in ("", "other/"))
    assert min(central) > 0.8
    assert max(own) < 0.6
    report = verify(tmp_path)
    assert report.passed, report


@pytest.mark.slow
def test_one_policy_learns_from_all_combinations_and_another_from_continuations(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        **{"env": "joint_length", "agents.long": "other", "steps": 2, "seed": 3, "checkpoint_every": 2},
        **{"algo": "magrpo", "algo.pairing": "cross", "policies.other.algo": "coma", "eval.every": None},
        **{"warm_start.steps": 2, "warm_start.demos": 16, "rollout.groups_per_step": 2, "rollout.group_size": 3},
        **{"rollout.turn_tokens": 8, "policies.other.algo.counterfactuals": 2},
    }
    agentrl.train(run_dir=str(tmp_path), **settings)
    rows = [orjson.loads(line) for line in (tmp_path / "metrics.jsonl").read_bytes().splitlines()]
    for row in rows:
        turns = 2 * row["other/coma/turns"]  # of both: each agent's turn is drawn again
        assert row["count/counterfactual/continuations"] == 2 * turns > 0
    with Store(tmp_path / "sessions.db", read_only=True) as store:
        sessions = [each for each in store.sessions() if each.phase == "train"]
    assert {JOINT_PATH in session.info for session in sessions} == {False, True}
    report = verify(tmp_path)
    assert report.passed, report
