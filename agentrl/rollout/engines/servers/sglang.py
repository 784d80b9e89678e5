"""`engine=sglang`: SGLang in a process of its own, called with token ids through its native `/generate`.

What its answers mean, read in 0.5.23 and held by the contract suite against a running server:

- Log-probabilities of sampled tokens are at the sampling temperature over the whole vocabulary, as ours are;
  temperature 0 counts as 1. Those of given tokens (scoring) are at temperature 1 whatever was requested, so scoring
  at another temperature asks for one token at each place of the path, in one batch.
- It stops at the tokenizer's own end token whether or not we stop there, unless it ignores stop tokens
  altogether. A stop that was not requested is therefore skipped: the request goes on from its tokens, whose
  keys and values are in the cache.
- Five places of the context are kept by the server, and a request beyond it is refused, so requests are clamped
  here. Requests are aborted by the beginning of their id: ids all have one length.
- Every request carries its version as `extra_key`: prefixes that older weights computed are never shared.
- Routed experts come at a request's end, of all tokens from `routed_experts_start_len` on but the last, base64 of int32
  [tokens, layers, k]; layers without experts are there too. An aborted request brings none. On a CPU its recorder
  does not start: it pins memory through CUDA's runtime, whatever the device is.

Given up: its sessions and its chat endpoint. Both render or keep what we have already.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.attachments import support
from agentrl.common.deadline import HEALTH_SECONDS
from agentrl.errors import AgentRLError, ConfigError, EngineError, InvalidInput
from agentrl.rollout.engines.plugin import ServerPlugin
from agentrl.rollout.engines.servers import sglang_options
from agentrl.rollout.engines.servers.driver import driver_environment
from agentrl.rollout.engines.servers.http import KEEP_ALIVE
from agentrl.rollout.engines.servers.images import FORGOTTEN, check_expansion, pack_for_sglang
from agentrl.rollout.engines.servers.open_request import OpenRequest, routing
from agentrl.rollout.engines.servers.options import option
from agentrl.rollout.engines.servers.server_engine import ServerEngine, ServerInfo
from agentrl.rollout.engines.servers.server_settings import OptionValue
from agentrl.rollout.engines.servers.sglang_client import SGLangClient
from agentrl.rollout.engines.servers.sglang_receiver import SGLangReceiver
from agentrl.rollout.weights.receiver import Receiver
from agentrl.types import FinishReason, PauseMode, Sampling, Turn, VersionSpan

_EXTENSION = Path(__file__).with_name("sglang_extension")
_SCORE_BATCH = 256  # places of a path that are scored in one call
TOKEN_SECONDS = 30.0
"""Seconds for the token that a server generates to say that it is healthy."""


class SGLangEngine(ServerEngine):
    """`agentrl.types.Engine` over an SGLang server."""

    name = "sglang"
    packages = ("sglang",)
    supported = sglang_options.SUPPORTED
    owned = sglang_options.OWNED
    no_experts_on_cpu = "where its recorder asks for pinned CUDA memory"
    client: SGLangClient

    # ---------------------------------------------------------------------------------------- starting

    def _connect(self, url: str, api_key: str | None) -> SGLangClient:
        return SGLangClient(url, api_key)

    def _command(self) -> list[str]:
        return ["agentrl_sglang" if self._extended else "sglang.launch_server"]

    @property
    def _extended(self) -> bool:
        """True where the server is started with what `sglang_extension` changes."""
        own = self.config.url is None and self.platform == "cpu"
        return own or sglang_options.counts_exactly(self.config) or bool(self._inputs(not self._no_images()))

    def _environment(self) -> dict[str, str]:
        env = {"SGLANG_USE_CPU_ENGINE": "1", **driver_environment()} if self.platform == "cpu" else {}
        if self._extended:
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_EXTENSION), os.environ.get("PYTHONPATH")]))
        env["SGLANG_TIMEOUT_KEEP_ALIVE"] = os.environ.get("SGLANG_TIMEOUT_KEEP_ALIVE", KEEP_ALIVE)
        if self.platform == "cpu" and self.config.cores:
            env["SGLANG_CPU_OMP_THREADS_BIND"] = os.environ.get("SGLANG_CPU_OMP_THREADS_BIND", self.config.cores)
        return env

    def _options(self) -> dict[str, OptionValue]:
        return sglang_options.launch_options(self.config, self.facts, self.platform)

    def _deterministic(self) -> bool:
        return self.platform != "cpu"

    def _keeps_to_lark(self) -> bool:
        return sglang_options.keeps_to_lark(self.config)

    def _no_images(self) -> str:
        taken = self.info is not None and self.info.images
        return "" if taken else sglang_options.refuse_images(self.config, self.vision)

    def _max_context(self) -> int:
        return self.facts.context - sglang_options.KEPT

    async def _probe(self) -> bool:
        return await self._alive() and await self.client.healthy(TOKEN_SECONDS)

    async def _release(self) -> str:
        return str((await self.client.server_info()).get("version"))

    async def _info(self) -> ServerInfo:
        info = await self.client.server_info()
        if self.config.routed_experts and not info.get("enable_return_routed_experts"):
            raise ConfigError(
                f"engine.routed_experts=true: the server at {self.client.url} runs without "
                "--enable-return-routed-experts"
            )
        told, own = option(self.config, "grammar_backend"), info.get("grammar_backend")
        if self.config.url and None not in (told, own) and told != own:
            raise ConfigError(
                f"engine.server.grammar_backend={told!r}: the server at {self.client.url} runs with "
                f"--grammar-backend {own}"
            )
        if preferred := info.get("preferred_sampling_params"):
            raise ConfigError(
                f"the server at {self.client.url} runs with --preferred-sampling-params {preferred}, which requests "
                "would be drawn with unasked: start it without, and set rollout.*"
            )
        longest = info.get("max_req_input_len")
        version = str((await self.client.model_info()).get("weight_version"))
        incremental = bool(info.get("incremental_streaming_output"))
        listed = int(info.get("sampling_mask_max_tokens") or 0)
        counts = sglang_options.counts_exactly(self.config)
        longest = None if longest is None else int(longest)
        lark, seen = self.capabilities.lark, bool(self.capabilities.inputs)
        return ServerInfo(longest, version, incremental, listed, counts, lark, seen)

    def _lacks(self, sampling: Sampling, listed: int) -> str:
        left = sampling.top_k or self.facts.vocab_size
        return f"--sampling-mask-max-tokens {left}" if sampling.truncated and left > listed else ""

    # -------------------------------------------------------------------------------------- generating

    async def _pump(self, request: OpenRequest) -> Turn:
        request.support = self._recorder(request, support.SGLANG)
        self._set_mask(request)
        if _lists(request) and self._lacks(request.sampling, 0 if self.info is None else self.info.listed):
            request.support = None
        while True:
            try:
                ended = await self._stream(request)
            except InvalidInput as error:
                if FORGOTTEN not in str(error) or not self.held.forget(request.images):
                    raise
                continue
            reason = str(ended.get("type"))
            if reason == "length":
                return request.turn(FinishReason.LENGTH)
            if reason == "stop":
                matched = ended.get("matched")
                if self._is_wanted(request.sampling, matched):
                    return request.turn(FinishReason.STOP, matched)
                if len(request.token_ids) >= request.limit:
                    return request.turn(FinishReason.LENGTH)
                continue
            if reason == "abort" and not (ended.get("status_code") or 0) >= 500:
                return request.turn(FinishReason.ABORT)
            raise EngineError(f"sglang ended request {request.id!r} with {ended}")

    @staticmethod
    def _is_wanted(sampling: Sampling, matched: Any) -> bool:
        """True where a stop was requested; a grammar ends with the tokenizer's end token."""
        return matched in sampling.stop_token_ids or matched in sampling.stop or sampling.grammar

    async def _stream(self, request: OpenRequest) -> dict[str, Any]:
        """One call of `/generate`: yield what comes, and return why it ended."""
        request.rid = self._next_id()
        before, start = len(request.token_ids), request.experts_from
        ended: dict[str, Any] | None = None
        incremental = self.info is None or self.info.incremental
        stream = self.client.generate(self._body(request), routing(request), incremental)
        async with contextlib.aclosing(stream) as events:
            async for event in events:
                self.progress()
                meta = event["meta_info"]
                if (refused := _find_refusal(meta)) is not None:
                    return refused
                if request.cached is None:
                    check_expansion(request.images, len(request.ids) + before, meta.get("prompt_tokens"), self.name)
                    request.cached = int(meta.get("cached_tokens") or 0)
                    self.held.note(request.images)
                if "forward_entry_time" in meta:  # with engine.server.enable_metrics=true; else queue_time is 0
                    request.queued = float(meta["queue_time"])
                new = event.get("output_ids") or []
                names = ("output_token_logprobs", "output_top_logprobs", "output_token_sampling_mask")
                sampled, best, kept = (meta.get(name) or [] for name in names)
                drawn = meta.get("output_token_sampling_logprobs") or []
                if not incremental:
                    had = len(request.token_ids) - before
                    new, sampled, best, kept, drawn = (one[had:] for one in (new, sampled, best, kept, drawn))
                logprobs = [entry[0] for entry in sampled]
                candidates = [[(token, logp) for logp, token, *_ in place] for place in best]
                if request.mask is not None:
                    kept = [request.mask.accept(token) for token in new]
                elif request.support is not None and not _lists(request):
                    kept = [range(self.facts.vocab_size)] * len(new)
                elif request.support is not None:
                    candidates = [
                        [(token, logp - one + own) for token, logp in place if token in set(ids)]
                        for place, ids, one, own in zip(candidates, kept, logprobs, drawn, strict=False)
                    ]
                    logprobs = list(drawn)
                    self._check_kept(new, kept)
                self._check_output(new, logprobs)
                version = self._version_of(request, int(meta.get("weight_version") or 0))
                request.take(new, logprobs, version, candidates, kept)
                if meta.get("finish_reason"):
                    if self.adapters is None:
                        self._set_versions(request, before, meta)
                    self._add_experts(request, start, meta)
                    ended = meta["finish_reason"]
        if ended is None:
            raise EngineError(f"sglang ended request {request.id!r} without a reason")
        return ended

    @staticmethod
    def _set_versions(request: OpenRequest, before: int, meta: dict[str, Any]) -> None:
        """Version spans as the scheduler noted them, token by token; chunks only know when they were sent."""
        noted = meta.get("weight_versions")
        if not noted:
            return
        spans = [span for span in request.versions if span.start < before]
        spans = [VersionSpan(s.version, s.start, min(s.end, before)) for s in spans]
        for span in noted:
            version, start, end = int(span["version"]), before + span["start"], before + span["end"]
            if start == end:
                continue
            if spans and spans[-1].version == version:
                start = spans.pop().start
            spans.append(VersionSpan(version, start, end))
        request.note_versions(spans, whole=meta["finish_reason"].get("type") != "abort")

    def _add_experts(self, request: OpenRequest, start: int | None, meta: dict[str, Any]) -> None:
        data = meta.get("routed_experts")
        if data is None or start is None or self.facts.experts is None:
            return
        import numpy as np

        experts = self.facts.experts
        rows = np.frombuffer(base64.b64decode(data), dtype="<i4").reshape(-1, experts.layers, experts.topk)
        request.add_experts(rows, start, experts)

    def _body(self, request: OpenRequest) -> dict[str, Any]:
        limit, start = request.limit - len(request.token_ids), request.experts_from
        seen = {"image_data": [pack_for_sglang(request.images, request.length, self.held)]} if request.images else {}
        routed = self.config.routed_experts and start is not None
        params = sglang_options.sampling_params(request.sampling, limit, self.config.stream_tokens)
        if masked := _lists(request):
            params.setdefault("top_k", self.facts.vocab_size)  # it lists what is left of so many at most
        return {
            "rid": request.rid,
            "input_ids": [*request.ids, *request.token_ids],
            "sampling_params": params,
            "return_logprob": True,
            "top_logprobs_num": request.sampling.top_logprobs,
            "extra_key": str(request.version),
            "lora_path": request.adapter,
            **seen,
            **({"return_sampling_mask": True} if masked else {}),
            **({"return_routed_experts": True, "routed_experts_start_len": start} if routed else {}),
        }

    async def _abort(self, request: OpenRequest) -> None:
        if request.rid:
            await self.client.abort(request.rid)

    async def _score_tokens(self, ids: list[int], temperature: float) -> list[float]:
        found = await self._score_hot(ids, temperature) if temperature != 1.0 else await self._score(ids)
        self._check_finite(found)
        return found

    async def _score(self, ids: list[int]) -> list[float]:
        body = {"sampling_params": {"max_new_tokens": 0}, "return_logprob": True, "logprob_start_len": 0}
        key = {"extra_key": str(self._version), "lora_path": self._adapter()}
        answer = await self.client.generate_whole({"input_ids": ids, **key, **body})
        return [entry[0] for entry in answer["meta_info"]["input_token_logprobs"][1:]]

    async def _score_hot(self, ids: list[int], temperature: float) -> list[float]:
        found: list[float] = []
        for start in range(1, len(ids), _SCORE_BATCH):
            places = range(start, min(start + _SCORE_BATCH, len(ids)))
            body = {
                "input_ids": [ids[:place] for place in places],
                "token_ids_logprob": [[ids[place]] for place in places],
                "sampling_params": {"max_new_tokens": 1, "temperature": temperature, "ignore_eos": True},
                "return_logprob": True,
                "extra_key": str(self._version),
                "lora_path": self._adapter(),
            }
            answers = await self.client.generate_whole(body)
            found += [answer["meta_info"]["output_token_ids_logprobs"][0][0][0] for answer in answers]
        return found

    # ------------------------------------------------------------------------------- pausing and weights

    async def _pause(self, mode: PauseMode) -> None:
        match mode:
            case PauseMode.ABORT:
                await self.client.pause("abort")
                await self.client.pause("retract")  # the first leaves the scheduler running, amid a batch perhaps
            case PauseMode.IN_PLACE:
                await self.client.pause("in_place")
            case _:
                await self.client.pause("retract")

    async def _resume(self) -> None:
        await self.client.resume()

    async def _load(self, folder: Path, version: int) -> None:
        keeps = self._paused is PauseMode.IN_PLACE  # which goes on with the caches that it has
        await self.client.update_from_disk(str(folder), version, flush=not keeps)
        self._version = version

    # ------------------------------------------------------------------------------------------ its state

    async def _alive(self) -> bool:
        try:
            await self.client.model_info(HEALTH_SECONDS)
        except AgentRLError:
            return False
        return True

    @property
    def receiver(self) -> Receiver:
        load = None if self.adapters is None else self.load_folder
        own = self.config.url is None and self.platform == "cpu"
        return SGLangReceiver(self.client, load=load, receives_ahead=own)


def _lists(request: OpenRequest) -> bool:
    """Return whether the server is to list what a request's tokens are drawn from."""
    return request.support is not None and request.mask is None and request.sampling.truncated


ENGINE = ServerPlugin(
    SGLangEngine,
    SGLangEngine.packages,
    sglang_options.SUPPORTED,
    ranks=(("tp_size", "tp", "tensor_parallel_size"), ("pp_size", "pp", "pipeline_parallel_size")),
    sleep_option="enable_memory_saver",
    records_supports=True,
    records_penalties=sglang_options.counts_exactly,
    keeps_to_calls=sglang_options.keeps_to_lark,
    takes_images=lambda config, vision: not sglang_options.refuse_images(config, vision),
)


_NO_GRAMMAR = ("Failed to compile", "Grammar-based generation")
"""The beginnings of what the server says where it can't keep to a grammar."""


def _find_refusal(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    """The end of a request that the server did not begin; None of others. A token that comes with it is a filler.

    Raises:
        InvalidInput: its grammar is none.
    """
    ended = meta.get("finish_reason")
    if not ended or ended.get("type") != "abort" or not ended.get("status_code") or meta.get("output_token_logprobs"):
        return None
    if (said := str(ended.get("message"))).startswith(_NO_GRAMMAR):
        raise InvalidInput(f"sglang: {said[:500]}")
    return dict(ended)
