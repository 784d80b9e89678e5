"""The trainer's log-probabilities beside a run: what is written is read, and a resumed run begins before it."""

from __future__ import annotations

import random
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentrl.sessions.tree import tree
from agentrl.train.record import trainer_logprobs
from agentrl.train.record.trainer_logprobs import TurnLogprobs
from agentrl.types import Message, Session, Task
from agentrl.viewer.origins import find_credited


def test_the_newest_step_that_trained_a_turn_is_read_and_later_steps_are_dropped_on_resuming(tmp_path: Path) -> None:
    assert trainer_logprobs.last_of(tmp_path, "a", 1) is None
    trainer_logprobs.drop_after(tmp_path, 0)
    assert not list(tmp_path.iterdir())
    trainer_logprobs.write(tmp_path, 1, 0, {("a", 1): [0.0, -0.5, -(2.0**-20)], ("b", 1): [-1.0]})
    trainer_logprobs.write(tmp_path, 2, 1, {("a", 1): [0.0, -0.25, -1e-3]})
    trainer_logprobs.write(tmp_path, 2, 1, {("a", 1): [0.0, -0.125, 0.0]})  # the step was trained again
    assert trainer_logprobs.last_of(tmp_path, "a", 1) == TurnLogprobs(2, 1, [0.0, -0.125, 0.0])
    trainer_logprobs.drop_after(tmp_path, 1)
    assert trainer_logprobs.last_of(tmp_path, "a", 1) == TurnLogprobs(1, 0, [0.0, -0.5, -(2.0**-20)])
    assert trainer_logprobs.last_of(tmp_path, "b", 1) == TurnLogprobs(1, 0, [-1.0])
    assert trainer_logprobs.last_of(tmp_path, "b", 2) is None


@pytest.mark.slow
@pytest.mark.parametrize("rewarded", [False, True])
def test_a_turn_is_found_under_the_names_by_which_credit_counts_it(rewarded: bool) -> None:
    agents = random.Random(3).choices("xyz", k=40)
    session = Session("s", Task(id="t"))
    for number, agent in enumerate(agents):
        tree.add(session, None, Message(role="user", content=""), [number], agent=agent)
    session.agent_rewards = dict.fromkeys("xyz", 1.0) if rewarded else {}
    views = {view.id: view for view in session.by_agent()}
    for node in session.nodes:
        name, number = find_credited(session, node)
        assert views[name].nodes[number].token_ids == node.token_ids


def test_a_steps_digest_reads_no_more_where_more_steps_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step's digest read the whole file, which has gigabytes in the end; so did each step that is verified."""
    steps, digests = [0], set[str]()

    def count_step() -> None:
        steps[-1] += 1

    class Counted(sqlite3.Connection):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self.set_progress_handler(count_step, 1)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Counted))
    for last in (3, 60):
        for step in range(1, last + 1):
            trainer_logprobs.write(tmp_path, step, step - 1, {(f"s{step}", node): [-0.5] for node in range(5)})
        steps.append(0)
        digests.add(trainer_logprobs.digest(tmp_path, 2))
    assert len(digests) == 1
    assert 0 < steps[-1] < 200, steps
