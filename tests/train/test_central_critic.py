"""What a team's agents are judged by: a critic of all of them, MAAC's error, and continuations of joint turns."""

from __future__ import annotations

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


def test_a_turns_advantage_is_the_critics_error_over_one_turn_and_its_target_is_without_the_value_before() -> None:
    session = linear_session("a", [8, 9], [[30, 31], [32]], reward=1.0)
    first, second = (node for node in session.nodes if node.sampled)
    first.reward = 0.5
    values = {("a", node.id): [0.0] * len(node.token_ids) for node in session.nodes}
    for node, value in ((first, 0.2), (second, 0.7)):
        values["a", node.id] = [value if on else 0.0 for on in node.trainable]
    shares = make_algorithm(algorithm_settings({"name": "maac"})).credit([as_group([session])], values).shares
    for node, delta, target in ((first, 0.5 + 0.9 * 0.7 - 0.2, 0.5 + 0.9 * 0.7), (second, 1.0 - 0.7, 1.0)):
        (share,) = shares["a", node.id]
        trained = [place for place, on in enumerate(node.trainable) if on]
        assert [share.advantage[place] for place in trained] == pytest.approx([delta] * len(trained))  # type: ignore[index]
        assert [share.returns[place] for place in trained] == pytest.approx([target] * len(trained))  # type: ignore[index]


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
