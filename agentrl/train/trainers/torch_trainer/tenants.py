"""Several adapters on one base: trainers of a process whose frozen weights are the same tensors, held once.

Each trainer has modules of its own around them, with its own adapter, so its passes are those that it would compute
alone, bit for bit.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from agentrl import watchdog
from agentrl.config import AlgoConfig
from agentrl.errors import ConfigError, InvalidInput
from agentrl.models import vision
from agentrl.models.adapters import AdapterShape, SavedAdapter
from agentrl.train.forest.forest import PAIRS, Forest
from agentrl.train.forest.packing import fill_bins
from agentrl.train.trainers.lora import Lora, add, is_adapter, linear_layers, list_adapted, remove
from agentrl.train.trainers.lora_full import full_names
from agentrl.train.trainers.lora_quantised import PackedLinear
from agentrl.train.trainers.segments import AdapterSegment, on_segments
from agentrl.train.trainers.torch_trainer.batch import TorchBatch, prepare_batch, trunk_of
from agentrl.train.trainers.torch_trainer.settings import TorchConfig


class BaseTenant:
    """The part of a `TorchTrainer` that computes with another one's base; see `BaseSharing`."""

    model: nn.Module
    lora: Lora | None
    source: Path
    config: TorchConfig
    device: torch.device
    version: int
    lender: BaseTenant | None = None
    """The trainer whose base it is; None: its own."""
    mixed: MixedPasses | None = None
    """Makes its gradient passes together with other tenants' meanwhile."""

    def compute_hidden(self, trunk: nn.Module, batch: TorchBatch) -> Tensor:
        """Return a forest's last hidden states: [T, d]."""
        raise NotImplementedError

    def begin(self, algo: AlgoConfig, total_steps: int, *, whole: bool = False) -> None:
        raise NotImplementedError

    def require_lora(self) -> Lora:
        """Return the adapter.

        Raises:
            InvalidInput: the trainer trains a whole model.
        """
        if self.lora is None:
            raise InvalidInput("the trainer has no adapter: lora.rank is 0")
        return self.lora

    @property
    def shared_base(self) -> bool:
        """True where the base is another trainer's."""
        return self.lender is not None

    def share_base(self, other: object) -> bool:
        if not isinstance(other, BaseTenant) or self.lora is None or other.lora is None:
            return False
        kinds = [
            (each.source, each.device, each.config.dtype, each.lora.changed, each.lora.config.quantize)
            for each in (self, other)
            if each.lora
        ]
        if kinds[0] != kinds[1]:
            return False
        share_frozen(self.model, other.model)
        self.lender = other
        return True

    def follow_base(self, algo: AlgoConfig, total_steps: int) -> None:
        assert self.lender is not None
        self.begin(algo, total_steps, whole=True)
        self.version = self.lender.version

    def held(self) -> SavedAdapter:
        """Return the adapter that it computes with."""
        lora = self.require_lora()
        matrices = {name: (layer.lora_A, layer.lora_B) for name, layer in list_adapted(self.model)}
        return SavedAdapter(lora.shape, cast(Any, matrices))

    @contextmanager
    def mixing(self, others: Sequence[object]) -> Iterator[None]:
        tenants = [self, *(cast(BaseTenant, other) for other in others)]
        passes = MixedPasses(tenants, self.config.token_budget)
        for tenant in tenants:
            tenant.mixed = passes
        try:
            yield
        finally:
            for tenant in tenants:
                tenant.mixed = None

    @torch.no_grad()
    def prove_mixing(self) -> None:
        """Raise where layers don't keep a forest's tokens in order, or see images: mixed passes would be wrong."""
        if vision.family_of(trunk_of(self.model)) is not None:
            raise ConfigError(f"lora.tenants=mixed: {self.source} sees images: use separate")
        with without_adapter(self.model) as layers:
            adapters = [_random_adapter(layers, seed, self.device) for seed in (1, 2)]
            trees = [_path(torch.arange(8) * 7 % 29 + first) for first in (1, 2)]

            def compute(*of: int) -> Tensor:
                segments = [AdapterSegment(adapters[which], 8 * at, 8 * at + 8) for at, which in enumerate(of)]
                batch = prepare_batch(join_trees([trees[which] for which in of]), self.device)
                with on_segments(layers, segments):
                    return self.compute_hidden(trunk_of(self.model), batch)[: 8 * len(of)].float()

            far = (compute(0, 1) - torch.cat([compute(0), compute(1)])).abs().max()
            if not far <= (1e-3 if self.config.dtype == "float32" else 0.3):
                raise ConfigError(f"lora.tenants=mixed computes something else on {self.source}: use separate")

    def end_mixing(self) -> None:
        assert self.mixed is not None
        self.mixed.leave(self)


def _random_adapter(layers: Mapping[str, nn.Linear], seed: int, device: torch.device) -> SavedAdapter:
    draw = torch.Generator().manual_seed(seed)
    sizes = {name: (layer.in_features, layer.out_features) for name, layer in layers.items()}
    matrices = {
        n: (torch.randn(1, i, generator=draw), torch.randn(o, 1, generator=draw)) for n, (i, o) in sizes.items()
    }
    return SavedAdapter(AdapterShape(1, 0.01), {n: (a.to(device), b.to(device)) for n, (a, b) in matrices.items()})


def _path(ids: Tensor) -> Forest:
    """A tree that is a path, of which no token is trained."""
    zero, none = torch.zeros_like(ids), ids[:0]
    real = torch.zeros(len(ids))
    at = torch.arange(len(ids))
    return Forest(ids, at, zero + len(ids), zero, zero, zero, real, real, real, real, zero, none, none)


def share_frozen(model: nn.Module, lender: nn.Module) -> None:
    """Have a model compute with another one's weights in place of its own, but for what either of them trains."""
    own = {*full_names(model), *full_names(lender)}
    theirs = dict(lender.named_parameters(remove_duplicate=False))
    for path, module in model.named_modules():
        names = {name: f"{path}.{name}".lstrip(".") for name in module._parameters}
        module._parameters.update(
            {n: theirs[w] for n, w in names.items() if w in theirs and not is_adapter(w) and w not in own}
        )
        if isinstance(module, PackedLinear):
            module._buffers.update(lender.get_submodule(path)._buffers)


Loss = Callable[[TorchBatch, Tensor], Tensor]
"""(a forest as it is computed, its last hidden states [T, d]) -> its loss."""
_Work = tuple[BaseTenant, TorchBatch, Loss]


class MixedPasses:
    """Gradient passes of several tenants of a base, made together: the base's products are computed for all their rows.

    Each tenant takes its step in a thread of its own. Where all that have not left wait with forests, one of them
    computes those of all, in passes of as many tokens as one tenant's; each one's gradient reaches its own matrices
    alone.

    Args:
        tenants: of the same base; none has modules in full, or matrices of experts.
        budget: the most tokens of a pass, unless a forest has more.
    """

    def __init__(self, tenants: Sequence[BaseTenant], budget: int) -> None:
        self.budget = budget
        self._changed = threading.Condition()
        self._present = list(tenants)
        self._asked: dict[int, tuple[BaseTenant, Sequence[TorchBatch], Loss]] = {}
        self._answers: dict[int, float | BaseException] = {}

    def accumulate(self, tenant: BaseTenant, batches: Sequence[TorchBatch], loss_of: Loss) -> float:
        """Add the gradient of a tenant's forests to its own; returns their loss."""
        with self._changed:
            self._asked[id(tenant)] = tenant, batches, loss_of
            while id(tenant) not in self._answers:
                if all(id(each) in self._asked for each in self._present):
                    self._compute()
                    self._changed.notify_all()
                else:
                    self._changed.wait()
            answer = self._answers.pop(id(tenant))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def leave(self, tenant: BaseTenant) -> None:
        """Wait for a tenant no more: its step has ended, or failed."""
        with self._changed:
            self._present = [each for each in self._present if each is not tenant]
            self._changed.notify_all()

    def _compute(self) -> None:
        asked, self._asked = self._asked, {}
        losses = dict.fromkeys(asked, 0.0)
        works = [(tenant, b, loss) for tenant, batches, loss in asked.values() for b in batches]
        try:
            for part in fill_bins(works, lambda work: len(work[1].forest), self.budget):
                for (tenant, _, _), loss in zip(part, _backward_together(part), strict=True):
                    losses[id(tenant)] += loss
            self._answers.update(losses)
        except Exception as error:  # each tenant's step fails with it
            self._answers.update(dict.fromkeys(asked, error))


def _backward_together(works: Sequence[_Work]) -> list[float]:
    watchdog.progress()
    lender = works[0][0].lender or works[0][0]
    adapters = {id(tenant): tenant.held() for tenant, _, _ in works}
    ends = list(itertools.accumulate(len(batch.forest) for _, batch, _ in works))
    starts = [0, *ends[:-1]]
    segments = [AdapterSegment(adapters[id(w[0])], at, end) for w, at, end in zip(works, starts, ends, strict=True)]
    joint = prepare_batch(join_trees([batch.forest for _, batch, _ in works]), lender.device)
    with without_adapter(lender.model) as layers, on_segments(layers, segments):
        hidden = lender.compute_hidden(trunk_of(lender.model), joint)
        losses = [loss_of(b, hidden[at:end]) for (_, b, loss_of), at, end in zip(works, starts, ends, strict=True)]
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    return [float(loss.detach()) for loss in losses]


def join_trees(forests: Sequence[Forest]) -> Forest:
    """Return the trees of several forests as one, of which no token is trained."""
    every = [each.name for each in dataclasses.fields(Forest) if each.default is dataclasses.MISSING]
    whole = [name for name in every if name not in (*PAIRS, "fields")]
    found: dict[str, Any] = {name: torch.cat([getattr(forest, name) for forest in forests]) for name in whole}
    at = itertools.accumulate((len(forest) for forest in forests[:-1]), initial=0)
    found["end"] = torch.cat([forest.end + first for forest, first in zip(forests, at, strict=True)])
    none = found["end"][:0]
    return Forest(**found, predictor=none, target=none)


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[dict[str, nn.Linear]]:
    """Take a model's adapter away within the block; yields its linear layers by name."""
    own = [(layer, layer.lora_A, layer.lora_B, layer.lora_scale) for _, layer in list(list_adapted(model))]
    for layer, *_ in own:
        remove(layer)
    try:
        yield linear_layers(model)
    finally:
        for layer, a, b, scale in own:
            add(layer, cast(nn.Parameter, a), cast(nn.Parameter, b), cast(float, scale))
