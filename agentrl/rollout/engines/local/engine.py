"""The embedded engine: a transformers model in this process, one worker thread, an asyncio front.

It needs nothing but torch and transformers, so it is the default, and the reference that other engines are
compared with. All forward passes happen in the worker; the event loop only passes requests on and takes
tokens back, in pieces of some tens of milliseconds, since a wake-up for each token would cost more than the
token of a tiny model.

What it promises on a CPU in float32: the same request gives the same tokens and bit-equal log-probabilities
whatever arrives before, after or beside it, and whether its prefix was computed or copied (how, is described in
`runner` and `sampler`). That costs nothing measurable, so `deterministic=False` only allows what other
devices and dtypes can't help. Given up: throughput on a GPU, where engines with fused kernels belong.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from agentrl.attachments import images, routed_experts, support
from agentrl.common import cores
from agentrl.config import EngineConfig
from agentrl.errors import AgentRLError, ConfigError, DeadlineExceeded, EngineError, InvalidInput
from agentrl.models.devices import torch_device
from agentrl.models.tokenizers import HFTokenizer, load_tokenizer
from agentrl.rollout.engines import grammars
from agentrl.rollout.engines.checks import check_ids, check_sampling, check_temperature, end_by
from agentrl.rollout.engines.local.request import Request
from agentrl.rollout.engines.local.runner import ModelRunner
from agentrl.rollout.engines.local.scheduler import Scheduler
from agentrl.rollout.engines.local.weights import load_weights
from agentrl.rollout.engines.local.worker import Item, SchedulerThread
from agentrl.rollout.engines.managed import ManagedEngine
from agentrl.rollout.weights.receiver import EngineReceiver, Receiver
from agentrl.rollout.weights.snapshot import merge_on
from agentrl.types import Capabilities, Chunk, Health, PauseMode, Placed, Sampling, Tokenizer, Turn

_ARENA_BYTES = 4 << 30  # at most; a quarter of the memory where that is less
_PREFILL_TOKENS = 512  # in one step: decoding requests wait for it
_SCORE_LOGITS = 1 << 24  # logits that scoring computes in one step
_TINY = 10_000_000  # parameters below which threads wait for each other longer than they compute
_LOG = logging.getLogger(__name__)
_RANDOM = random.SystemRandom()


class LocalEngine(ManagedEngine):
    """`agentrl.types.Engine` over a transformers model in this process.

    Args:
        path: a Hugging Face folder.
        config: the engine's section.
        tokenizer: for stop strings; by default the folder's own, loaded when first needed.

    Attributes:
        runner: holds the model, and computes its steps.
    """

    def __init__(self, path: Path, config: EngineConfig | None = None, tokenizer: Tokenizer | None = None) -> None:
        self._path, self._config, self._tokenizer = Path(path), config or EngineConfig(), tokenizer
        device = torch_device(self._config.device, "engine.device")
        memory = min(_ARENA_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
        self.runner = ModelRunner(
            self._path,
            device,
            self._config.dtype,
            self._config.max_batch,
            memory,
            routed_experts=self._config.routed_experts,
            context=self._config.max_context,
            kernel=getattr(self._config, "kernel", "auto"),
        )
        if self.runner.slow:
            _LOG.warning(
                "engine=local computes through torch, several times slower than compiled: %s", self.runner.slow
            )
        if self._config.routed_experts and self.runner.recorder is None:
            raise ConfigError(f"engine.routed_experts=true: model={str(path)!r} has no experts to record")
        threads = self._choose_threads(device)
        self._max_context = self.runner.max_context
        self._scheduler = Scheduler(
            self.runner,
            store_tokens=memory // 2 // self.runner.arena.token_bytes,
            prefill_tokens=_PREFILL_TOKENS,
            score_tokens=max(16, _SCORE_LOGITS // self.runner.vocab_size),
            decode=self._decode,
        )
        self._capabilities = Capabilities(
            name="local",
            max_context=self._max_context,
            vocab_size=self.runner.vocab_size,
            deterministic=self._config.deterministic
            and device == "cpu"
            and self._config.dtype == "float32"
            and self._row_invariant(threads),
            score=True,
            json_schema=grammars.available(),
            lark=grammars.available(),
            pause_modes=frozenset(PauseMode),
            kernel=self.runner.kernel_name,
            attachments=frozenset(
                ([support.NAME] if self._config.support_bytes else [])
                + ([routed_experts.NAME] if self._config.routed_experts else [])
            ),
            inputs=frozenset([] if self.runner.images is None else [images.NAME]),
        )
        self._worker = SchedulerThread(self._scheduler, threads)
        self._grammars: grammars.Grammars | None = None
        self._making = threading.Lock()

    def _choose_threads(self, device: str) -> int | None:
        """Torch's threads; the kernel's are set, which wait asleep and so are worth it for a small model too."""
        threads = self._config.threads
        if device != "cpu":
            return threads
        if self.runner.kernel is not None:
            self.runner.kernel.threads = cores.choose_threads(threads, cores.share(1)) or torch.get_num_threads()
        return 1 if self.runner.parameters < _TINY else cores.choose_threads(threads, cores.share(1))

    def _row_invariant(self, threads: int | None) -> bool:
        own = torch.get_num_threads()
        torch.set_num_threads(threads or own)
        try:
            return self.runner.row_invariant()
        finally:
            torch.set_num_threads(own)

    @property
    def capabilities(self) -> Capabilities:
        """The promises of this engine."""
        return self._capabilities

    # -------------------------------------------------------------------------------------- generating

    async def generate(
        self,
        request_id: str,
        input_ids: Sequence[int],
        sampling: Sampling,
        deadline: float | None = None,
        attached: Sequence[Placed] = (),
    ) -> AsyncIterator[Chunk | Turn]:
        """Yield chunks, then one `Turn`; see `agentrl.types.Engine.generate`."""
        request = self._see(self._request(request_id, input_ids, sampling), attached)
        if sampling.grammar:
            await asyncio.to_thread(self._keep_to_grammar, request, sampling)
        async for item in self._run(request, deadline):
            if isinstance(item, Chunk | Turn):
                yield item

    def _see(self, request: Request, attached: Sequence[Placed]) -> Request:
        store = self.runner.images
        if not attached:
            return request
        if store is None:
            raise InvalidInput(f"the prompt has images, and model={str(self._path)!r} sees none")
        request.seen = store.see(request.ids, attached)
        request.ids, request.placeholder = list(request.seen.ids), store.token
        return request

    async def score(
        self, input_ids: Sequence[int], temperature: float = 1.0, attached: Sequence[Placed] = ()
    ) -> list[float]:
        """Log-probability of each token given those before it, at `temperature`; the first one's is 0.0."""
        check_temperature(temperature)
        ids = check_ids(input_ids, self.runner.vocab_size, self._max_context, free=0)
        if len(ids) == 1:
            return [0.0]
        request = self._see(Request("score", ids, None, 0, 0, temperature=temperature), attached)
        async for item in self._run(request, None):
            if isinstance(item, list):
                return item
        raise EngineError("scoring ended without a result")

    async def _run(self, request: Request, deadline: float | None) -> AsyncIterator[Item]:
        inbox: asyncio.Queue[Item] = asyncio.Queue()
        self._worker.submit(request, asyncio.get_running_loop(), inbox)
        ended = False
        try:
            with end_by(deadline, inbox, request.id):
                while not ended:
                    item = await inbox.get()
                    ended = not isinstance(item, Chunk | DeadlineExceeded)
                    if isinstance(item, AgentRLError):
                        raise item
                    yield item
        finally:
            if not ended:
                self._worker.cancel(request)

    def _request(self, request_id: str, input_ids: Sequence[int], sampling: Sampling) -> Request:
        check_sampling(sampling, self.runner.vocab_size)
        ids = check_ids(input_ids, self.runner.vocab_size, self._max_context)
        narrowed = sampling.temperature > 0 and not sampling.full_support
        begins = sampling.record_from(support.NAME)
        recorded = narrowed and begins is not None and self._config.support_bytes > 0
        return Request(
            request_id,
            ids,
            sampling,
            begins=len(ids) if begins is None else max(0, min(begins, len(ids))),
            support=support.SupportRecorder(self.runner.vocab_size, self._config.support_bytes) if recorded else None,
            seed=sampling.seed if sampling.seed is not None else _RANDOM.getrandbits(63),
            limit=min(sampling.max_new_tokens, self._max_context - len(ids)),
            stops=frozenset(sampling.stop_token_ids),
            stop_window=max((len(stop.encode()) for stop in sampling.stop), default=-1) + 1,
        )

    def _keep_to_grammar(self, request: Request, sampling: Sampling) -> None:
        """Let the request's text fit its grammar; MissingExtra where the library for that is not installed."""
        with self._making:
            if self._grammars is None:
                tokenizer = self._tokenizer if isinstance(self._tokenizer, HFTokenizer) else load_tokenizer(self._path)
                self._grammars = grammars.Grammars(tokenizer, self.runner.vocab_size)
        request.matcher = self._grammars.matcher(sampling, request.ids[request.begins :])
        if request.support is not None:
            request.support.rule = f"{support.LOCAL}+{request.matcher.library}"

    def _decode(self, ids: Sequence[int]) -> str:
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._path)
        return self._tokenizer.decode(ids)

    # ----------------------------------------------------------------------------------------- weights

    async def publish(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Load (Hugging Face name, tensor) pairs in place and call the result policy `version`.

        An adapter on this engine's own folder is merged with the tensors of that folder's files, which cost no memory:
        the result is bit-equal to the whole weights', and no token pays for two more products in each layer.

        Running requests continue with the new weights; their keys and values are recomputed.

        Raises:
            EngineError: a name is unknown or missing, or a shape differs; nothing was changed.
        """
        weights = merge_on(self._path, weights)

        def change() -> None:
            load_weights(self.runner.model, weights)
            self._scheduler.forget_computed()
            if self.runner.images is not None:
                self.runner.images.forget()
            self._scheduler.version = version

        await self._worker.call(change)

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        """Stop generating, but not scoring. Returns when nothing is generated any more."""
        await self._worker.pause(mode)

    async def resume(self) -> None:
        await self._worker.resume()

    def version(self) -> int:
        """The policy version that now generates."""
        return self._scheduler.version

    @property
    def receiver(self) -> Receiver:
        return EngineReceiver(self, self.checksum)

    async def checksum(self) -> str:
        """A digest of the model's own tensors, to compare engine with engine."""
        digest = hashlib.blake2b(digest_size=16)

        def read() -> None:
            for name, tensor in self.runner.model.named_parameters():
                digest.update(name.encode())
                digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)

        await self._worker.call(read)
        return digest.hexdigest()

    async def health(self) -> Health:
        """Return whether the worker runs, and how many requests it has."""
        error = self._worker.error
        running, waiting = len(self._scheduler.running), len(self._scheduler.waiting)
        return Health(
            ok=error is None, running=running, waiting=waiting, detail=str(error or ""), gone=error is not None
        )

    async def close(self) -> None:
        """Stop the worker; open requests get an EngineError. Idempotent."""
        await asyncio.get_running_loop().run_in_executor(None, self._worker.close)
