"""Small roles that the tests start."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Any

from agentrl.cluster import Address, connect
from agentrl.envs import sandboxes
from agentrl.errors import ConfigError
from agentrl.tools.sandbox import SandboxSpec
from agentrl.train.backends import TrainerAccess
from agentrl.types import Session, Status


class Counter:
    """Counts, waits, fails, starts processes."""

    def __init__(self, start: int = 0) -> None:
        if start < 0:
            raise ConfigError("start must not be negative")
        self.count = start
        self.cancelled = 0
        self.child: subprocess.Popen[bytes] | None = None

    def add(self, number: int) -> int:
        self.count += number
        return self.count

    def up_to(self, end: int) -> Iterator[int]:
        yield from range(end)

    async def slowly(self, end: int) -> AsyncIterator[int]:
        for number in range(end):
            yield number
            await asyncio.sleep(0.001)

    async def forever(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1

    def fail(self) -> None:
        raise KeyError("broken inside")

    def refuse(self) -> None:
        raise ConfigError("the user must change that")

    def unpicklable(self) -> object:
        return lambda: None

    def start_child(self) -> int:
        self.child = subprocess.Popen(["sleep", "600"])
        return self.child.pid

    def thresholds(self) -> tuple[int, int, int]:
        return gc.get_threshold()

    def process(self) -> int:
        return os.getpid()

    def gpus(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]

    async def add_at(self, address: Address, number: int) -> int:
        """Call another worker directly."""
        other = connect(address)
        try:
            return int(await other.call("add", number, timeout=30))
        finally:
            other.close()


class Playing:
    """Plays sessions that last two seconds."""

    async def play(self, session: Session) -> Session:
        await asyncio.sleep(2.0)
        session.status, session.info["process"] = Status.COMPLETED, os.getpid()
        return session


class Sandboxed:
    """Opens sandboxes."""

    async def open(self) -> str:
        sandbox, _ = await sandboxes.supplier("docker").acquire(SandboxSpec())
        return sandbox.id


class Computer:
    """Computes with a trainer that another process has started."""

    def __init__(self, access: TrainerAccess) -> None:
        self.trainer = access.open()

    def compute(self, method: str, *arguments: Any, **options: Any) -> Any:
        return getattr(self.trainer, method)(*arguments, **options), self.trainer.version

    def close(self) -> None:
        self.trainer.close()
