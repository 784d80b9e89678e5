"""The example of a frozen opponent, one file outside the package: only the learning policy is trained."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.config import EngineConfig
from agentrl.errors import ConfigError
from agentrl.overrides import fields
from agentrl.rollout.engines import make_engine
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.train.driver.api import configure
from agentrl.train.plan.preflight import check_training
from agentrl.types import MAIN, Session

GAME = f"{Path(__file__).parents[1] / 'examples' / 'plugins' / 'frozen_opponent.py'}:HigherDigit"
SMALL: dict[str, Any] = {
    "rollout": {"groups_per_step": 4, "group_size": 8, "turn_tokens": 8},
    "eval": {"tasks": 32},
    "engine": {"threads": 1, "proof": False},
    "trainer": {"threads": 1, "proof": False},
}
RIVAL = {"agents": {"second": "rival"}, "policies": {"rival": {"model": "start", "engine": {"threads": 1}}}}


def trained(store: Store) -> list[Session]:
    return [session for session in store.sessions() if session.phase == "train"]


async def rescored(model: Path, session: Session) -> list[tuple[float, float]]:
    """For each token that the rival sampled its recorded log-probability, and what the model gives it."""
    engine = make_engine(EngineConfig(threads=1), model)
    pairs = []
    try:
        for node in session.nodes:
            if node.policy == "rival":
                scores = await engine.score(tree.path_ids(session, node.id))
                own = slice(len(node.token_ids) - node.versions[0].end + node.versions[0].start, None)
                pairs += zip(node.logprobs[own], scores[-len(node.token_ids) :][own], strict=True)
    finally:
        await engine.close()
    return pairs


@pytest.mark.slow
async def test_a_learner_beats_a_frozen_copy_of_itself_which_stays_as_it_was(tmp_path: Path) -> None:
    warm = {"steps": 30, "demos": 64, "batch": 32}
    self_play = await asyncio.to_thread(
        agentrl.train, GAME, model="tiny", steps=1, run_dir=str(tmp_path / "a"), warm_start=warm, **SMALL
    )
    start = self_play.path / "checkpoints" / "step-000001"
    with Store(self_play.path / "sessions.db") as store:
        both = {(node.agent, node.policy) for s in trained(store) for node in s.nodes if any(node.trainable)}
    assert both == {("first", MAIN), ("second", MAIN)}

    run = await asyncio.to_thread(
        agentrl.train,
        GAME,
        **{"model": str(start), "steps": 8, "run_dir": str(tmp_path / "b"), "algo": {"lr": 2e-3}, **SMALL, **RIVAL},
    )
    assert run.before is not None
    assert run.after.mean > run.before.mean + 0.2
    with Store(run.path / "sessions.db") as store:
        sessions = trained(store)
    nodes = [node for session in sessions for node in session.nodes if node.sampled]
    assert {(node.agent, node.policy, any(node.trainable)) for node in nodes} == {
        ("first", MAIN, True),
        ("second", "rival", False),
    }
    assert {span.version for node in nodes if node.policy == "rival" for span in node.versions} == {0}
    assert {span.version for node in nodes if node.policy == MAIN for span in node.versions} == set(range(8))
    last = next(session for session in sessions if session.step == 7)
    assert list(last.agent_rewards) == ["first"]
    assert last.reward == last.rewards["won/first"]
    pairs = await rescored(start, last)
    assert pairs
    assert all(recorded == pytest.approx(scored, abs=1e-4) for recorded, scored in pairs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agents": {"secnd": "main"}}, "agents.secnd: env="),
        ({"agents": {"second": "rivl"}}, "agents.second='rivl': there is no such policy (policies: main)"),
        ({"policies": {"rival": {}}}, "policies.rival plays no agent; set agents.NAME=rival"),
        (RIVAL | {"agents": {"first": "rival", "second": "rival"}}, "there is nothing to train"),
        (RIVAL | {"agent": "python -V"}, "is for one agent"),
        ({"policies": {"rival": {"modle": "tiny"}}}, "did you mean 'policies.rival.model'?"),
        ({"algo": {"name": "ppo", "value_view": 2}}, "algo.value_view=2 needs an environment with critic_view(agent)"),
        ({"policies": {"main": {}}, "agents": {"second": "main"}}, "policies.main is the policy that is trained"),
    ],
)
def test_policies_and_agents_that_do_not_fit_are_refused_before_anything_is_written(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_training(configure(GAME, {"model": "tiny", **settings}))
    assert message in str(caught.value)


@pytest.mark.slow
def test_the_settings_of_frozen_policies_are_listed_with_their_defaults() -> None:
    listed = {key: field.default for key, field, _ in fields()}
    assert (listed["policies.NAME.model"], listed["policies.NAME.temperature"], listed["model"]) == (
        "start",
        1.0,
        "tiny",
    )
