"""Sessions that are forked on purpose, with an engine that really samples."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentrl.config import BranchConfig, RolloutConfig
from agentrl.envs.base import Env, reward
from agentrl.errors import ConfigError, InfraError, StateUnsupported
from agentrl.rollout.episodes.branching import check_branching
from agentrl.rollout.episodes.fork_rules import FORK_RULES, ForkPoint
from agentrl.rollout.episodes.groups import TRAIN, Rollouts, new_group
from agentrl.rollout.episodes.policies import ModelActor, Policy
from agentrl.rollout.workers.held import content_hash
from agentrl.sessions.store.recorder import Recorder
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.types import Group, Message, Sampling, Session, Status, StepResult, Task
from agentrl.types.branches import token_weights
from agentrl.types.session import path_weights, siblings
from tests.sessions.fakes import DiceEngine, LetterRenderer

TURNS = 3


class Echo(Env):
    """Answers each message with what was said so far; the reward is computed from the conversation that it is given."""

    failing: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.said: list[str] = []

    def tasks(self, split: str = "train") -> list[Task]:
        return [Task(id="t")]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        return "begin"

    def step(self, message: Message) -> StepResult:
        if self.said and self.failing and len(self.said) == 1:
            raise InfraError(self.failing.pop())
        self.said.append(message.text)
        words = [Message(role="user", content=" ".join(self.said))]
        return StepResult(words, reward=0.1 * len(self.said), terminated=len(self.said) == TURNS)

    def state(self) -> Any:
        return self.said

    def restore(self, task: Task, state: Any) -> None:
        self.said = list(state)

    @reward(range=(0, 1000))
    def length(self, session: Session) -> float:
        said = [node.message.text for node in session.nodes if node.sampled]
        assert said == self.said, "the reward sees the episode of its own branch"
        assert len(session.nodes) == len(session.messages)
        return float(len("".join(said)))


def limits(**branch: Any) -> RolloutConfig:
    return RolloutConfig.model_validate({"turn_tokens": 64, "branch": branch or {"name": "none"}})


async def play(settings: RolloutConfig, n: int = 2, recorder: Recorder | None = None) -> tuple[Group, DiceEngine]:
    engine = DiceEngine(end_weight=40.0)
    rollouts = Rollouts(Echo, Policy(LetterRenderer(), engine), settings, 5, recorder=recorder)
    group = new_group(TRAIN, 0, Task(id="t"))
    await rollouts.generate(group, ModelActor(Sampling(max_new_tokens=64)), n, phase=TRAIN)
    return group, engine


async def test_every_turn_is_continued_again_from_its_exact_prefix_and_the_environment_as_it_was() -> None:
    group, engine = await play(limits(name="every", continuations=2))
    for session in group.sessions:
        tree.check(session)
        assert session.status is Status.COMPLETED
        by_head = Counter(branch.head for branch in session.branches)
        trunk = session.branches[0]
        assert trunk.head is None
        assert set(by_head.values()) == {1, 2}
        for members in siblings(session):
            assert len(members) == 3
            assert len({session.nodes[member].parent for member in members}) == 1
        for path in session.paths():
            said = [node.message.text for node in path if node.sampled]
            assert path[-1].message.text == " ".join(said) or path[-1].finish_reason is not None
    own = [call.request_id for call in engine.calls]
    assert len(set(own)) == len(own)


async def test_a_sessions_reward_is_the_mean_in_which_siblings_count_equally() -> None:
    group, _ = await play(limits(name="every", start=1, turns=5))
    for session in group.sessions:
        if not session.branches:
            continue
        assert session.reward == pytest.approx(sum(branch.reward or 0.0 for branch in session.branches) / 2)
        assert sorted(path_weights(session).values()) == [0.5, 0.5]
        forked = siblings(session)[0]
        assert [token_weights(session)[member] for member in forked] == [0.5, 0.5]
        assert session.score is not None
        assert session.score > (session.reward or 0.0)


async def test_the_first_path_of_a_forked_session_is_the_session_without_forks_to_the_last_bit() -> None:
    plain, _ = await play(limits())
    forked, _ = await play(limits(name="every", continuations=3, nested=True, max_continuations=9))
    for one, other in zip(plain.sessions, forked.sessions, strict=True):
        assert one.nodes == other.nodes[: len(one.nodes)]
        assert len(other.nodes) > len(one.nodes)
        trunk = other.branches[0]
        assert (trunk.rewards, trunk.reward, trunk.status) == (one.rewards, one.reward, one.status)
        assert other.counters["branch/continuations"] <= 9


async def test_the_same_seeds_give_the_same_tree_also_after_an_infrastructure_error(tmp_path: Path) -> None:
    settings = limits(name="every", nested=True, max_continuations=5)
    undisturbed, _ = await play(settings)
    Echo.failing = ["lost", "lost again"]
    with Store(tmp_path / "s.db") as store:
        with Recorder(store) as recorder:
            disturbed, _ = await play(settings, recorder=recorder)
        stored = [store.load(session.id) for session in disturbed.sessions]
    assert not Echo.failing
    assert any(session.attempt for session in disturbed.sessions)
    assert stored == disturbed.sessions
    as_first = [replace(session, id=session.id.partition("~")[0]) for session in disturbed.sessions]
    assert content_hash(as_first) == content_hash(undisturbed.sessions)


async def test_continuations_for_a_value_are_marked_and_evaluation_forks_nothing() -> None:
    group, _ = await play(limits(name="every", trained=False))
    assert {b.trained for s in group.sessions for b in s.branches[1:]} == {False}
    rollouts = Rollouts(Echo, Policy(LetterRenderer(), DiceEngine(end_weight=40.0)), limits(name="every"), 5)
    (evaluated,) = await rollouts.collect([Task(id="t")], ModelActor(Sampling(max_new_tokens=64)), phase="eval", n=2)
    assert not any(session.branches for session in evaluated.sessions)


async def test_a_point_that_the_environment_cannot_save_is_not_forked_and_counted() -> None:
    class Sometimes(Echo):
        def state(self) -> Any:
            if len(self.said) == 1:
                raise StateUnsupported("not now")
            return super().state()

    rollouts = Rollouts(Sometimes, Policy(LetterRenderer(), DiceEngine(end_weight=40.0)), limits(name="every"), 5)
    group = new_group(TRAIN, 0, Task(id="t"))
    await rollouts.generate(group, ModelActor(Sampling(max_new_tokens=64)), 4, phase=TRAIN)
    for session in group.sessions:
        assert session.counters["branch/unsupported"] == 1
        assert all(branch.head != 1 for branch in session.branches)


def uncertain(point: ForkPoint) -> bool:
    return point.turn == 1


def wrong(point: ForkPoint) -> bool:
    raise KeyError("x")


def half(point: ForkPoint) -> float:
    return 0.5 if point.turn == 2 else 1.0


@pytest.mark.parametrize(
    ("settings", "turns"),
    [
        ({"name": "every", "start": 0, "turns": 2}, {0, 2}),
        ({"name": f"{__name__}:uncertain"}, {1}),
        ({"name": "value", "estimate": f"{__name__}:half"}, {2}),
        ({"name": "entropy", "threshold": 0.0}, {1, 2}),
        ({"name": "entropy", "threshold": 50.0}, set()),
    ],
)
def test_rules_fork_where_they_say(settings: dict[str, Any], turns: set[int]) -> None:
    config = FORK_RULES.settings(settings["name"]).model_validate(settings)
    rule = FORK_RULES.find(settings["name"])(config)  # type: ignore[arg-type]
    points = [ForkPoint(turn, 0, (), None if turn == 0 else 2.0, 0, 0) for turn in range(3)]
    assert {point.turn for point in points if rule.forks(point)} == turns


async def test_a_rule_that_fails_stops_the_run_and_names_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"rollout.branch=.*wrong.*KeyError"):
        await play(limits(name=f"{__name__}:wrong"))


@pytest.mark.slow
def test_what_cannot_be_forked_is_refused_by_name() -> None:
    class Stateless(Env): ...

    class Two(Echo):
        agents = ("a", "b")

    check_branching(BranchConfig(), Stateless(), None)
    every = BranchConfig(name="every")
    with pytest.raises(ConfigError, match=r"Stateless has no state\(\)"):
        check_branching(every, Stateless(), None)
    with pytest.raises(ConfigError, match="one agent; Two has a, b"):
        check_branching(every, Two(), None)
    with pytest.raises(ConfigError, match="agent="):
        check_branching(every, Echo(), "x.py:agent")
