"""`Receiver` by a vLLM server's HTTP calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from agentrl.rollout.engines.servers.vllm_client import VLLMClient
from agentrl.rollout.weights.receiver import EngineReceiver, LoadCommit
from agentrl.types import Engine


class VLLMReceiver(EngineReceiver):
    """`Receiver` by vLLM's own reload and checksums, and its sleep mode for the memory.

    Args:
        engine: a vLLM server.
        client: its routes.
        load: loads what a folder brings from there.
    """

    def __init__(self, engine: Engine, client: VLLMClient, load: Callable[[Path, int], Awaitable[None]]) -> None:
        super().__init__(engine, client.weights_checksum, atomic=False)
        self.client, self.load = client, load

    async def load_folder(self, folder: Path, commit: LoadCommit) -> None:
        await self.load(folder, commit.version)

    async def sleep(self, tags: Sequence[str]) -> None:
        """`/sleep`: caches go either way; weights go for good (level 2), or to the host's memory (level 1)."""
        await self.client.release_memory(2 if "weights" in tags else 1)

    async def wake(self, tags: Sequence[str]) -> None:
        await self.client.resume_memory()
