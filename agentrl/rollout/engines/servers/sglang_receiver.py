"""`Receiver` by an SGLang server's HTTP calls (0.5.23).

No load but the last names a version or flushes, as its `LoadCommit` says, and where requests are frozen that one does
not flush either: SGLang would refuse while they hold their caches, and would then call an update failed whose weights
are in.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError, EngineError
from agentrl.rollout.engines.servers.sglang_client import SGLangClient
from agentrl.rollout.weights.receiver import GROUP, LoadCommit

if TYPE_CHECKING:
    from agentrl.rollout.weights.buckets import Bucket

LoadFolder = Callable[[Path, int], Awaitable[None]]
FILES = "agentrl-files"
"""The load format of weights that lie in files of shared memory (`agentrl_sglang_weights.FILES`)."""
PING_SECONDS = 30.0
"""Seconds that a scheduler that is not computing may take to answer on a busy machine."""


class SGLangReceiver:
    """`Receiver` by SGLang's HTTP calls (0.5.23).

    Args:
        client: the server's routes.
        load: loads what a folder brings, where that may be an adapter; None: it is whole weights.
        receives_ahead: it runs with `agentrl_sglang_weights`.
    """

    atomic = False

    def __init__(
        self,
        client: SGLangClient,
        load: LoadFolder | None = None,
        *,
        receives_ahead: bool = False,
    ) -> None:
        self.client, self.load = client, load
        self.receives_ahead, self.reads_files, self.group = receives_ahead, receives_ahead, GROUP

    def in_group(self, name: str) -> SGLangReceiver:
        """Return the same server's receiver in another process group: a server may be in several."""
        other = copy.copy(self)
        other.group = name
        return other

    async def begin(self) -> None:
        """`/begin_weight_update`; a session that an earlier, broken update left open is taken over."""
        try:
            await self.client.begin_update()
        except EngineError as error:
            if "already open" not in str(error):
                raise

    async def load_folder(self, folder: Path, commit: LoadCommit) -> None:
        if self.load is not None:
            await self.load(folder, commit.version)
            return
        await self.client.update_from_disk(str(folder), commit.version, flush=commit.flush)

    async def load_tensors(self, weights: Iterable[tuple[str, Any]], commit: LoadCommit) -> None:
        """Refuse: the server is in another process."""
        raise ConfigError("engine=sglang can't take weights.transport=inproc; allowed: disk, distributed, ipc")

    async def load_bucket(self, payloads: Sequence[str], commit: LoadCommit | None) -> None:
        """`/update_weights_from_tensor`, one payload for each tensor-parallel rank."""
        self._require_whole("ipc")
        await self.client.update_from_tensor(payloads, **_ending(commit))

    async def load_shared(self, payloads: Sequence[str], commit: LoadCommit) -> None:
        """`/update_weights_from_tensor` as `agentrl_sglang_weights` takes it: begun, loaded and ended in one call."""
        self._require_whole("ipc")
        await self.client.update_from_tensor(payloads, load_format=FILES, **_ending(commit))

    def _require_whole(self, transport: str) -> None:
        if self.load is not None:
            raise ConfigError(
                f"engine.adapter_rank: adapters come as folders, not by weights.transport={transport}; allowed: disk"
            )

    async def join(self, host: str, port: int, rank: int, world: int, backend: str, name: str) -> None:
        self._require_whole("distributed")
        await self.client.init_group(host, port, rank, world, backend, name)

    async def receive(self, bucket: Bucket, commit: LoadCommit | None) -> None:
        """`/update_weights_from_distributed` in its flat form: one broadcast for a bucket."""
        await self.client.update_from_distributed(
            bucket.names,
            bucket.dtypes,
            bucket.shapes,
            load_format="flattened_bucket",
            group=self.group,
            **_ending(commit),
        )

    async def leave(self) -> None:
        await self.client.destroy_group(self.group)

    async def end(self) -> None:
        await self.client.end_update()

    async def flush(self) -> None:
        await self.client.flush()

    async def checksum(self) -> str:
        """Return the answer of `/weights_checker`."""
        return str(await self.client.weights_checksum())

    async def ping(self) -> None:
        """`/server_info`, which asks the scheduler process and answers also while generation is paused."""
        await self.client.server_info(PING_SECONDS)

    async def sleep(self, tags: Sequence[str]) -> None:
        await self.client.release_memory(tags)

    async def wake(self, tags: Sequence[str]) -> None:
        await self.client.resume_memory(tags)


def _ending(commit: LoadCommit | None) -> dict[str, Any]:
    """The fields of a load beyond its tensors."""
    return {} if commit is None else {"version": commit.version, "flush": commit.flush}
