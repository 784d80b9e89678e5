"""A plain method of an environment that blocks holds up its own call, and neither the event loop nor other sessions.

The incident: a plain `reset` that waited for a server which had gone stopped a whole run, for ever.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from agentrl.config import RolloutConfig
from agentrl.envs import calls, methods
from agentrl.envs.base import Env, reward
from agentrl.envs.context import context_of
from agentrl.envs.episode import EXPERT
from agentrl.envs.results import give_rewards
from agentrl.errors import EnvError, StateUnsupported
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.types import Message, Session, Status, StepResult, Task

LONG = RolloutConfig(tool_timeout=0.01, turn_timeout=60, timeout=90, retries=1)
CUT = {
    "reset": LONG.model_copy(update={"turn_timeout": 0.02, "timeout": 0.03}),
    "step": LONG.model_copy(update={"turn_timeout": 0.02}),
}


UNHURRIED = pytest.mark.parametrize("patience", [60.0])
"""On a busy machine methods that end may take as long as others that block."""


@pytest.fixture
def patience() -> float:
    """Seconds after which a method that blocks is left alone."""
    return 0.01


@pytest.fixture(autouse=True)
def released(patience: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Lets what blocks go on; nobody waits longer for it than `patience` says."""
    monkeypatch.setattr(methods, "PATIENCE", patience)
    event = threading.Event()
    yield event
    event.set()


class Blocking(Env):
    """Blocks in a method, in the tasks that are called "b"."""

    def __init__(self, released: threading.Event, at: str) -> None:
        self.released, self.at = released, at
        self.task = Task(id="")
        self.late: threading.Event = threading.Event()

    def wait(self, at: str) -> None:
        if (at, self.task.id) == (self.at, "b"):
            self.released.wait()

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self.task = task
        self.wait("reset")
        return "Begin."

    def step(self, message: Message) -> StepResult:
        self.wait("step")
        self.earn(1.0)
        self.late.set()
        return StepResult(terminated=True)

    @reward
    def done(self, session: Session) -> float:
        self.wait("done")
        session.info["noted"] = self.task.id
        return 1.0

    def expert(self, messages: Sequence[Message]) -> str:
        return "done"


class Awaiting(Blocking):
    """The same, waiting in coroutines."""

    async def hang(self, at: str) -> None:
        if (at, self.task.id) == (self.at, "b"):
            await asyncio.Event().wait()

    async def reset(self, task: Task, *, seed: int | None = None) -> str:  # type: ignore[override]
        self.task = task
        await self.hang("reset")
        return "Begin."

    async def step(self, message: Message) -> StepResult:  # type: ignore[override]
        await self.hang("step")
        return StepResult(terminated=True)

    @reward
    async def done(self, session: Session) -> float:  # type: ignore[override]
        await self.hang("done")
        session.info["noted"] = self.task.id
        return 1.0


@pytest.mark.parametrize("at", ["reset", "step"])
@pytest.mark.parametrize("kind", [Blocking, Awaiting])
async def test_what_never_ends_is_the_infrastructures_and_other_sessions_go_on(
    kind: type[Blocking], at: str, released: threading.Event
) -> None:
    async def played(name: str, limits: RolloutConfig) -> Session:
        rollouts = Rollouts(lambda: kind(released, at), Policy(NullRenderer()), limits, seed=5)
        (group,) = await rollouts.collect([Task(id=name)], EXPERT, phase="test", n=1)
        return group.sessions[0]

    ended, other = await asyncio.gather(played("b", CUT[at]), played("a", LONG))
    assert (ended.status, ended.reward, ended.attempt) == (Status.INFRA_ERROR, None, LONG.retries)
    assert f"{kind.__name__}.{at}" in (ended.error or "")
    assert (other.status, other.reward, other.info["noted"]) == (Status.COMPLETED, 1.0, "a")


@pytest.mark.parametrize("kind", [Blocking, Awaiting])
async def test_a_reward_that_never_ends_is_the_infrastructures_and_notes_nothing(
    kind: type[Blocking], released: threading.Event
) -> None:
    env, session = kind(released, "done"), Session("s", Task(id="b"))
    env.task = session.task
    await give_rewards(env, session, seconds=0.02)
    assert (session.status, session.reward, session.info) == (Status.INFRA_ERROR, None, {})
    assert session.error == f"DeadlineExceeded: the rewards of {kind.__name__} took longer than rollout.timeout=0.02 s"


async def test_what_a_step_does_after_its_deadline_does_not_count(released: threading.Event) -> None:
    env = Blocking(released, "step")
    await calls.reset(env, Task(id="b"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(calls.step(env, Message(role="assistant", content="done")), 0.02)
    assert env.tools.effects.under_way
    with pytest.raises(StateUnsupported):
        await calls.fork(env)
    released.set()
    assert await asyncio.to_thread(env.late.wait, 60)
    assert (context_of(env).earned, env.tools.effects.late, env.tools.effects.outlived) == (None, 1, 1)


class Drawing(Env):
    """Draws from the generator that all episodes share, and lets other threads run in between."""

    drawn: Any = None

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        random.seed(seed)
        first = random.random()
        time.sleep(0)
        self.drawn = first, random.random()
        return "Begin."


@UNHURRIED
async def test_plain_methods_run_one_at_a_time_as_they_do_on_a_loop(patience: float) -> None:
    envs = [Drawing() for _ in range(20)]
    await asyncio.gather(*(calls.reset(env, Task(id="t"), seed=7) for env in envs))
    assert len({env.drawn for env in envs}) == 1


class Connected(Env):
    """Has a connection that only its own thread may use, and a reward with a limit by the main thread's alarm."""

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self.database = sqlite3.connect(":memory:")
        return "Begin."

    def step(self, message: Message) -> StepResult:
        self.database.execute("create table said (words text)")
        return StepResult(terminated=True)

    @reward
    def limited(self, session: Session) -> float:
        before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, before)
        session.info["tables"] = 1
        return 1.0

    def expert(self, messages: Sequence[Message]) -> str:
        return "done"


@UNHURRIED
async def test_connections_and_alarms_of_plain_methods_work(patience: float) -> None:
    async def played() -> Session:
        rollouts = Rollouts(Connected, Policy(NullRenderer()), RolloutConfig(), seed=5)
        (group,) = await rollouts.collect([Task(id="t")], EXPERT, phase="test", n=1)
        return group.sessions[0]

    for session in await asyncio.gather(*(played() for _ in range(20))):
        assert (session.status, session.reward, session.info) == (Status.COMPLETED, 1.0, {"tables": 1}), session.error


async def test_a_step_that_needs_the_main_thread_is_told_how_it_gets_there() -> None:
    class Alarming(Drawing):
        def step(self, message: Message) -> StepResult:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            return StepResult()

    env = Alarming()
    await calls.reset(env, Task(id="t"))
    with pytest.raises(EnvError, match=r"Alarming\.step uses signals, .* write it as async"):
        await calls.step(env, Message(role="assistant", content="done"))


class Panic(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize("error", [SystemExit(3), Panic("x"), asyncio.CancelledError("of its own"), GeneratorExit()])
async def test_whatever_ends_a_method_is_the_environments_mistake(error: BaseException) -> None:
    """A Rust library's panic ended the run with a traceback, and a cancellation of its own was taken for the run's."""

    class Leaving(Drawing):
        def reset(self, task: Task, *, seed: int | None = None) -> str:
            raise error

        async def step(self, message: Message) -> StepResult:
            raise error if not isinstance(error, GeneratorExit) else Panic("GeneratorExit")

        def close(self) -> None:
            raise error

    env, name = Leaving(), type(error).__name__
    with pytest.raises(EnvError, match=rf"Leaving\.reset raised .*{name}"):
        await calls.reset(env, Task(id="t"))
    with pytest.raises(EnvError, match=rf"Leaving\.step raised .*{name}"):
        await calls.step(env, Message(role="assistant", content="done"))
    with pytest.raises(EnvError, match=rf"Leaving\.close raised .*{name}"):
        await calls.close(env)


async def test_a_cancellation_from_outside_stays_one() -> None:
    class Waiting(Drawing):
        async def reset(self, task: Task, *, seed: int | None = None) -> str:
            await asyncio.sleep(60)
            return "?"

    waiting = asyncio.create_task(calls.reset(Waiting(), Task(id="t")))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_an_awaitable_of_a_plain_method_is_awaited_on_the_loop() -> None:
    class Handing(Drawing):
        def reset(self, task: Task, *, seed: int | None = None) -> Any:
            async def opening() -> str:
                await asyncio.sleep(0)
                return threading.current_thread().name

            return opening()

    (message,) = await calls.reset(Handing(), Task(id="t"))
    assert message.content == threading.current_thread().name


async def test_methods_of_a_class_that_is_quick_run_on_the_loop_and_those_of_its_heirs_do_not() -> None:
    class Quick(Drawing):
        quick = True

        def reset(self, task: Task, *, seed: int | None = None) -> str:
            return threading.current_thread().name

    class Heir(Quick):
        pass

    (at_once,), (apart,) = [await calls.reset(env(), Task(id="t")) for env in (Quick, Heir)]
    assert at_once.content == threading.current_thread().name != apart.content
