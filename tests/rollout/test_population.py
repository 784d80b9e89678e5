"""A population: in each group one of several policies plays an agent, and each learns from the groups that it met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import agentrl
from agentrl.config import RunConfig
from agentrl.envs.episode import NOOP
from agentrl.errors import ConfigError
from agentrl.rollout.episodes.policies import Fixed, Policy, Population
from agentrl.rollout.workers.environment_workers import model_played
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.store.store import Store
from agentrl.train.driver.api import configure
from agentrl.train.plan.preflight import check_rollouts
from agentrl.train.record.verify import verify
from agentrl.types import MAIN, Session, Task
from tests.train.test_several_learners import BOTH, DEMAND, same, weights


def session(number: int, sample: int = 0, phase: str = "train") -> Session:
    return Session(f"s{number}-{sample}", Task(id="t"), group_number=number, sample=sample, phase=phase)


def test_sessions_of_a_group_meet_the_same_member_and_groups_meet_each() -> None:
    members = [Fixed(Policy(NullRenderer(), name=name), NOOP) for name in ("a", "b")]
    crowd = Population("crowd", [*members, None], seed=3)

    def met(each: Session) -> str:
        found = crowd.plays(each)
        return MAIN if found is None else found[0].name

    drawn = [{met(session(number, sample)) for sample in range(3)} for number in range(30)]
    assert all(len(names) == 1 for names in drawn)
    assert set().union(*drawn) == {"a", "b", MAIN}
    assert {met(session(number, phase="eval")) for number in range(9)} == {"a"}
    assert [policy.name for policy in crowd.policies] == ["a", "b"]
    again = Population("crowd", [*members, None], seed=4)
    assert [crowd.plays(session(n)) for n in range(30)] != [again.plays(session(n)) for n in range(30)]


@pytest.mark.parametrize(
    ("members", "named"),
    [
        (["a", "rules"], r"policies.crowd.members=\['a', 'rules'\]: 'rules' is no model of this run; .*: main, a"),
        (["a", "third"], "'third' is no model of this run"),
        (["a"], "a population has two policies or more, each named once"),
        (["a", "a"], "a population has two policies or more, each named once"),
    ],
)
def test_a_population_has_models_of_the_run(members: list[str], named: str) -> None:
    policies = {"crowd": {"name": "population", "members": members}, "a": {}, "rules": {"name": "noop"}}
    with pytest.raises(ValidationError, match=named):
        RunConfig.model_validate({"env": {"name": DEMAND}, "agents": {"right": "crowd"}, "policies": policies})


def test_members_are_of_a_population_and_one_that_plays_all_agents_needs_one_that_learns_with_the_run() -> None:
    with pytest.raises(ValidationError, match="members is of no use to a policy that is 'model'"):
        RunConfig.model_validate({"env": {"name": DEMAND}, "policies": {"a": {"members": ["main", "b"]}}})
    everybody = {"agents.left": "crowd", "agents.right": "crowd", "policies.crowd": "population"}
    frozen = {"policies.a.model": "start", "policies.b.model": "start", "policies.crowd.members": ["a", "b"]}
    with pytest.raises(ConfigError, match="play all agents"):
        check_rollouts(configure(DEMAND, {**everybody, **frozen}))
    check_rollouts(configure(DEMAND, {**everybody, **frozen, "policies.crowd.members": ["a", "b", "main"]}))


def test_a_worker_knows_the_model_of_each_policy_that_may_play_an_agent() -> None:
    """A version of another learner had the tokenizer of the run's own policy, and a member that of the population."""
    policies = {
        "crowd": {"name": "population", "members": ["main", "b"]},
        "a": {"model": "small", "trainer": "torch"},
        "b": {"model": "large"},
        "of_a": {"name": "past", "past": {"of": "a", "current": 0.5}},
        "own": {"name": "past"},
    }
    agents = {"right": "crowd", "left": "of_a", "up": "own"}
    config = RunConfig.model_validate({"env": {"name": DEMAND}, "agents": agents, "policies": policies})
    for agent, policy, model in (
        *(("right", "b", "large"), ("left", "a", "small"), ("left", "of_a/0", "small")),
        *(("up", "own/3", config.model.name),),
    ):
        assert model_played(config.policies, config.agents, config.model, agent, policy).name == model
    assert model_played(config.policies, config.agents, config.model, "up", "own/3") is config.model


@pytest.mark.slow
def test_members_learn_from_the_groups_in_which_they_played(tmp_path: Path) -> None:
    """`right` is `main`, `other` or `third`, which stays as it is."""
    short: dict[str, Any] = {"steps": 1, "checkpoint_every": 1, "warm_start.steps": 10, "warm_start.demos": 32}
    crowd = {"agents.right": "crowd", "policies.crowd": "population", "policies.third.model": "start"}
    crowd |= {"policies.crowd.members": ["third", "other", "main"], "rollout.groups_per_step": 8}
    agentrl.train(run_dir=str(tmp_path), **BOTH | short | crowd, **{"algo.warmup_steps": 0})
    with Store(tmp_path / "sessions.db", read_only=True) as store:
        sessions = [each for each in store.sessions() if each.phase == "train"]
    nodes = ((each.group, node) for each in sessions for node in each.nodes)
    met = {(group, node.policy) for group, node in nodes if node.agent == "right" and node.sampled}
    assert {policy for _, policy in met} == {"third", "other", "main"}
    assert len({group for group, _ in met}) == len(met) == 8, "one for each group"
    for policy in ("main", "other"):
        assert not same(weights(tmp_path, policy, 0), weights(tmp_path, policy, 1)), policy
    report = verify(tmp_path)
    assert report.passed, report
