"""The interface between publisher and transport."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from agentrl.errors import AgentRLError
from agentrl.rollout.weights.buckets import Named
from agentrl.rollout.weights.receiver import LoadCommit, Receiver

Sent = Mapping[str, AgentRLError | None]
"""Each receiver's failure by name; None where it has all the weights."""

K = TypeVar("K")
V = TypeVar("V")


class Transport(Protocol):
    """Sends weights to receivers.

    Attributes:
        stages_weights: staging goes through the weights, sending does not; else each sending goes through them again.

    One that asks receivers for more than loading a folder or tensors may have a `name`, the value of
    `weights.transport`, and the method that it `calls` ("join"): engines without it are refused when a run starts.
    """

    stages_weights: bool

    async def stage(self, weights: Iterable[Named], version: int) -> None:
        """Do what needs no engine, while they generate."""
        ...

    async def send(self, receivers: Mapping[str, Receiver], commit: LoadCommit) -> Sent:
        """Load the staged weights into paused engines. May be called again, for those that failed."""
        ...

    def folder(self) -> Path | None:
        """The staged weights as a model folder, for a restarted engine; None where there is none."""
        ...

    async def close(self) -> None:
        """Release everything; idempotent."""
        ...


async def each(items: Mapping[K, V], work: Callable[[V], Awaitable[object]]) -> dict[K, AgentRLError | None]:
    """Run `work` for all items concurrently; returns each one's AgentRLError or None. Other exceptions are raised."""
    results = await asyncio.gather(*(work(item) for item in items.values()), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, AgentRLError):
            raise result
    return {
        name: result if isinstance(result, AgentRLError) else None for name, result in zip(items, results, strict=True)
    }
