"""Two policies learn a game of two joint turns as MAGRPO's tree: what is stored and learned, and after a kill."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.envs.base import reward
from agentrl.envs.builtin.teams.base import ChoiceWorld
from agentrl.rollout.episodes.combinations import has_whole_tree
from agentrl.sessions.store.store import Store
from agentrl.train.record.verify import verify
from agentrl.types import Session
from agentrl.types.session import JOINT_PATH
from tests.train.test_resume import copy_before
from tests.train.test_several_learners import same, weights

SIZE = 2
SETTINGS: dict[str, Any] = {
    **{"env": f"{__file__}:TwoRounds", "agents.right": "other", "steps": 3, "seed": 5, "checkpoint_every": 3},
    **{"algo": "magrpo", "algo.pairing": "cross", "algo.lr": 1e-3, "algo.warmup_steps": 0},
    **{"policies.other.algo": "magrpo", "policies.other.algo.pairing": "cross", "policies.other.algo.lr": 2e-3},
    **{"warm_start.steps": 30, "warm_start.demos": 64, "rollout.groups_per_step": 2, "rollout.group_size": SIZE},
    **{"rollout.turn_tokens": 12, "eval.tasks": 2, "eval.n": 1},
}


class TwoRounds(ChoiceWorld):
    """Two agents choose twice, and are paid where they choose alike; each hears what the other chose."""

    name = "two_rounds"
    agents = ("left", "right")
    teams: Mapping[str, tuple[str, ...]] = {"pair": ("left", "right")}
    rounds = 2

    def situations(self) -> Sequence[Mapping[str, Any]]:
        return [{}]

    def opening(self, agent: str) -> str:
        return f"You are {agent}. Say a or b."

    def options(self, agent: str) -> Sequence[str]:
        return ("a", "b")

    def news(self, agent: str) -> str:
        return f"They said {self.said[self.agents[1 - self.agents.index(agent)]][-1]}."

    def payoffs(self) -> Mapping[str, float]:
        pairs = zip(*self.said.values(), strict=False)
        return {"pair": sum(one == other for one, other in pairs) / self.rounds}

    @reward
    def alike(self, session: Session) -> Mapping[str, float]:
        """Return how often both chose alike."""
        return self.payoffs()

    def expert(self, messages: Sequence[Any]) -> str:
        return "a"


@pytest.mark.slow
def test_two_policies_learn_from_a_tree_and_a_killed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    agentrl.train(run_dir=str(straight), **SETTINGS)
    with Store(straight / "sessions.db", read_only=True) as store:
        sessions = [each for each in store.sessions() if each.phase == "train"]
    groups: dict[str, list[Session]] = defaultdict(list)
    for session in sessions:
        groups[session.group].append(session)
    assert all(has_whole_tree(group, SIZE, SIZE, "cross") for group in groups.values())
    assert max(map(len, groups.values())) == (SIZE**2) ** 2
    assert {JOINT_PATH in session.info for session in sessions} == {False, True}
    for policy in ("main", "other"):
        assert not same(weights(straight, policy, 0), weights(straight, policy, 3)), f"{policy} learns"
    assert verify(straight).passed
    copy_before(straight, 3, killed)
    agentrl.train(resume=str(killed))
    report = verify(killed)
    assert report.passed, report
    assert all(same(weights(straight, policy, 3), weights(killed, policy, 3)) for policy in ("main", "other"))
