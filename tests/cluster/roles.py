"""Small roles that the tests start."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import math
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from agentrl.cluster import Address, connect
from agentrl.envs import sandboxes
from agentrl.errors import ConfigError
from agentrl.tools.sandbox.spec import SandboxSpec
from agentrl.train.trainers import TrainerAccess
from agentrl.types import Session, Status


class NotAtOnce:
    """Takes a moment to build."""

    def __init__(self) -> None:
        time.sleep(1.5)


class Counter:
    """Counts, waits, fails, starts processes."""

    def __init__(self, start: int = 0) -> None:
        if start < 0:
            raise ConfigError("start must not be negative")
        self.count = start
        self.waiting = 0
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
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1

    def hold(self) -> int:
        """Work in one native call that lets no other thread of Python's run, for most of a second."""
        return math.factorial(200_000).bit_length()

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


class Inside:
    """Says what its process is like."""

    def process(self) -> int:
        return os.getpid()

    def leave(self, status: int) -> None:
        os._exit(status)

    def draw(self) -> tuple[float, float, str]:
        import numpy as np

        return random.random(), float(np.random.random()), str(uuid.uuid4())

    def report(self) -> dict[str, Any]:
        import torch

        known = {"SHLVL", "_", "HF_HOME"}
        files = {os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if int(number) < 3}
        return {
            "HF_HOME": os.environ.get("HF_HOME"),
            "environment": {name: value for name, value in os.environ.items() if name not in known},
            "folder": os.getcwd(),
            "path": sys.path,
            "beside": importlib.util.find_spec("beside") is not None,
            "arguments": [Path(sys.argv[0]).name, len(sys.argv)],
            "signals": [
                type(signal.getsignal(number)).__name__ for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
            ],
            "torch": torch.get_num_threads(),
            "in": os.readlink("/proc/self/fd/0"),
            "out is err": len(files),
            "buffered": sys.stdout.line_buffering or sys.stdout.write_through,  # type: ignore[union-attr]
            "warnings": sys.warnoptions,
            "group leads": os.getpgrp() == os.getppid() == os.getsid(0),
            "sockets": sum(os.readlink(link).startswith(("socket", "pipe")) for link in _links()),
        }


def _links() -> list[str]:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [link for link in links if os.path.lexists(link)]
