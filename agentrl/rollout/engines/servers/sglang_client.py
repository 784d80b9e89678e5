"""SGLang's HTTP routes that we use, one small method for each; no policy of ours.

Read in SGLang 0.5.23's own sources; the order in which a publication calls them is in `agentrl.rollout.weights`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal

from agentrl.errors import AgentRLError, EngineError, InvalidInput
from agentrl.rollout.engines.servers.http import CONTROL_SECONDS, PROBE_SECONDS, Http
from agentrl.rollout.weights.receiver import GROUP


class SGLangClient(Http):
    """One SGLang server's routes.

    All of them raise `EngineError` where the server can't be reached or refuses.
    """

    # ------------------------------------------------------------------------------------- generating

    async def generate(
        self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None, incremental: bool = False
    ) -> AsyncGenerator[Any, None]:
        """The events of `/generate` for one request; one that is an error is raised.

        Args:
            body: the request.
            headers: besides those of every request.
            incremental: whether events have new tokens alone; those that came together are joined (`join_events`).
        """
        async with contextlib.aclosing(self.events("/generate", {**body, "stream": True}, headers)) as pieces:
            async for events in pieces:
                for event in join_events(events) if incremental else events:
                    if "error" in event:
                        raise _failure(event["error"])
                    yield event

    async def generate_whole(self, body: Mapping[str, Any]) -> Any:
        """Return the last answer of `/generate`, for one request or a batch of them."""
        return await self.post("/generate", body, timeout=None)

    async def abort(self, rid: str) -> None:
        """End a request; the server matches ids by their beginning."""
        await self.post("/abort_request", {"rid": rid, "abort_all": False})

    # ------------------------------------------------------------------------------------ how it is doing

    async def model_info(self, timeout: float = PROBE_SECONDS) -> dict[str, Any]:
        """Return the model and its weight version; answered while paused, too."""
        return _mapping(await self.get("/model_info", timeout), "/model_info")

    async def server_info(self, timeout: float = CONTROL_SECONDS) -> dict[str, Any]:
        """Its version, limits and settings; waits for the scheduler."""
        return _mapping(await self.get("/server_info", timeout), "/server_info")

    # ------------------------------------------------------------------------------------------- pausing

    async def pause(self, mode: Literal["abort", "retract", "in_place"]) -> None:
        """Stop all generation: end requests, put them back in the queue, or freeze them where they are."""
        await self.do("/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        await self.do("/continue_generation", {})

    async def flush(self) -> None:
        """Forget all cached prefixes; refused while requests run, but not while they are paused in the queue."""
        await self.do("/flush_cache", {})

    # ------------------------------------------------------------------------------------------- weights

    async def begin_update(self) -> None:
        """Open an update: quantised weights become loadable."""
        await self.do("/begin_weight_update", {})

    async def end_update(self) -> None:
        """Close an update: quantised weights are packed again."""
        await self.do("/end_weight_update", {})

    async def update_from_disk(self, path: str, version: int, *, flush: bool = False) -> None:
        """Load a folder's weights and call them `version`."""
        await self.do(
            "/update_weights_from_disk", {"model_path": path, "weight_version": str(version), "flush_cache": flush}
        )

    async def update_from_tensor(
        self,
        serialized: Sequence[str],
        version: int | None = None,
        *,
        flush: bool = False,
        load_format: str | None = None,
    ) -> None:
        """Load tensors that are serialised as SGLang's `MultiprocessingSerializer` does, in base64, one a rank."""
        await self.do(
            "/update_weights_from_tensor",
            {
                "serialized_named_tensors": list(serialized),
                "load_format": load_format,
                "flush_cache": flush,
                "weight_version": None if version is None else str(version),
            },
        )

    async def init_group(
        self, address: str, port: int, rank_offset: int, world_size: int, backend: str, name: str
    ) -> None:
        """Join a process group for broadcasts; answers when all of its members are there."""
        await self.do(
            "/init_weights_update_group",
            {
                "master_address": address,
                "master_port": port,
                "rank_offset": rank_offset,
                "world_size": world_size,
                "group_name": name,
                "backend": backend,
            },
        )

    async def destroy_group(self, name: str = GROUP) -> None:
        """Leave a process group."""
        await self.do("/destroy_weights_update_group", {"group_name": name})

    async def update_from_distributed(
        self,
        names: Sequence[str],
        dtypes: Sequence[str],
        shapes: Sequence[Sequence[int]],
        version: int | None = None,
        *,
        flush: bool = False,
        load_format: str | None = None,
        group: str = GROUP,
    ) -> None:
        """Receive a bucket of broadcast tensors; the last bucket of a publication carries the version."""
        await self.do(
            "/update_weights_from_distributed",
            {
                "names": list(names),
                "dtypes": list(dtypes),
                "shapes": [list(shape) for shape in shapes],
                "group_name": group,
                "flush_cache": flush,
                "weight_version": None if version is None else str(version),
                "load_format": load_format,
            },
        )

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load an adapter in PEFT's format, beside those that are there."""
        await self.do("/load_lora_adapter", {"lora_name": name, "lora_path": folder})

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter; answers when no request uses it."""
        await self.do("/unload_lora_adapter", {"lora_name": name})

    async def set_version(self, version: int) -> None:
        """Call the weights as they are `version`; running requests go on."""
        await self.do("/update_weight_version", {"new_version": str(version), "abort_all_requests": False})

    async def weights_checksum(self) -> Any:
        """Checksums of the server's own tensors, to compare engine with engine."""
        answer = _mapping(await self.post("/weights_checker", {"action": "checksum"}), "/weights_checker")
        return answer.get("per_engine_checksum") or answer.get("ranks")

    # -------------------------------------------------------------------------------------------- memory

    async def release_memory(self, tags: Sequence[str] | None = None) -> None:
        """Give GPU memory back (`weights`, `kv_cache`; None is both) until `resume_memory`."""
        await self.do("/release_memory_occupation", {"tags": list(tags) if tags else None})

    async def resume_memory(self, tags: Sequence[str] | None = None) -> None:
        """Take the memory again; weights must be published anew."""
        await self.do("/resume_memory_occupation", {"tags": list(tags) if tags else None})


_BY_TOKEN = (
    *("output_token_logprobs", "output_top_logprobs"),
    *("output_token_sampling_mask", "output_token_sampling_logprobs"),
)
"""The entries that an event has for each of its tokens, besides their ids."""


def join_events(events: Sequence[Any]) -> Sequence[Any]:
    """The same tokens in fewer events: consecutive ones of one weight version are one, with the last one's facts.

    Errors stay by themselves, and so do events that do not tell of each of their tokens.
    """
    found: list[Any] = []
    for event in events:
        if found and _is_whole(event) and _is_whole(found[-1]) and _version(event) == _version(found[-1]):
            before, meta = found[-1], event["meta_info"]
            ids = [*(before.get("output_ids") or ()), *(event.get("output_ids") or ())]
            both = {name: [*(before["meta_info"].get(name) or ()), *(meta.get(name) or ())] for name in _BY_TOKEN}
            found[-1] = {**event, "output_ids": ids, "meta_info": {**meta, **both}}
        else:
            found.append(event)
    return found


def _version(event: Any) -> Any:
    return event["meta_info"].get("weight_version")


def _is_whole(event: Any) -> bool:
    if not isinstance(event.get("meta_info"), dict):
        return False
    logprobs, *others = (event["meta_info"].get(name) or () for name in _BY_TOKEN)
    count = len(event.get("output_ids") or ())
    return len(logprobs) == count and all(len(each) in (0, count) for each in others)


def _mapping(answer: Any, path: str) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise EngineError(f"{path} answered no JSON object: {str(answer)[:200]!r}")
    return answer


def _failure(error: Any) -> AgentRLError:
    """An error event as an exception: a request that the server calls wrong, or a failure of its own."""
    code = error.get("code") if isinstance(error, dict) else None
    text = f"sglang: {error.get('message') if isinstance(error, dict) else error}"
    return InvalidInput(text) if code in (400, 422) else EngineError(text)
