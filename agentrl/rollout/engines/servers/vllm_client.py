"""vLLM's HTTP routes that we use, one small method for each; no policy of ours.

Read in vLLM 0.32.0's own sources. The token route is there with `--enable-scale-out`, the ones that pause, reload
and check weights with VLLM_SERVER_DEV_MODE=1: keep such a server on loopback.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal

from agentrl.errors import EngineError, InvalidInput
from agentrl.rollout.engines.servers.http import PROBE_SECONDS, Http

EMPTY = hashlib.sha256().hexdigest()
"""The digest of a parameter without elements."""


class VLLMClient(Http):
    """One vLLM server's routes.

    All of them raise `EngineError` where the server can't be reached or refuses.
    """

    # ------------------------------------------------------------------------------------- generating

    def generate(
        self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[list[Any], None]:
        """The events of the token route for one request, as they come together."""
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return self.events("/inference/v1/generate", {**body, **stream}, headers)

    async def generate_whole(self, body: Mapping[str, Any]) -> Any:
        """Return the last answer of the token route, for one request."""
        return await self.post("/inference/v1/generate", body, timeout=None)

    async def abort(self, request_ids: Sequence[str] = ()) -> None:
        """End these requests, or all of them."""
        await self.do("/abort_requests", {"request_ids": list(request_ids)})

    # ------------------------------------------------------------------------------------ how it is doing

    async def release(self) -> str:
        """Return the version of vLLM."""
        return str((await self.get("/version", PROBE_SECONDS)).get("version"))

    async def model(self) -> dict[str, Any]:
        """The model that it serves, with its longest context."""
        found: dict[str, Any] = (await self.get("/v1/models", PROBE_SECONDS))["data"][0]
        return found

    async def weight_version(self) -> str:
        """Return the name of the weights."""
        return str((await self.get("/weight_info")).get("weight_version"))

    # ------------------------------------------------------------------------------------------- pausing

    async def pause(self, mode: Literal["abort", "wait", "keep"]) -> None:
        """Stop all generation: end requests, let them finish, or freeze them where they are."""
        await self.do(f"/pause?mode={mode}&clear_cache=false")

    async def resume(self) -> None:
        await self.do("/resume")

    async def flush(self, *, running: bool = False) -> None:
        """Forget all cached prefixes; with `running`, also those of requests, which are then computed anew."""
        await self.do(f"/reset_prefix_cache?reset_running_requests={str(running).lower()}")

    async def forget_images(self) -> None:
        """Forget what the tower made of images; those of requests in progress are made anew where they are needed."""
        await self.do("/reset_encoder_cache")

    # ------------------------------------------------------------------------------------------- weights

    async def reload(self, path: str) -> None:
        """Load a folder's weights."""
        await self.do("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": path}})

    async def pack_again(self) -> None:
        """Have a server on a CPU use the loaded weights in every layer; EngineError without agentrl's extension."""
        await self.do("/collective_rpc", {"method": "pack_weights_again"})

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load an adapter in PEFT's format, beside those that are there."""
        await self.do("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder})

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter, whether requests use it or not."""
        await self.do("/v1/unload_lora_adapter", {"lora_name": name})

    async def set_version(self, version: int) -> None:
        """Call the weights as they are `version`."""
        await self.do("/update_weight_version", {"new_version": str(version)})

    async def weights_checksum(self) -> str:
        """A digest of the server's own tensors, those of all ranks, to compare engine with engine; '' without any.

        A server on a CPU has packed copies of matrices in the place of parameters, which are empty then: of those
        agentrl's extension tells, and without it there is no checksum.
        """
        sums: dict[str, str] = (await self.post("/weight_checker", {"action": "checksum"})).get("checksums") or {}
        if EMPTY in sums.values():
            try:
                packed = await self.post("/collective_rpc", {"method": "packed_checksums"})
            except (EngineError, InvalidInput):
                return ""
            for rank, found in enumerate(packed["results"]):
                sums |= {f"rank{rank}:{name}": digest for name, digest in found.items()}
        lines = "".join(f"{name} {digest}\n" for name, digest in sorted(sums.items()))
        return hashlib.sha256(lines.encode()).hexdigest() if lines else ""

    # -------------------------------------------------------------------------------------------- memory

    async def release_memory(self, level: int = 1) -> None:
        """Give GPU memory back until `resume_memory`; level 2 forgets the weights, too."""
        await self.do(f"/sleep?level={level}")

    async def resume_memory(self) -> None:
        """Take the memory again."""
        await self.do("/wake_up")
