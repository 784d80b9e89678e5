"""Environments that hang or end the process that they run in."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from typing import Any

import agentrl
from agentrl.envs.base import Env
from agentrl.types import Message, Task
from tests.envs.check.broken_envs import Till

HANGING: list[tuple[type[Env], str]] = []


def hanging(words: str) -> Any:
    """This class hangs (or ends the process), and the finding's message contains these words."""

    def keep(cls: type[Env]) -> type[Env]:
        HANGING.append((cls, words))
        return cls

    return keep


@hanging(r"hang: EndlessTasks\.tasks .*hanging_envs\.py:\d+ in tasks")
class EndlessTasks(Till):
    """Loops for ever in `tasks`."""

    def tasks(self, split: str = "train") -> Any:
        while True:
            pass
        yield {}


@hanging(r"hang: making EndlessInit .*hanging_envs\.py:\d+ in __init__")
class EndlessInit(Till):
    """Hangs in its constructor."""

    def __init__(self) -> None:
        threading.Event().wait()


@hanging(r"hang: SleepingReset\.reset \(task 'train-0', played by the expert\) .*hanging_envs\.py:\d+ in reset")
class SleepingReset(Till):
    """Sleeps on the event loop."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        time.sleep(1000)


@hanging(r"hang: AwaitingReset\.reset .*hanging_envs\.py:\d+ in server")
class AwaitingReset(Till):
    """Awaits what never comes."""

    async def reset(self, task: Task, *, seed: int | None = None) -> Any:
        await self.server()

    async def server(self) -> None:
        await asyncio.gather(asyncio.sleep(1000))


@hanging(r"hang: SleepingTool\.step \(tool 'price'\) .*hanging_envs\.py:\d+ in price")
class SleepingTool(Till):
    """Sleeps in a tool's thread."""

    @agentrl.tool
    def price(self, item: str) -> int:
        """Look up a price."""
        time.sleep(1000)
        return 0


@hanging(r"hang: MatchingTool\.step \(tool 'price'\) .*hanging_envs\.py:\d+ in price")
class MatchingTool(Till):
    """Never releases the interpreter's lock."""

    @agentrl.tool
    def price(self, item: str) -> int:
        """Look up a price."""
        return len(re.findall("(a+)+$", "a" * 60 + "b"))


@hanging(r"hang: EndlessReward\.right .*hanging_envs\.py:\d+ in right")
class EndlessReward(Till):
    """Loops for ever in a reward."""

    @agentrl.reward
    async def right(self, session: Any) -> float:
        await asyncio.Event().wait()
        return 1.0


@hanging(r"exit: Exiting\.reset \(task 'train-0', played by the expert\) ended the whole process \(exit status 0\)")
class Exiting(Till):
    """Ends the process with exit status 0."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        os._exit(0)


@hanging(r"exit: Crashing\.step .* ended the whole process at .*hanging_envs\.py:\d+ in step \(signal SIGABRT\)")
class Crashing(Till):
    """Calls a library that aborts."""

    def step(self, message: Message) -> Any:
        os.abort()


@hanging(r"exit: Interrupting\.step \(tool 'price'\) .* raised KeyboardInterrupt, which ends the event loop")
class Interrupting(Till):
    """Raises KeyboardInterrupt."""

    @agentrl.tool
    async def price(self, item: str) -> int:
        """Look up a price."""
        raise KeyboardInterrupt
