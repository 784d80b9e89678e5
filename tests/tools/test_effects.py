"""What a call does counts until the call is over, wherever it goes on; nothing that is used again has work under way.

The incident: a plain tool ran past its deadline; its `earn` credited the next turn, and its `end` ended a later one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import agentrl
from agentrl import faults
from agentrl.envs import calls
from agentrl.envs.episode import play
from agentrl.errors import StateUnsupported, ToolError
from agentrl.tools.sandbox.base import SandboxDied
from agentrl.tools.sandbox.local import create_subprocess
from agentrl.tools.sandbox.pool import SandboxPool
from agentrl.tools.sandbox.spec import SandboxSpec
from agentrl.types import Message, Session, Status, Task

TASK = Task(id="t")
PATIENCE = 60.0


class Late(agentrl.Env):
    """The agent calls a tool that is cut off, then one that lets the first go on and waits until it has."""

    return_range = (0.0, 10.0)

    def __init__(self, effect: str = "earn", kind: str = "plain") -> None:
        self.effect, self.kind = effect, kind
        self.begun, self.may_go_on, self.gone_on = threading.Event(), threading.Event(), threading.Event()
        self.tools.timeout = PATIENCE

    def tasks(self, split: str = "train") -> list[Task]:
        return [TASK]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        return "Begin."

    def go_on(self) -> None:
        self.begun.set()
        self.may_go_on.wait(PATIENCE)
        self.earn(1.0) if self.effect == "earn" else self.end()
        self.gone_on.set()

    @agentrl.tool(timeout=0.05)
    def plain(self) -> str:
        """Goes on in its thread."""
        self.go_on()
        return "done"

    @agentrl.tool(timeout=0.05)
    async def stubborn(self) -> str:
        """Goes on as a coroutine that ignores its cancellation."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.to_thread(self.may_go_on.wait, PATIENCE)
        self.go_on()
        return "done"

    @agentrl.tool(timeout=0.05)
    async def executor(self) -> str:
        """Goes on in a thread that has no context of its call."""
        going_on = asyncio.get_running_loop().run_in_executor(None, self.go_on)
        self.begun.wait(PATIENCE)  # what is cancelled before it has begun never does
        await going_on
        return "done"

    @agentrl.tool
    async def left(self) -> str:
        """Ends in time, and leaves a thread behind that goes on."""
        self.task = asyncio.create_task(asyncio.to_thread(self.go_on))
        return "begun"

    @agentrl.tool
    async def wait(self) -> str:
        """Ends when the late one has."""
        self.may_go_on.set()
        await asyncio.to_thread(self.gone_on.wait, PATIENCE)
        self.earn(2.0)
        return "waited"

    def expert(self, messages: Sequence[Message]) -> Any:
        turn = sum(message.role == "assistant" for message in messages)
        return [self.call(self.kind), self.call("wait"), "bye"][turn]


def earned(session: Session) -> list[float | None]:
    return [node.reward for node in session.nodes if node.message.role == "assistant"]


@pytest.mark.parametrize("kind", ["plain", "stubborn", "executor", "left"])
@pytest.mark.parametrize("effect", ["earn", "end"])
@pytest.mark.slow
async def test_what_a_call_does_after_it_is_over_is_dropped_and_counted(kind: str, effect: str) -> None:
    session = await play(Late(effect, kind), TASK)
    if kind == "left" or kind == "executor":
        assert session.counters.get("late_calls", 0) == 0
    if kind == "plain":
        assert session.counters["late_calls"] == 1
    assert earned(session) == [None, 2.0, None]
    assert session.status is Status.COMPLETED
    assert session.answer == "bye"
    assert session.counters["late_effects"] == 1


class Prompt(Late):
    """Tools whose effects come in time, wherever they come from."""

    @agentrl.tool
    def plain(self) -> str:
        """In its thread, and in another that it joins."""
        self.earn(1.0)
        thread = threading.Thread(target=lambda: self.earn(0.5))
        thread.start()
        thread.join()
        return "done"

    @agentrl.tool
    async def stubborn(self) -> str:
        """In tasks and threads."""
        await asyncio.gather(asyncio.to_thread(self.earn, 1.0), asyncio.create_task(self.later()))
        return "done"

    async def later(self) -> None:
        await asyncio.sleep(0)
        self.earn(0.5)

    @agentrl.tool
    async def wait(self) -> str:
        """Ends it."""
        self.end()
        return "over"


@pytest.mark.parametrize("kind", ["plain", "stubborn"])
async def test_what_comes_in_time_counts_from_threads_and_tasks_too(kind: str) -> None:
    session = await play(Prompt("earn", kind), TASK)
    assert earned(session) == [1.5, None]
    assert session.status is Status.COMPLETED
    assert not {"late_calls", "late_effects"} & session.counters.keys()


class Spawning(Late):
    """The call that was cut off begins a sub-agent."""

    refused = ""

    @agentrl.tool(timeout=0.05)
    async def stubborn(self) -> str:
        """Goes on as a coroutine that ignores its cancellation."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.to_thread(self.may_go_on.wait, PATIENCE)
        try:
            await self.spawn("Help.")
        except ToolError as error:
            self.refused = str(error)
        self.gone_on.set()
        return "done"


async def test_a_call_that_is_over_begins_no_sub_agent() -> None:
    env = Spawning(kind="stubborn")
    session = await play(env, TASK)
    assert env.refused == "Spawning.spawn: the call that asks for it is over"
    assert session.counters["late_effects"] == 1
    assert {node.agent for node in session.nodes} == {"agent"}


class Saved(Late):
    """With a state."""

    def state(self) -> int:
        return 1

    def restore(self, task: Task, state: Any) -> None:
        pass


async def test_an_episode_is_not_saved_or_forked_while_a_call_that_was_cut_off_runs() -> None:
    env = Saved()
    await calls.reset(env, TASK)
    await calls.state(env)
    await calls.step(env, env.call("plain"))
    for refused in (calls.state, calls.fork):
        with pytest.raises(StateUnsupported, match="Saved: a tool that was cut off still runs in its thread"):
            await refused(env)
    await calls.step(env, env.call("wait"))
    while env.tools.effects.under_way:  # noqa: ASYNC110 - the thread ends a moment after its last effect
        await asyncio.sleep(0.001)
    await calls.state(env)


async def test_a_planned_late_tool_is_told_to_the_model_at_once_and_goes_on(tmp_path: Any) -> None:
    (tmp_path / "plan.yaml").write_text("faults: [{action: late_tool, point: tool.call, nth: 1}]")

    class Patient(Late):
        @agentrl.tool
        def plain(self) -> str:
            """Has all the time that it needs, but for the plan."""
            self.go_on()
            return "done"

    with faults.inject_faults(tmp_path / "plan.yaml", tmp_path):
        session = await play(Patient(), TASK)
    assert "Error: 'plain' took longer than 0 s" in [message.text for message in session.messages]
    assert earned(session) == [None, 2.0, None]
    assert (session.counters["late_calls"], session.counters["late_effects"]) == (1, 1)
    assert [row["action"] for row in faults.list_fired(tmp_path)] == ["late_tool"]


@pytest.mark.slow
async def test_a_sandbox_that_was_given_back_obeys_no_late_call() -> None:
    """It was emptied and given to the next episode, whose files a call of the episode before could read and change."""
    pool, spec = SandboxPool(create_subprocess, total=1, recycle=True), SandboxSpec()
    try:
        first = await pool.acquire(spec)
        await first.write("mine", "1")
        await pool.release(first)
        second = await pool.acquire(spec)
        assert second.id == first.id
        await second.write("theirs", "2")
        for late in (first.exec("rm theirs"), first.read("theirs"), first.write("theirs", "x"), first.start("sleep 1")):
            with pytest.raises(SandboxDied, match="was given back"):
                await late
        for late in (first.reset(), first.restore(await second.snapshot())):
            with pytest.raises(SandboxDied, match="was given back"):
                await late
        await first.close()
        await pool.release(first)
        assert not await first.healthy()
        assert await second.read("theirs") == b"2"
        assert pool.counts["reused"] == 1
    finally:
        await pool.close()
