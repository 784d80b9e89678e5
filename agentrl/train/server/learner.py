"""One base with the adapters of many training runs: whichever run's turn it is, its matrices are on the base's layers.

The base is held once, and frozen. Each run's requests are computed in passes of their own, of the shapes that it would
have alone, so what one run computes does not depend on which others there are (`passes=separate`), or small requests of
several runs in one pass (`passes=mixed`; see `agentrl.train.server.mixed`).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.config import LoraConfig
from agentrl.errors import ConfigError, InvalidInput
from agentrl.models.rope import fixed_angle_length
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import fill_bins
from agentrl.train.server.losses import TARGETS
from agentrl.train.server.messages import Datum, PassRequest
from agentrl.train.server.passes import PassResult, PassWork, RunAdapter
from agentrl.train.server.prefixes import SharedPass, shared_passes
from agentrl.train.trainers.lora import Lora, add, linear_layers, list_adapted, remove
from agentrl.train.trainers.segments import AdapterSegment, on_segments
from agentrl.train.trainers.torch_trainer.batch import computing, trunk_of
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer

MIXED_TOKENS = 1024
"""The tokens of a mixed pass on a CPU, which gains nothing from more."""
MIXED_BOUND, MIXED_BOUND_IN_LOW_PRECISION = 1e-4, 0.1
"""The largest distance of log-probabilities of mixed passes from those of separate ones, in nats."""


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """A new adapter, as a client asks for it: which layers, and the seed of its matrices."""

    rank: int
    seed: int
    alpha: float = 32.0
    attention: bool = True
    mlp: bool = True


class SharedBase(TorchTrainer):
    """The base, and the passes of whichever run's adapter is on it."""

    def __init__(self, path: Path, config: TorchConfig) -> None:
        super().__init__(path, config)
        self.model.requires_grad_(False)
        self._on: RunAdapter | None = None
        settings: Any = self.model.config
        text = settings.get_text_config()
        self.vocabulary = int(text.vocab_size)
        most = fixed_angle_length(settings) or getattr(text, "max_position_embeddings", None)
        self.context = int(most or 1 << 20)

    def new_adapter(self, spec: AdapterSpec) -> RunAdapter:
        """Return an adapter that leaves the base's outputs as they are."""
        self._put(None)
        names = [n for n in linear_layers(self.model) if (spec.attention if is_attention(n) else spec.mlp)]
        if not names:
            raise InvalidInput("lora_config: train_attn=false and train_mlp=false leave no layer to train")
        lora = Lora(LoraConfig(rank=spec.rank, alpha=spec.alpha, targets=tuple(names)), spec.seed, self.source)
        lora.attach(self.model)
        saved = lora.saved(self.model, str(self.source)).copied()
        for _, layer in list(list_adapted(self.model)):
            remove(layer)
        return RunAdapter.of(saved, self.device)

    def layer_names(self) -> list[str]:
        """Return the names of the layers that an adapter could be on."""
        return list(linear_layers(self.model))

    def _put(self, adapter: RunAdapter | None) -> None:
        """Have the base's layers compute with a run's matrices, or with none."""
        if adapter is self._on:
            return
        for _, layer in list(list_adapted(self.model)):
            remove(layer)
        self._on = adapter
        if adapter is not None:
            layers = linear_layers(self.model)
            for name, (a, b) in adapter.matrices.items():
                add(layers[name], a, b, adapter.shape.scale)

    @property
    def mixed_tokens(self) -> int:
        """The most tokens of a mixed pass."""
        budget = self.config.token_budget
        return budget if self.device.type == "cuda" else min(budget, MIXED_TOKENS)

    def work(self, adapter: RunAdapter, request: PassRequest) -> PassWork:
        """Return a request that is about to be computed."""
        return PassWork(adapter, request, vocabulary=self.vocabulary, longest=self.context)

    @computing
    def run_pass(self, adapter: RunAdapter, request: PassRequest) -> PassResult:
        """Compute a request's log-probabilities, and unless it is forward only, add its gradient to the run's.

        Raises:
            InvalidInput: the request can't be computed; no gradient has changed.
        """
        work = self.work(adapter, request)
        self._put(adapter)
        for shared in shared_passes(request.data, self.config.token_budget):
            with torch.set_grad_enabled(not request.forward_only):
                summed = work.loss_of(shared, self._logprobs_of(shared))
            if not request.forward_only:
                summed.backward()  # type: ignore[no-untyped-call]
        return work.result()

    @computing
    def run_together(self, works: Sequence[PassWork]) -> list[PassResult]:
        """Compute requests of any runs in as few passes as their tokens need; see `run_pass`."""
        self._put(None)
        layers = linear_layers(self.model)
        for mixed in mixed_passes(works, self.mixed_tokens):
            training = [work for work in mixed.works if not work.request.forward_only]
            with torch.set_grad_enabled(bool(training)), on_segments(layers, mixed.segments):
                logp = self._logprobs_of(mixed.whole)
                losses = [work.loss_of(shared, rows) for work, shared, rows in mixed.divided(logp)]
            if training:
                pairs = zip(mixed.works, losses, strict=True)
                sum(loss for work, loss in pairs if not work.request.forward_only).backward()  # type: ignore[union-attr]
        return [work.result() for work in works]

    def require_mixed(self) -> None:
        """Refuse a base whose layers don't keep a forest's tokens in their order: mixed passes would be wrong."""
        works = []
        for seed in (1, 2):
            adapter = self.new_adapter(AdapterSpec(rank=1, seed=seed))
            with torch.no_grad():
                for matrix in adapter.parameters():
                    matrix.normal_(std=0.1, generator=torch.Generator(self.device).manual_seed(seed))
            ids = (np.arange(8) * 7 + seed) % self.vocabulary
            data = [Datum(own, {TARGETS: own, "weights": np.ones(len(own), np.float32)}) for own in (ids, ids[:5] + 1)]
            works.append(self.work(adapter, PassRequest("", 1, "cross_entropy", data, forward_only=True)))
        together = self.run_together(works)
        bound = MIXED_BOUND if self.config.dtype == "float32" else MIXED_BOUND_IN_LOW_PRECISION
        for work, found in zip(works, together, strict=True):
            for ours, alone in zip(found.logprobs, self.run_pass(work.adapter, work.request).logprobs, strict=True):
                if not np.abs(ours - alone).max() <= bound:
                    raise ConfigError(f"passes=mixed computes something else on {self.source}: use passes=separate")

    def _logprobs_of(self, shared: SharedPass) -> Tensor:
        batch = self.prepare(shared.forest)
        batch.rows = shared.rows.to(self.device)
        return self._logps(self.model, self.compute_hidden(trunk_of(self.model), batch), batch.rows)[0]


def is_attention(layer: str) -> bool:
    """Return whether a layer's name says that it is an attention's; all others count as the MLP's."""
    return any("attn" in part or "attention" in part for part in layer.split("."))


def seed_of(name: str) -> int:
    """Return a seed that follows from a run's name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big")


@dataclass(frozen=True, slots=True)
class MixedPass:
    """Data of several requests, by several adapters, whose products with the base are computed for all rows at once.

    An adapter's products are added to the rows of its own trees, so what a run computes is the same up to rounding as
    in passes of its own, and its gradient reaches its own matrices alone. A prefix that two requests have in common is
    computed for each of them: adapters change it from the first layer on.

    Attributes:
        works: the request of each part; one with many data may have several.
        parts: data of one request, as a pass of their own would have them.
        segments: whose tokens are where; a run's parts are one behind the other.
    """

    works: tuple[PassWork, ...]
    parts: tuple[SharedPass, ...]
    segments: tuple[AdapterSegment, ...]
    whole: SharedPass

    def divided(self, logp: Tensor) -> Iterator[tuple[PassWork, SharedPass, Tensor]]:
        """Yield each request's part with the log-probabilities of its rows."""
        at = 0
        for work, part in zip(self.works, self.parts, strict=True):
            yield work, part, logp[at : at + len(part.rows)]
            at += len(part.rows)


def mixed_passes(works: Sequence[PassWork], budget: int) -> Iterator[MixedPass]:
    """Yield passes of at most `budget` tokens, unless one datum has more: the largest parts first, then what fits."""
    parts = [(work, shared) for work in works for shared in shared_passes(work.request.data, budget)]
    yield from map(_join, fill_bins(parts, lambda part: len(part[1].forest), budget))


def _join(parts: Sequence[tuple[PassWork, SharedPass]]) -> MixedPass:
    order = {key: place for place, key in enumerate(dict.fromkeys(_learner(work) for work, _ in parts))}
    parts = sorted(parts, key=lambda part: order[_learner(part[0])])
    segments, forests, rows, at = list[AdapterSegment](), [], [], 0
    for work, shared in parts:
        end = at + len(shared.forest)
        forests.append(_shift(shared.forest, at))
        rows.append(_shift(shared.rows, at))
        trained = not work.request.forward_only
        if segments and segments[-1].adapter is work.adapter and segments[-1].trained == trained:
            segments[-1] = dataclasses.replace(segments[-1], end=end)
        else:
            segments.append(AdapterSegment(work.adapter, at, end, trained))
        at = end
    whole = SharedPass(_concatenate(forests), _concatenate(rows), {})
    return MixedPass(tuple(w for w, _ in parts), tuple(s for _, s in parts), tuple(segments), whole)


def _learner(work: PassWork) -> tuple[int, bool]:
    return id(work.adapter), work.request.forward_only


def _shift(given: Any, by: int) -> Any:
    """A forest or rows, `by` tokens further on."""
    names = ("end", "predictor", "target") if isinstance(given, Forest) else ("predictor", "target")
    return dataclasses.replace(given, **{name: getattr(given, name) + by for name in names})


def _concatenate(parts: Sequence[Any]) -> Any:
    """Forests or rows with the same fields as one."""
    names = [each.name for each in dataclasses.fields(parts[0]) if isinstance(getattr(parts[0], each.name), Tensor)]
    return dataclasses.replace(parts[0], **{n: torch.cat([getattr(part, n) for part in parts]) for n in names})
