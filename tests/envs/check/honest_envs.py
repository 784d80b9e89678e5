"""Environments that do unusual things and keep the contract all the same: `check_env` finds nothing in them."""

from __future__ import annotations

import asyncio
import collections
import itertools
import os
import random
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import agentrl
from agentrl.envs.base import Env
from agentrl.envs.check.rules.costs import FIRST, REPEATED
from agentrl.envs.check.rules.runtime import HOLD
from agentrl.errors import ToolError
from agentrl.types import Message, Session, StepResult, Task
from tests.envs.check.broken_envs import Till

POOL = ThreadPoolExecutor(8)
HONEST: list[type[Env]] = []


def honest(cls: type[Env]) -> type[Env]:
    """Keep it for the test."""
    HONEST.append(cls)
    return cls


@honest
class SlowToBegin(Till):
    """Waits for a server before each episode, as it should: awaiting. The server has one session."""

    sessions: ClassVar[set[int]] = set()

    async def reset(self, task: Task, *, seed: int | None = None) -> Any:
        await asyncio.sleep(1.2 * HOLD)
        while self.sessions - {id(self)}:  # noqa: ASYNC110 - there is one event loop after another
            await asyncio.sleep(0.01)
        self.sessions.add(id(self))
        return super().reset(task)

    async def close(self) -> None:
        self.sessions.discard(id(self))

    @agentrl.tool
    def price(self, item: str) -> int:
        """Look up the price that was asked for, slowly, in the thread that a tool has."""
        if item == self.item:
            time.sleep(1.2 * HOLD)
        return self.prices.get(item, 0)


@honest
class Pooled(Till):
    """Uses threads that the module keeps for all."""

    async def reset(self, task: Task, *, seed: int | None = None) -> Any:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(POOL, time.sleep, 0.001) for _ in range(4)))
        await asyncio.to_thread(time.sleep, 0.001)
        return super().reset(task)


@honest
class Paying(Till):
    """Every turn costs, so even the expert gets less than everything."""

    return_range = (-1.0, 1.0)
    right = None  # type: ignore[assignment]
    max_turns = 10

    async def step(self, message: Message) -> StepResult:
        result = await self.run_tools(message)
        solved = not message.tool_calls and message.text == str(self.prices[self.item])
        result.reward = (1.0 if solved else 0.0) - 0.1
        return result


@honest
class PayingAtTheEnd(Till):
    """The final reward shrinks with the turns."""

    @agentrl.reward
    def right(self, session: Session) -> float:
        solved = session.answer == str(self.prices[self.item])
        return max(0.0, float(solved) - 0.05 * session.turns)


@honest
class Bounded(Till):
    """Gives one point for each of a task's parts, and tasks have different numbers of them."""

    return_range = (0.0, 3.0)
    right = None  # type: ignore[assignment]

    def tasks(self, split: str = "train") -> Iterator[dict[str, Any]]:
        for number in itertools.count(split == "eval", 2):
            yield {"parts": random.Random(number).sample(range(10**6), 1 + number // 2 % 3)}

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.left = sorted(task["parts"])
        return f"Pick up the parts {', '.join(map(str, task['parts']))}, the smallest number first."

    price = None  # type: ignore[assignment]

    @agentrl.tool(quick=True)
    def pick(self, part: int) -> str:
        """Pick up a part."""
        if part != self.left.pop(0):
            self.end()
            return "That was not the next one."
        self.earn(1.0)
        if not self.left:
            self.end()
        return "ok"

    def expert(self, messages: Sequence[Message]) -> Any:
        return self.call("pick", part=self.left[0])


@honest
class OnDisk(Till):
    """Keeps a database and a folder for an episode, a process for a tool, and gives them back."""

    _held: tuple[sqlite3.Connection, tempfile.TemporaryDirectory[str], subprocess.Popen[bytes]] | None = None

    async def reset(self, task: Task, *, seed: int | None = None) -> Any:
        def begin() -> None:
            folder = tempfile.TemporaryDirectory()
            base = sqlite3.connect(Path(folder.name) / "shop.db", check_same_thread=False)
            self._held = base, folder, subprocess.Popen(["sleep", "1000"])

        await asyncio.to_thread(begin)
        return super().reset(task)

    async def close(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held[0].close()
            await asyncio.to_thread(held[1].cleanup)
            held[2].kill()
            await asyncio.to_thread(held[2].wait)


@honest
class Async(Till):
    """Has tools that await, one that times out now and then, and one that refuses."""

    @agentrl.tool
    async def price(self, item: str) -> int:
        """Look up a price."""
        await asyncio.sleep(0.001)
        if item not in self.prices:
            raise ToolError("there is none")
        return self.prices[item]

    @agentrl.tool(timeout=0.02)
    async def wait(self, long: bool) -> str:
        """Wait."""
        await asyncio.sleep(10 if long else 0)
        return "waited"


@honest
class Choosing(Till):
    """Its prompt lists the answer among others: in the text alone, and in another place each time."""

    def tasks(self, split: str = "train") -> Iterator[dict[str, Any]]:
        for number in itertools.count(split == "eval", 2):
            yield {"number": number}

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        rng = random.Random(f"choice/{task['number']}")
        self.options = rng.sample(sorted(self.prices), 3)
        return f"What costs most: {', '.join(self.options)}?"

    @agentrl.reward
    def right(self, session: Session) -> float:
        return float(session.answer == max(self.options, key=lambda item: self.prices[item]))

    def expert(self, messages: Sequence[Message]) -> Any:
        return max(self.options, key=lambda item: self.prices[item])


@honest
class Echo(Env):
    """What is to be copied is in the prompt, because the task puts it there."""

    def tasks(self, split: str = "train") -> Any:
        return [{"word": word} for word in (("sun", "moon", "sky") if split == "train" else ("sea", "wind"))]

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.word = task["word"]
        return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Say {self.word}."}]

    @agentrl.reward
    def same(self, session: Session) -> float:
        return float(session.answer == self.word)

    def expert(self, messages: Sequence[Message]) -> str:
        return self.word


@honest
class Inexpert(Till):
    """Has no expert, and few-shot messages before its question."""

    expert = Env.expert

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        shown = [{"role": "user", "content": "What does air cost?"}, {"role": "assistant", "content": "0"}]
        return [*shown, {"role": "user", "content": super().reset(task)}]


@honest
class Surviving(Env):
    """Goes on to its limit, with a point for each turn, and its seed makes the world."""

    max_turns = 12
    return_range = (0.0, 12.0)

    def tasks(self, split: str = "train") -> Iterator[dict[str, Any]]:
        yield from itertools.repeat({})

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.rng = random.Random(f"{task.id}/{seed}")
        self.wind = self.rng.random()
        return f"left or right? The wind: {self.wind:.2f}"

    async def step(self, message: Message) -> StepResult:
        right, self.wind = message.text == self.side(), self.rng.random()
        told = Message(role="user", content=f"The wind: {self.wind:.2f}")
        return StepResult([told], reward=float(right), terminated=not right)

    def side(self) -> str:
        return "left" if self.wind < 0.5 else "right"

    def expert(self, messages: Sequence[Message]) -> str:
        return self.side()


@lru_cache(maxsize=64)
def catalogue(item: str) -> Any:
    return open(os.devnull)


@honest
class Caching(Till):
    """Opens a file for each task once, keeps it, and sets what the whole program wants set, once."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        catalogue(task["item"])
        return super().reset(task)


@honest
class Talking(Till):
    """Has a thread for an episode that ends when it is told to, a little later."""

    _ending: threading.Event | None = None

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self._ending = threading.Event()
        threading.Thread(target=self._listen, args=(self._ending,)).start()
        return super().reset(task)

    @staticmethod
    def _listen(ending: threading.Event) -> None:
        ending.wait()
        time.sleep(0.02)

    def close(self) -> None:
        with suppress(AttributeError):
            self._ending.set()  # type: ignore[union-attr]


@honest
class Running(Till):
    """Runs a program in a tool, in another folder and with a variable of its own."""

    @agentrl.tool
    async def price(self, item: str) -> str:
        """Look up a price."""
        number = str(self.prices.get(item, 0))
        program = await asyncio.create_subprocess_exec(
            "printenv", "N", cwd="/", env={"N": number}, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await program.communicate()
        return out.decode().strip()


@honest
class Delegating(Till):
    """Has a price looked up by a sub-agent, and can be saved."""

    @agentrl.tool
    async def ask(self, item: str) -> str:
        """Have a price looked up."""
        return await self.spawn(f"Look up {item}", tools=["price"], max_turns=2)

    def state(self) -> Any:
        return None

    def restore(self, task: Task, state: Any) -> None:
        self.reset(task)

    def expert(self, messages: Sequence[Message]) -> Any:
        words, last = messages[0].text, messages[-1]
        if last.role == "tool":
            return last.text
        return self.call("price" if words.startswith("Look up") else "ask", item=self.item)


@honest
class Remembering(Till):
    """Remembers what the last episodes began with, as many as the check plays before it looks again."""

    recent: ClassVar[collections.deque[str]] = collections.deque(maxlen=FIRST + REPEATED)

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.recent.append(f"{task.id} {seed} has begun" * 100)
        return super().reset(task)
