"""Terminal tasks in real containers: solved by commands, judged by the state that they leave."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from agentrl.envs import calls
from agentrl.envs.builtin.code.runners import SPEC
from agentrl.envs.builtin.terminal import tasks as terminal_tasks
from agentrl.envs.builtin.terminal.tasks import LEVELS
from agentrl.envs.check import check_env
from agentrl.envs.episode import noop_policy, play
from agentrl.envs.registry import make
from agentrl.envs.sandboxes import close_all
from agentrl.errors import ConfigError, StateUnsupported
from agentrl.tools.sandbox.docker.daemon import available
from agentrl.tools.sandbox.docker.images import image_id
from agentrl.tools.sandbox.runner.loop import blocking
from agentrl.types import Session, Status, Task
from tests.conftest import need

EVERY = [(level, kind) for level, kinds in LEVELS.items() for kind in kinds]
NAMED = {kind.__name__.strip("_"): kind for _, kind in EVERY}
BY_KIND = pytest.mark.parametrize(("level", "kind"), EVERY, ids=list(NAMED))


@pytest.fixture(scope="module")
def docker() -> Iterator[None]:
    need(available(), "a Docker daemon (sandboxes/ci-docker.sh starts one)")
    need(blocking(image_id(SPEC.image)), f"the image {SPEC.image} (sandboxes/make-base.sh makes it)")
    yield
    blocking(close_all(), 120)


def one(level: int, kind: Any) -> Task:
    """A task of one kind."""
    env: Any = make("terminal", level=level)
    wanted = kind(terminal_tasks.random.Random(0)).commands[0][:8]
    return next(task for task in env.tasks() if task["commands"][0][:8] == wanted)


def terminal(ending: float) -> Any:
    """One in which a program has so many seconds to end: many where it should, and few where it should not."""
    env: Any = make("terminal")
    env.ending = ending
    return env


async def said(env: Any, command: str) -> str:
    return (await calls.step(env, env.call("bash", command=command))).messages[0].text


async def reward_of(env: Any, task: Task) -> float:
    return float(await env.solved(Session(id="s", task=task)))


@BY_KIND
@pytest.mark.slow
async def test_the_expert_solves_every_kind_and_an_agent_that_says_nothing_none(docker: None, level: int, kind: Any):
    task = one(level, kind)
    session = await play(terminal(60.0), task)
    assert (session.reward, session.status, session.rewards["share"]) == (1, Status.COMPLETED, 1)
    assert (await play(terminal(0.1), task, noop_policy)).reward == 0


@pytest.mark.slow
@BY_KIND
async def test_a_task_that_was_only_looked_at_or_half_done_is_not_solved(docker: None, level: int, kind: Any):
    task, env = one(level, kind), terminal(0.1)
    await calls.reset(env, task)
    await said(env, "ls -l; echo Done, all checks passed")
    assert await reward_of(env, task) == 0
    await calls.close(env)


@pytest.mark.slow
async def test_lies_links_and_hidden_answers_earn_nothing(docker: None):
    """A link to a right file and one that can't be read are not what was asked; no python3 of the agent's is run."""
    task = one(1, NAMED["permissions"])
    key = next(path for path in task["files"] if path.endswith(".key"))
    for trick in (
        f"mv {key} real && ln -s real {key}",
        f"rm {key} && mkfifo {key}",
        f"rm {key} && mkdir {key}",
        f"chmod 000 {key}",
        f"head -c 100000 /dev/zero >> {key}",
        "chmod 000 .",
    ):
        env: Any = make("terminal")
        await calls.reset(env, task)
        await said(env, task["commands"][0])
        await said(env, trick)
        assert await reward_of(env, task) == 0, trick
        await calls.close(env)
    env = make("terminal")
    await calls.reset(env, task)
    for fake in ("python3", "json.py", "sitecustomize.py"):
        await said(env, f"printf '#!/bin/sh\\necho {{}}\\n' > {fake}; chmod +x {fake}")
    await said(env, f"export PATH=$PWD:$PATH; {task['commands'][0]}")
    assert await reward_of(env, task) == 1  # what was asked for is so, and nothing of the agent's is loaded
    await calls.close(env)


@pytest.mark.slow
async def test_the_wrong_process_ended_or_all_of_them_is_not_what_was_asked(docker: None):
    task = one(3, NAMED["process"])
    stop = next(check["program"] for check in task["checks"] if not check["running"])
    other = next(name for name in task["programs"] if name != stop)
    for command, reward in ((stop, 1), (other, 0), ("py", 0)):
        env = terminal(60.0 if reward else 0.1)  # a busy machine ends a program late
        await calls.reset(env, task)
        await said(env, f"pkill -f '[{command[0]}]{command[1:]}'")
        assert await reward_of(env, task) == reward, command
        with pytest.raises(StateUnsupported, match="programs run"):
            await calls.state(env)
        await calls.close(env)


@pytest.mark.slow
async def test_an_episode_goes_on_from_its_files_and_two_at_once_share_nothing(docker: None):
    tasks = [one(2, kind) for kind in LEVELS[2]]
    together = await asyncio.gather(*(play(make("terminal"), task) for task in tasks))
    assert [session.reward for session in together] == [1, 1, 1]
    env: Any = make("terminal")
    await calls.reset(env, tasks[0])
    await said(env, "mkdir deep; cd deep; echo kept > file; NAME=value")
    other: Any = await calls.fork(env)
    await said(env, "rm file")
    assert await said(other, "cat file; echo $NAME") == "kept\nvalue"
    await said(other, f"cd .. && {tasks[0]['commands'][0]}")
    assert (await reward_of(other, tasks[0]), await reward_of(env, tasks[0])) == (1, 0)
    await calls.close(env)
    await calls.close(other)


@pytest.mark.slow
def test_no_task_is_in_two_splits_and_the_answers_are_not_in_what_the_agent_is_told():
    env: Any = make("terminal")
    told = {split: {f"{t['words']}{t['files']}" for t in islice(env.tasks(split), 200)} for split in ("train", "eval")}
    assert not told["train"] & told["eval"]
    task = next(iter(env.tasks()))
    assert set(env.brief(task).data) == {"words"}


@pytest.mark.slow
@pytest.mark.usefixtures("without_docker")
async def test_without_docker_the_refusal_says_what_to_do():
    env: Any = make("terminal", level=1)
    with pytest.raises(ConfigError, match=r"needs a Docker daemon.*subprocess"):
        await calls.reset(env, next(iter(env.tasks())))


@pytest.mark.slow
def test_an_unknown_level_is_refused():
    with pytest.raises(ConfigError, match=r"env\.level = 4: allowed are 1, 2, 3"):
        make("terminal", level=4)


@pytest.mark.slow
def test_it_keeps_the_contract(docker: None):
    """Without programs that have to end, for which each verdict waits three seconds; every kind is played above."""
    assert check_env("terminal", level=1, tasks=1, scored=2) == []
