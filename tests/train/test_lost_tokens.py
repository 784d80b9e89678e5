"""Where sampled tokens went: every one is trained or has a cause, and a run that trains none says why and ends."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import agentrl
from agentrl.attachments import support
from agentrl.envs.registry import make
from agentrl.errors import ConfigError, NoSignal
from agentrl.rollout.stream.health import sampling_notes
from agentrl.rollout.workers.held import sampled_tokens
from agentrl.sessions.tree.trainability import Untrainable
from agentrl.sessions.tree.turn_generator import count_untrainable
from agentrl.train.algorithms import make_algorithm
from agentrl.train.display.console import Display
from agentrl.train.display.panel import TimedProgress, step_line
from agentrl.train.driver import lost_tokens
from agentrl.train.driver.lost_tokens import (
    SAMPLED,
    STRUCTURAL,
    TRAINED,
    Cause,
    account,
    by_cause,
    describe_lost,
    ending,
)
from agentrl.train.driver.result import TrainResult
from agentrl.types import GREEDY, Group, Message, Sampling, Session, Status, StepResult, Task
from agentrl.viewer.health import alarms
from tests.train.trees import linear_session, random_session

SHORT: dict[str, Any] = {
    **{"eval.tasks": 1, "rollout.turn_tokens": 4, "rollout.groups_per_step": 1, "rollout.group_size": 2},
    **{"checkpoint_every": 15, "metrics": []},
}


def accounted(*sessions: Session, **settings: Any) -> dict[str, float]:
    """The counts of a group; only those above 0."""
    algorithm = make_algorithm(lost_tokens.AlgoConfig(name="grpo", **settings))
    group = Group("g", Task(id="g"), [replace(session, group="g") for session in sessions])
    credit = algorithm.credit(group.by_agent())
    found = account([group], credit, algorithm.config)
    assert found[SAMPLED] == found[TRAINED] + sum(by_cause([found]).values())
    return {name: count for name, count in found.items() if count}


def session(name: str, reward: float | None, **fields: Any) -> Session:
    return replace(linear_session(name, [5], [[6, 7]], reward=reward), **fields)


def sampled_with(sampling: Sampling, *sessions: Session, trainable: bool = True, policy: str = "main") -> list[Session]:
    for node in (node for each in sessions for node in each.nodes if node.sampled):
        node.sampling, node.policy = sampling, policy
        node.trainable = [trainable and kept for kept in node.trainable]
    return list(sessions)


def test_every_sampled_token_of_a_random_batch_is_trained_or_has_one_cause() -> None:
    rng = random.Random(0)
    seen: set[str] = set()
    for trial in range(60):
        groups = []
        for number in range(3):
            sessions = []
            for i in range(4):
                made = random_session(rng, f"{trial}-{number}-{i}", [5, 6], rng.randint(1, 3), rng.randint(1, 2))
                made.reward = rng.choice([None, 0.0, 0.0, 1.0])
                made.status = rng.choice(list(Status))
                made.phase = rng.choice(["train", "train", GREEDY])
                for node in (node for node in made.nodes if node.sampled):
                    node.reply_id = rng.choice([None, f"r{node.id}"])
                    node.policy = rng.choice(["main", "main", "main", "rival"])
                    if node.policy == "rival" or rng.random() < 0.2:
                        node.trainable = [False] * len(node.token_ids)
                        node.sampling = Sampling(top_p=0.9)
                sessions.append(made)
            groups.append(Group(f"g{number}", Task(id="t"), sessions))
        algorithm = make_algorithm(lost_tokens.AlgoConfig(name="grpo"))
        counts = account(groups, algorithm.credit(groups), algorithm.config)
        own = [s for group in groups for s in group.sessions if s.phase != GREEDY]
        for found in (counts, lost_tokens.take_away(counts, Cause.MASKED, 0.3)):
            assert found[SAMPLED] == sum(sampled_tokens(node) for s in own for node in s.nodes)
            assert found[SAMPLED] == found[TRAINED] + sum(by_cause([found]).values())
        more = lost_tokens.add_left_out(counts, 7)
        assert more[SAMPLED] == counts[SAMPLED] + 7 == more[TRAINED] + sum(by_cause([more]).values())
        seen |= {cause.value for cause in by_cause([counts])} | ({"trained"} if counts[TRAINED] else set())
    assert seen >= {"trained", "sampling", "frozen", "flat", "unrewarded", "failed", "truncated"}


def test_each_cause_is_named() -> None:
    assert accounted(session("a", 0.0), session("b", 1.0)) == {SAMPLED: 4, TRAINED: 4}
    assert accounted(session("a", 1.0), session("b", 1.0)) == {SAMPLED: 4, Cause.FLAT.metric: 4}
    assert accounted(session("a", None), session("b", None)) == {SAMPLED: 4, Cause.UNREWARDED.metric: 4}
    cut = session("a", None, status=Status.TRUNCATED)
    failed = session("b", None, status=Status.AGENT_ERROR)
    assert accounted(cut, failed) == {SAMPLED: 4, Cause.TRUNCATED.metric: 2, Cause.FAILED.metric: 2}
    narrow = sampled_with(Sampling(top_p=0.9), session("a", 0.0), session("b", 1.0), trainable=False)
    assert accounted(*narrow) == {SAMPLED: 4, Cause.SAMPLING.metric: 4}
    rival = sampled_with(Sampling(), session("a", 0.0), session("b", 1.0), trainable=False, policy="rival")
    assert accounted(*rival) == {SAMPLED: 4, Cause.FROZEN.metric: 4}
    seeded = sampled_with(Sampling(seed=7), session("a", 1.0), session("b", 1.0))
    assert accounted(*seeded) == {SAMPLED: 4, Cause.SEED.metric: 4}


def test_a_turn_that_is_not_trained_for_several_reasons_counts_each() -> None:
    """All of its tokens were counted by the reason that most of them had."""
    codes = (support.OVERSIZE, support.OUTSIDE, support.UNKNOWN, support.OVERSIZE)
    sessions = []
    for name, sampling in (("a", Sampling(top_p=0.9)), ("b", Sampling(json_schema="{}"))):
        made = linear_session(name, [5], [[6, 7, 8, 9]], reward=0.0)
        sampled_with(sampling, made, trainable=False)
        made.nodes[1].attachments[support.NAME] = support.Support(support.LOCAL, 50, (), codes).pack()
        sessions.append(made)
    greedy, rival = session("c", 1.0), session("d", 0.0)
    sampled_with(Sampling(temperature=0.0), greedy, trainable=False)
    sampled_with(Sampling(), rival, trainable=False, policy="rival")
    counts = accounted(*sessions, greedy, rival)
    each = {Cause.OVERSIZE: 4, Cause.OUTSIDE: 2, Cause.SAMPLING: 1, Cause.GRAMMAR: 1, Cause.GREEDY: 2, Cause.FROZEN: 2}
    assert counts == {SAMPLED: 12, **{cause.metric: count for cause, count in each.items()}}
    assert {cause.value for cause in each} == {reason.value for reason in Untrainable}


@pytest.mark.parametrize("reason", Untrainable)
def test_the_step_line_the_viewers_health_and_a_runs_notes_name_each_reason(reason: Untrainable) -> None:
    """Notes were of grammars alone; what a setting freezes needs none."""
    cause = Cause(reason)
    lost = row(1, **{cause.value: 9})
    assert f"{cause.words} 9" in step_line(TimedProgress("rl", 30, 3), "reward", 0.5, lost, 79)
    [alarm] = [each for each in alarms([{"step": 1, **lost}], {}) if each["title"] == "Sampled tokens are not trained"]
    assert (f"{cause.words} 9" in alarm["reason"], alarm["metric"]) == (True, cause.metric)
    assert lost_tokens.ADVICE[cause] in alarm["advice"]
    attached = {support.OVERSIZE: Untrainable.OVERSIZE, support.OUTSIDE: Untrainable.OUTSIDE}
    made = linear_session("a", [5], [[6]])
    made.phase, node = "train", made.nodes[1]
    node.sampling = Sampling(
        temperature=0.0 if reason is Untrainable.GREEDY else 1.0,
        regex="a" if reason is Untrainable.GRAMMAR else None,
        top_p=0.9,
    )
    for code in (code for code, one in attached.items() if one is reason):
        node.attachments[support.NAME] = support.Support(support.LOCAL, 50, (), (code,)).pack()
    if reason is not Untrainable.FROZEN:
        with warnings.catch_warnings(action="ignore"):
            count_untrainable(made, node)
        assert made.counters == {f"untrainable/{reason}": 1}
        [note] = sampling_notes([made], trained=True)
        assert reason.words in note
        assert sampling_notes([made], trained=False) == []


def test_a_frozen_agents_tokens_are_its_own_where_agents_have_rewards_of_their_own() -> None:
    sessions = []
    for name, reward in (("a", 0.0), ("b", 1.0)):
        made = linear_session(name, [5], [[6, 7], [8, 9, 10]], reward=reward)
        first, second = (node for node in made.nodes if node.sampled)
        roles = {first.id: "white", second.id: "black"}
        for node in made.nodes:  # each agent's path is a root of its own
            node.agent = roles.get(node.id, "white" if node.id < second.id else "black")
        second.parent, second.policy, second.trainable = None, "rival", [False] * len(second.token_ids)
        made.agent_rewards = {"white": reward}
        sessions.append(made)
    assert accounted(*sessions) == {SAMPLED: 10, TRAINED: 4, Cause.FROZEN.metric: 6}


def test_a_kl_penalty_alone_is_no_signal() -> None:
    assert TRAINED not in accounted(session("a", 1.0), session("b", 1.0), kl_coef=0.1)


def row(trained: float = 0.0, reward: float = 0.0, **lost: float) -> dict[str, float]:
    counts = {Cause[name.upper()].metric: count for name, count in lost.items()}
    return {"reward/mean": reward, SAMPLED: trained + sum(lost.values()), TRAINED: trained, **counts}


@pytest.mark.parametrize("cause", sorted(STRUCTURAL))
def test_a_step_that_lost_all_to_structural_causes_ends_a_run_and_one_that_lost_most_does_not(cause: Cause) -> None:
    found = ending([row(8), row(**{cause.value: 10})], {1.0})
    assert found
    assert cause.words in found.reason
    assert lost_tokens.ADVICE[cause] in found.reason
    assert ending([row(1, **{cause.value: 9})], {1.0}) is None
    assert ending([row(**{cause.value: 9, "flat": 1})], {1.0}) is None


def test_twenty_steps_in_a_row_without_a_trained_token_end_a_run_and_nineteen_do_not() -> None:
    silent = [row(flat=6, truncated=4)] * 20
    assert ending(silent[1:], {1.0}) is None
    assert ending([*silent[1:], row(1), *silent[1:]], {1.0}) is None
    found = ending([row(3), *silent], {1.0})
    assert found
    assert not found.learned
    assert "20 steps in a row, at a mean reward of 0: 0 of 200 sampled tokens" in found.reason
    assert "flat 120, truncated 80" in found.reason
    assert ending([*silent, silent[0]], {1.0}) is None, "a run that goes on has twenty more"
    assert ending(silent * 2, {1.0})


def test_nothing_is_left_to_learn_at_the_top_of_the_rewards_range_only() -> None:
    solved = ending([row(flat=6, reward=1.5)] * 20, {1.5})
    assert solved
    assert solved.learned
    assert "nothing left to learn" in solved.reason
    below = ending([row(flat=6, reward=1.5)] * 19 + [row(flat=6, reward=1.4)], {1.5})
    assert below
    assert not below.learned


class Weighted(agentrl.Env):
    """Two rewards, of which one is a punishment."""

    @agentrl.reward(weight=2.0, range=(0.0, 3.0))
    def good(self, session: Session) -> float:
        return 0.0

    @agentrl.reward(weight=-1.0)
    def bad(self, session: Session) -> float:
        return 0.0


def test_the_top_of_the_range_is_what_rewards_and_step_rewards_declare() -> None:
    assert lost_tokens.top_scores(Weighted()) == {6.0, 7.0}
    assert lost_tokens.top_scores(make("calculator")) >= {1.0}


def test_rows_of_a_run_without_these_counts_are_counted_by_their_advantages() -> None:
    assert ending([{"pack/signal": 0.0}] * 20, {1.0})
    assert ending([{"pack/signal": 0.0}] * 19 + [{"pack/signal": 1.0}], {1.0}) is None
    assert describe_lost([{"pack/signal": 0.0}]) == ""


def test_the_step_line_says_what_was_lost_with_counts() -> None:
    line = step_line(TimedProgress("rl", 30, 3), "reward", 0.5, row(100, flat=1500, truncated=20), 79)
    assert "lost 1.52k of 1.62k tokens: flat 1.5k  truncated 20" in line
    assert "lost" not in step_line(TimedProgress("rl", 30, 3), "reward", 0.5, row(100), 79)


class Plain(agentrl.Env):
    """Its one turn earns `worth`; None is no reward."""

    splits = ("train", "eval")

    def __init__(self, worth: float | None = 0.0) -> None:
        self.worth = worth

    def tasks(self, split: str = "train") -> list[dict[str, Any]]:
        return [{"id": f"{split}-{i}"} for i in range(40)]

    async def reset(self, task: Task, *, seed: int | None = None) -> str:
        return f"Say something about {task.id}."

    async def step(self, message: Message) -> StepResult:
        return StepResult(terminated=True)

    @agentrl.reward
    def earned(self, session: Session) -> float | None:
        return self.worth


def run(folder: Path, env: str = "Plain", shown: Console | None = None, **settings: Any) -> TrainResult:
    begun = (folder / "config.yaml").exists()
    where = {"resume": str(folder)} if begun else {**SHORT, "run_dir": str(folder)}
    return agentrl.train(
        None if begun else f"{__file__}:{env}", display=Display(shown or Console(quiet=True)), **{**where, **settings}
    )


@pytest.mark.slow
@pytest.mark.parametrize("narrowing", [{"top_p": 0.95}, {"top_k": 8}, {"min_p": 0.1}, {"repetition_penalty": 1.1}])
def test_sampling_by_which_no_token_can_be_trained_is_refused_before_anything_is_written(
    tmp_path: Path, narrowing: dict[str, float]
) -> None:
    [(name, value)] = narrowing.items()
    settings = {f"rollout.{name}": value, "engine.support_bytes": 0}
    refusal = rf"rollout.{name}={value:g}: no token could be trained: engine.support_bytes=0 .*allow_no_signal=true"
    with pytest.raises(ConfigError, match=refusal):
        run(tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_that_may_have_no_signal_goes_on_and_says_what_was_lost(tmp_path: Path) -> None:
    with (tmp_path / "shown").open("w") as file:
        result = run(
            tmp_path / "run",
            shown=Console(file=file, width=200),
            steps=2,
            allow_no_signal=True,
            **{"rollout.top_p": 0.95, "engine.support_bytes": 0},
        )
    assert all(each[Cause.SAMPLING.metric] == each[SAMPLED] > 0 for each in result.metrics)
    assert result.tokens.startswith("0 of ")
    shown = (tmp_path / "shown").read_text()
    assert shown.count("(allow_no_signal=true)") == 1
    assert "tokens: sampling" in shown


class Taught(Plain):
    """The model learns to say one word, so that no turn is cut off."""

    def demonstrate(self, messages: list[Message]) -> str:
        return "yes"


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_without_rewards_ends_after_its_first_step_and_keeps_what_it_did(tmp_path: Path, staleness: int) -> None:
    settings = {"env.worth": None, "rollout.staleness": staleness, "warm_start.steps": 30, "rollout.turn_tokens": 64}
    with pytest.raises(NoSignal, match=r"^step 1: no token .*unrewarded") as caught:
        run(tmp_path / "run", "Taught", steps=3, **settings)
    assert "agentrl train" in caught.value.__notes__[0]
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_flat_steps_are_counted_on_in_a_resumed_run(tmp_path: Path) -> None:
    assert len(run(tmp_path / "run", steps=15).metrics) == 15
    with pytest.raises(NoSignal, match=r"^step 20: no token was trained for 20 steps in a row"):
        run(tmp_path / "run", steps=30)
    assert (tmp_path / "run" / "checkpoints" / "step-000020").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_at_the_top_of_its_range_ends_in_order(tmp_path: Path) -> None:
    result = run(tmp_path / "run", steps=30, **{"env.worth": 1.0})
    assert len(result.metrics) == 20
    assert result.checkpoint.name == "step-000020"
    assert result.tokens.startswith("0 of ")
