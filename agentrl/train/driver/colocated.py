"""Taking turns on the same GPUs: colocated engines sleep while the trainer computes, which then leaves them memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentrl.rollout.engines.managed import managed
from agentrl.rollout.fleet import asleep
from agentrl.train.trainers import Computing, MemoryReleasing
from agentrl.types import Engine


@asynccontextmanager
async def computing(trainer: Computing, engine: Engine) -> AsyncIterator[None]:
    """Let the trainer compute meanwhile: what colocated engines need of their GPUs is free before and after."""
    async with asleep(engine):
        yield
        await leave(trainer, engine)


async def leave(trainer: Computing, engine: Engine) -> None:
    """Have the trainer give back memory that it does not use, where an engine is on its GPUs."""
    if managed(engine).colocated and isinstance(trainer, MemoryReleasing):
        await asyncio.to_thread(trainer.release)
