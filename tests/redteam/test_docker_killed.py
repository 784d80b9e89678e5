"""Docker, or a part of it, dies in the middle of sessions: they are generated again, and no place is lost."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from agentrl.config import RolloutConfig
from agentrl.envs.base import Env, reward
from agentrl.envs.episode import ScriptedActor
from agentrl.envs.sandboxes import SandboxLease, close_all, supplier
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.tools.sandbox import pool
from agentrl.tools.sandbox.spec import SandboxSpec
from agentrl.tools.tool import tool
from agentrl.types import Message, Session, Status, Task
from tests.conftest import need
from tests.redteam.daemons import DEATHS, OwnDaemon
from tests.tools.sandbox.conftest import TINY, docker  # noqa: F401

pytestmark = pytest.mark.slow
SESSIONS, TURNS = 6, 4
LIMITS = RolloutConfig(tool_timeout=120, turn_timeout=180, timeout=600, concurrency=SESSIONS, retries=5)


@pytest.fixture(scope="module")
def own(docker: None) -> Iterator[OwnDaemon]:  # noqa: F811
    need(os.geteuid() == 0 and shutil.which("dockerd") is not None, "root and dockerd: a daemon that may be killed")
    daemon = OwnDaemon(Path(tempfile.mkdtemp(prefix="agentrl-daemon-")))  # a socket's path must be short
    daemon.start()
    daemon.load(TINY.image)
    yield daemon
    daemon.end()


class Work(Env):
    """Commands in a sandbox; `under_way` counts sessions that are in the middle, of which none ends before `died`."""

    max_turns = TURNS + 1
    under_way = 0

    def __init__(self, spec: SandboxSpec, middle: asyncio.Event, died: asyncio.Event) -> None:
        self.lease, self.middle, self.died, self.done = SandboxLease("docker", spec), middle, died, 0

    def tasks(self, split: str = "train") -> Iterable[Task]:
        return [Task(id=f"work-{number}") for number in range(SESSIONS)]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self.done = 0
        return "work"

    @tool
    async def work(self) -> str:
        """Do a part of it."""
        sandbox = await self.lease.get()
        if self.done == TURNS - 2:
            Work.under_way += 1
            if Work.under_way == SESSIONS:
                self.middle.set()
        elif self.done == TURNS - 1:
            await self.died.wait()
        result = await sandbox.exec(["sh", "-c", "sleep 0.3; echo done"], timeout=60)
        assert result.stdout == b"done\n"
        self.done += 1
        return "done"

    @reward
    def all_done(self, session: Session) -> float:
        return float(self.done == TURNS)

    async def close(self) -> None:
        await self.lease.release()


def works(env: Env, messages: Sequence[Message]) -> Message:
    said = sum(message.role == "tool" for message in messages)
    return env.call("work") if said < TURNS else Message(role="assistant", content="done")


@pytest.mark.parametrize("what", DEATHS)
async def test_sessions_are_generated_again_and_no_place_is_lost_where_docker_dies(
    what: str, own: OwnDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a daemon that was killed, its containers stayed until another run began."""
    monkeypatch.setattr(pool, "BACKOFF", (0.1, 0.2, *[0.5] * 60))
    await close_all()
    spec, middle, died = TINY.model_copy(update={"daemon": own.address}), asyncio.Event(), asyncio.Event()
    Work.under_way = 0
    rollouts = Rollouts(lambda: Work(spec, middle, died), Policy(NullRenderer()), LIMITS, seed=5)
    tasks = list(Work(spec, middle, died).tasks())
    playing = asyncio.create_task(rollouts.collect(tasks, ScriptedActor(works), phase="e", n=1))  # type: ignore[arg-type]
    await middle.wait()
    await asyncio.to_thread(DEATHS[what], own)
    died.set()
    sessions = [session for group in await playing for session in group.sessions]
    assert [(session.status, session.score) for session in sessions] == [(Status.COMPLETED, 1.0)] * SESSIONS
    assert sum(session.attempt for session in sessions) > 0, "nothing died"
    places = supplier("docker")
    assert places.leased == set()
    await close_all()
    assert (places.pool.alive, places.pool.leased) == (0, 0)
    assert await asyncio.to_thread(own.containers) == []
