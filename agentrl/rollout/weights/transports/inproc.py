"""Weights passed as they are, by `Engine.publish`: for engines in this process, and for any other engine.

Nothing is copied on the way to a local engine but the values themselves. Engines that have a better way of their
own (a server that can load from a disk) are better served by another transport.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from agentrl.rollout.weights.buckets import Named
from agentrl.rollout.weights.receiver import LoadCommit, Receiver
from agentrl.rollout.weights.transports.base import Sent, each


class InprocTransport:
    """A transport by each engine's own `Engine.publish`."""

    stages_weights = False

    def __init__(self) -> None:
        self._weights: Iterable[Named] = ()

    async def stage(self, weights: Iterable[Named], version: int) -> None:
        """Keep the weights: there is nothing to prepare."""
        self._weights = weights

    async def send(self, receivers: Mapping[str, Receiver], commit: LoadCommit) -> Sent:
        """Publish to each; an engine whose own `publish` refuses keeps its weights."""
        return await each(receivers, lambda receiver: receiver.load_tensors(self._weights, commit))

    def folder(self) -> Path | None:
        """Return None: nothing is on a disk."""
        return None

    async def close(self) -> None:
        """Do nothing: nothing is held."""
