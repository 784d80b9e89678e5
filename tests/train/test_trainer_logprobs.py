"""The trainer's log-probabilities beside a run: what is written is read, and a resumed run begins before it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from agentrl.sessions.tree import tree
from agentrl.train.record import trainer_logprobs
from agentrl.train.record.trainer_logprobs import TurnLogprobs
from agentrl.types import Message, Session, Task
from agentrl.viewer.origins import credited


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
        name, number = credited(session, node)
        assert views[name].nodes[number].token_ids == node.token_ids
