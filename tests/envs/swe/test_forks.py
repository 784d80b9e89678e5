"""Sessions that are forked in sandboxes of Docker: a continuation has the files of its fork point, and no other's."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.config import RolloutConfig
from agentrl.envs import sandboxes
from agentrl.envs.builtin.swe.env import Swe
from agentrl.rollout.episodes.groups import TRAIN, Rollouts, new_group
from agentrl.rollout.episodes.policies import ModelActor, Policy
from agentrl.tools.sandbox.docker.daemon import daemon
from agentrl.tools.sandbox.docker.owner import owner
from agentrl.types import Group, Message, Sampling, Status, StepResult
from tests.envs.swe.conftest import TASK
from tests.sessions.fakes import DiceEngine, LetterRenderer


class Notes(Swe):
    """Each message is added to a file, whose lines are the answer; a process stays behind each."""

    async def step(self, message: Message) -> StepResult:
        said = f"x{message.text.encode().hex()}"
        command = f"echo {said} >> notes; (sleep 300; echo late >> notes) > /dev/null 2>&1 & cat notes"
        return await super().step(self.call("bash", command=command))


def left() -> list[str]:
    """The containers of this process."""
    [(label, value)] = [item for item in owner().labels("").items() if item[1] == owner().id]
    return [one["Id"] for one in daemon().api.containers(all=True, filters={"label": f"{label}={value}"})]


async def forked() -> tuple[Group, set[str]]:
    before = await asyncio.to_thread(left)  # other tests'
    settings = RolloutConfig.model_validate(
        {"turn_tokens": 64, "max_turns": 3, "branch": {"name": "every", "continuations": 2}, "save_states": "never"}
    )
    engine = DiceEngine(end_weight=40.0)
    rollouts = Rollouts(lambda: Notes(tools="bash"), Policy(LetterRenderer(), engine), settings, 5)
    group = new_group(TRAIN, 0, TASK.as_task())
    await rollouts.generate(group, ModelActor(Sampling(max_new_tokens=64)), 1, phase=TRAIN)
    await sandboxes.close_all()
    return group, set(await asyncio.to_thread(left)) - set(before)


@pytest.mark.usefixtures("docker")
@pytest.mark.slow
def test_a_continuation_has_the_files_of_its_fork_point_and_siblings_do_not_see_each_others() -> None:
    group, containers = asyncio.run(forked())
    (session,) = group.sessions
    assert session.status is not Status.INFRA_ERROR, session.error
    assert len(session.branches) == 5, "the session's own path, and two continuations of each of two turns"
    for path in session.paths():
        said = [f"x{node.message.text.encode().hex()}" for node in path if node.sampled]
        answers = [node.message.text for node in path if node.message.role in ("tool", "user")][1:]
        assert answers, "nothing was run"
        for count, answer in enumerate(answers, start=1):
            noted = [line for line in answer.splitlines() if line in said or line == "late"]
            assert noted == said[:count]
    assert not containers
