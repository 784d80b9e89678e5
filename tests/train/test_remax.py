"""ReMax: the greedy session beside each group is its baseline, and counts nowhere else."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from agentrl.config import AlgoConfig, RunConfig, ShapingConfig
from agentrl.rollout.episodes.groups import TRAIN
from agentrl.rollout.stream.batch_metrics import rollout_metrics
from agentrl.rollout.stream.filters import complete, signal
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms import Choice, algorithm_settings, make_algorithm
from agentrl.train.algorithms.adaptive import Adaptive
from agentrl.train.algorithms.shaping import shaped_groups
from agentrl.train.record import ledger
from agentrl.types import GREEDY, Group, Sampling, Session, Status
from tests.train.test_rerun import SETTINGS, WORLD, train
from tests.train.trees import as_group, linear_session


def greedy_session(name: str, turns: list[list[int]], reward: float, group: str = "g") -> Session:
    """As the stream has it: of temperature 0, so without a trainable token."""
    session = linear_session(name, [8, 9], turns, reward=reward, group=group)
    session.phase = GREEDY
    for node in session.nodes:
        node.trainable = [False] * len(node.token_ids)
        node.sampling = Sampling(temperature=0.0) if node.sampled else None
    return session


def ragged(rng: random.Random) -> list[Group]:
    groups = []
    for g in range(3):
        members = []
        for i in range(rng.randint(1, 4)):
            turns = [[rng.randrange(8, 40) for _ in range(rng.randint(1, 5))] for _ in range(rng.randint(1, 3))]
            members.append(linear_session(f"{g}-{i}", [8, 9 + g], turns, reward=rng.random(), group=f"g{g}"))
            for node in members[-1].nodes:
                node.reward = rng.random() if node.sampled else None
        beside = greedy_session(f"{g}-greedy", [[30], [31]], rng.random(), f"g{g}")
        for node in beside.nodes:
            node.reward = rng.random() if node.sampled else None
        groups.append(as_group([*members, beside], f"g{g}"))
    return groups


def returns(session: Session) -> list[float]:
    """At each turn: the final reward, and the rewards of this and the later turns."""
    steps = [node.reward or 0.0 for node in session.nodes if node.sampled]
    return [(session.reward or 0.0) + sum(steps[turn:]) for turn in range(len(steps))]


@pytest.mark.parametrize("seed", range(4))
def test_the_advantage_is_the_return_less_the_greedy_sessions_at_the_same_turn(seed: int) -> None:
    """arXiv:2310.10505, algorithm 1; a greedy session that is over has its final reward left."""
    groups = ragged(random.Random(seed))
    made = make_algorithm(algorithm_settings({"name": "remax"}))
    shares = made.credit(groups).shares
    for group in groups:
        (beside,) = group.greedy
        for session in group.scored:
            turns = [node.id for node in session.nodes if node.sampled]
            for turn, (node, found) in enumerate(zip(turns, returns(session), strict=True)):
                expected = [*returns(beside), *[beside.reward or 0.0] * 3][turn]
                assert shares[session.id, node][0].advantage == pytest.approx(found - expected)
        assert not any(key[0] == beside.id for key in shares)
    tokens = {(s.id, n.id): sum(n.trainable) for group in groups for s in group.sessions for n in s.nodes}
    assert sum(tokens[key] * share.weight for key, each in shares.items() for share in each) == pytest.approx(1)
    parts = [Group(g.id, g.task, [s]) for g in groups for s in g.sessions]
    random.Random(seed).shuffle(parts)
    again = made.credit(parts).shares
    assert {key: each[0].advantage for key, each in again.items()} == pytest.approx(
        {key: each[0].advantage for key, each in shares.items()}
    )


def test_a_group_of_one_has_a_signal_and_one_without_a_greedy_reward_is_dropped() -> None:
    made = make_algorithm(algorithm_settings({"name": "remax"}))
    session, beside = linear_session("a", [8], [[30]], reward=1.0), greedy_session("b", [[31]], 0.25)
    group = as_group([session, beside])
    (share,) = made.credit([group]).shares["a", 1]
    assert share.advantage == 0.75
    assert made.select(group) is Choice.KEEP
    failed = as_group([session, replace(beside, status=Status.INFRA_ERROR)])
    assert made.select(failed) is Choice.DROP
    assert made.credit([failed]).shares == {}


def test_the_greedy_session_is_in_no_metric_of_rewards_and_no_filter() -> None:
    own = [linear_session(name, [8], [[30]], reward=1.0, group="g") for name in "ab"]
    beside = replace(greedy_session("c", [[31]], 0.0), status=Status.TRUNCATED)
    alone, together = as_group(own), as_group([*own, beside])
    assert signal(together) == signal(alone) == 0.0
    assert complete(together) == 1.0
    for key, value in rollout_metrics([alone]).items():
        if key.startswith(("reward/", "group/")):
            assert rollout_metrics([together])[key] == value
    settings = AlgoConfig(shaping=ShapingConfig(truncated_penalty=0.5))
    (shaped,) = shaped_groups([together], settings, Adaptive.of(settings))
    assert [session.reward for session in shaped.greedy] == [-0.5], "its rewards are shaped as the group's are"


@pytest.mark.slow
def test_an_agent_program_has_no_greedy_sessions() -> None:
    with pytest.raises(ValidationError, match="needs greedy sessions, and an agent program samples as it likes"):
        RunConfig.model_validate({"env": {"name": "calculator"}, "algo": {"name": "remax"}, "agent": "./program"})


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_has_a_greedy_session_for_each_group_and_is_run_again_and_resumed_with_it(tmp_path: Path) -> None:
    run, world = tmp_path / "run", tmp_path / "world.py"
    world.write_text(WORLD)
    settings = SETTINGS | {"rollout.order": "number", "rollout.turn_tokens": 8, "algo": "remax", "steps": 2}
    settings["engine.process"] = "shared"  # another process would take seconds for each of the three runs
    done, _ = train(env=f"{world}:Dense", **settings, run_dir=str(run))
    assert all("reward/greedy" in row for row in done.metrics)
    trained = [entry.outcome for entry in ledger.read(run)]
    with Store(run / "sessions.db", read_only=True) as store:
        for outcome in trained:
            *own, beside = sorted(store.sessions(group=outcome.group), key=lambda session: session.sample)
            assert [session.phase for session in own] == [TRAIN] * 3
            assert beside.phase == GREEDY
            sampled = [node for node in beside.nodes if node.sampling is not None]
            assert {node.sampling.temperature for node in sampled if node.sampling} == {0.0}
            assert not any(any(node.trainable) for node in sampled)
    _, shown = train(rerun=str(run))
    assert "step-000002" in shown
    longer, _ = train(resume=str(run), steps=3)
    assert longer.metrics[-1]["step"] == 3
