"""A recorded run that is run again: the same tokens, losses and weights, or the first place where it departs."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import agentrl
from agentrl.attachments import support
from agentrl.errors import ConfigError, Diverged
from agentrl.rollout.episodes.groups import TRAIN
from agentrl.rollout.rerun.divergence import answer_hash, compare, same, same_prompt
from agentrl.rollout.stream.outcomes import TRAINED
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.train.display.console import Display
from agentrl.train.driver.result import TrainResult
from agentrl.train.record import ledger
from tests.train.trees import linear_session

WORLD = """
import agentrl


class Dense(agentrl.Env):
    max_turns = 2

    def tasks(self, split="train"):
        return [agentrl.Task(id=str(number)) for number in range(12)]

    async def reset(self, task, *, seed=None):
        return f"Write something about {task.id}."

    async def step(self, message):
        return agentrl.StepResult(messages=[agentrl.Message(role="user", content="More.")])

    @agentrl.reward
    def letters(self, session) -> float:
        return sum(map(ord, session.answer)) % 11 / 10
"""
"""An environment that rewards whatever is written, so that an untrained model learns in every step."""
SETTINGS: dict[str, Any] = {
    **{"rollout.groups_per_step": 2, "rollout.group_size": 3, "rollout.turn_tokens": 48, "rollout.staleness": 2},
    **{"rollout.order": "ready", "weights.mode": "abort", "algo.lr": 1e-3, "eval.tasks": 1, "steps": 4},
    "engine.kernel": "torch",  # the slower one: turns are under way when weights come
    **{"rollout.top_p": 0.97, "rollout.repetition_penalty": 1.1},  # so that supports are recorded, and tokens counted
}


def train(**settings: Any) -> tuple[TrainResult, str]:
    shown = StringIO()
    return agentrl.train(display=Display(Console(file=shown, width=500)), **settings), shown.getvalue()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_asynchronous_run_is_run_again_bit_for_bit_and_a_departure_is_named(tmp_path: Path) -> None:
    world = tmp_path / "world.py"
    world.write_text(WORLD)
    for attempt in range(6):  # on a busy machine all turns may end before the trainer's step does
        run = tmp_path / f"run-{attempt}"
        done, _ = train(env=f"{world}:Dense", **SETTINGS, run_dir=str(run))
        assert all(row["grad_norm"] > 0 for row in done.metrics), "no new version, so nothing was asynchronous"
        with Store(run / "sessions.db", read_only=True) as store:
            nodes = [node for session in store.sessions(phase=TRAIN) for node in session.nodes]
        if max(len(node.versions) for node in nodes) > 1:
            break
    else:
        pytest.fail("in no run was a turn cut and continued under the next version")
    assert all(support.NAME in node.attachments for node in nodes if node.sampled)
    _, shown = train(rerun=str(run))
    assert "step-000004" in shown
    trained = [
        [(e.step, e.outcome.group, e.outcome.hash) for e in ledger.read(path) if e.outcome.outcome == TRAINED]
        for path in (run, run.with_name(f"{run.name}-rerun"))
    ]
    assert trained[0] == trained[1]

    name = trained[0][0][1]
    with Store(run / "sessions.db", read_only=True) as store:
        session = next(store.sessions(group=name))
    node = next(node for node in session.nodes if node.sampled)
    first = node.versions[0].start
    change_token(run / "sessions.db", session.id, node.id, first)
    with pytest.raises(Diverged, match=rf"session {session.id}, turn {node.id}, token 0"):
        train(rerun=str(run), run_dir=str(tmp_path / "departed"), rerun_answers="recorded")


def change_token(file: Path, session: str, node: int, place: int) -> None:
    """Another token than the one that was generated, with a checksum that fits."""
    with Store(file) as store:
        changed = store.load(session)
        changed.nodes[node].token_ids[place] += 1
        store.save(changed, replace=True)


def test_a_session_that_differs_is_named_with_the_turn_and_the_token() -> None:
    one, other = (linear_session("a", [8, 9], [[30, 31]], reward=1.0) for _ in range(2))
    compare(one, other)
    place = next(node.id for node in other.nodes if any(node.trainable))
    other.nodes[place].token_ids[-1] += 1
    at = len(other.nodes[place].token_ids) - 1
    with pytest.raises(Diverged, match=rf"session a, .* {place}, token {at}: the recording has 31, the rerun 32"):
        compare(one, other)


def test_an_environment_that_answers_otherwise_is_named_by_the_message_and_its_hash() -> None:
    session = linear_session("a", [1, 2, 3], [[10, 11], [20, 21, 22]])
    turn = [node for node in session.nodes if node.sampled][-1]
    path = tree.path(session, turn.parent)
    prompt = tree.path_ids(session, turn.parent)
    same_prompt(session, turn, prompt)
    same_prompt(session, turn, [*prompt, *turn.token_ids[:2]])
    answer = path[-1]
    prompt[-1] += 1
    told = rf"session a, turn {turn.id}, its prompt's message {answer.id} \({answer.message.role}, hash"
    with pytest.raises(Diverged, match=rf"{told} {answer_hash(answer)}\), token {len(answer.token_ids) - 1}: "):
        same_prompt(session, turn, prompt)


def test_a_longer_answer_than_the_recorded_one_is_a_departure() -> None:
    with pytest.raises(Diverged, match=r"here, token 12: the recording has none, the rerun 3"):
        same("here", [1, 2], [1, 2, 3], start=10)


@pytest.mark.slow
def test_a_run_that_can_not_be_run_again_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run there"):
        train(rerun=str(tmp_path / "none"))
