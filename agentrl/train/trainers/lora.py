"""An adapter on a model's linear layers, trained while the layers themselves are frozen (LoRA, arXiv:2106.09685).

A layer stays the module that it is: its two matrices are parameters of the module itself (`lora_A`, `lora_B`), and a
forward hook adds their product. So the model's names, sharding and copies are as without it. Whoever gets whole
weights gets them merged, in float32; see `merge_adapter`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from agentrl.config import LoraConfig
from agentrl.errors import ConfigError, InvalidInput
from agentrl.models.adapter_merge import distribute_as, gather_whole, set_full
from agentrl.models.adapters import (
    AdapterShape,
    SavedAdapter,
    check_fits,
    is_stacked,
    merged_product,
    read_adapter,
    with_products,
    write_adapter,
)
from agentrl.models.folders import weights_digest, write_side_files
from agentrl.rollout.engines.folder import tensors
from agentrl.train.trainers.lora_experts import (
    MARK,
    A,
    B,
    adapted_experts,
    add_to_experts,
    matrices_of,
    product_of,
    refuse_columns,
    remove_from_experts,
    stacked_tensors,
)
from agentrl.train.trainers.lora_full import choose_names, full_names, mark, matching_modules, names_of, remove_marks
from agentrl.train.trainers.lora_quantised import describe_weight, device_of, unpack_layers


def is_adapter(name: str) -> bool:
    """Return whether a parameter's name is that of an adapter's matrix."""
    return name.rpartition(".")[2].rpartition(MARK)[2] in (A, B)


def layer_weight(name: str) -> str:
    """Return the name of the weight that a parameter belongs to: of an adapter's matrix, its layer's."""
    if not is_adapter(name):
        return name
    stem = name[: -len(A)]
    return stem.removesuffix(MARK) if stem.endswith(MARK) else f"{stem}weight"


class Lora:
    """The adapter of a trainer's settings, attached to its model and removed again.

    Args:
        config: rank, scale, layers; active.
        seed: of the matrices that begin at random.
        source: the base's folder.

    Attributes:
        source: the same, or the one that holds the base since a warm start.
        attached: whether the model has it.
        changed: whether the base may be another than in its folder: the whole model has been trained.
    """

    def __init__(self, config: LoraConfig, seed: int, source: Path) -> None:
        self.config, self.seed = config, seed
        self.origin = self.source = source
        self._digest = ""  # of the source's weights, where it is not the origin
        self.start = read_adapter(Path(config.adapter)) if config.adapter is not None else None
        self.shape = self.start.shape if self.start else AdapterShape(config.rank, config.alpha, config.rslora)
        self.attached = self.changed = False
        self._names: frozenset[str] | None = None  # of the tensors in the base's files

    @property
    def holds_base(self) -> bool:
        """True if a checkpoint needs the base's tensors: its folder does not have them, or has others."""
        return self.changed or not self.attached

    def begin(self, model: nn.Module, *, whole: bool, device: torch.device | None = None) -> None:
        """Merge the adapter, for a phase that trains the whole model; or see to it that there is one."""
        if whole and self.config.quantize != "none":
            raise ConfigError(f"lora.quantize={self.config.quantize}: a base in four bits is not trained as a whole")
        if whole:
            merge(model)
            self.attached, self.changed = False, True
        elif not self.attached:
            self.attach(model, device)

    def attach(self, model: nn.Module, device: torch.device | None = None) -> None:
        """Give a model that has none the adapter: the folder's, or a new one.

        Where the layers' weights are shards, each rank has the whole adapter: it is small, and only its gradients are
        exchanged.

        Args:
            model: the model.
            device: where the matrices are; None: where their layers are.

        Raises:
            ConfigError: a pattern matches no linear layer.
            InvalidWeights: the folder's adapter is on layers that the model lacks.
        """
        layers, experts = linear_layers(model), stacked_tensors(model)
        weights: dict[str, Tensor] = {name: describe_weight(layer) for name, layer in layers.items()}
        weights |= {name: cast(nn.Parameter, module._parameters[own]) for name, (module, own) in experts.items()}
        if self.config.experts or (self.start is not None and any(map(is_stacked, self.start.matrices))):
            refuse_columns(model)
        matrices = self._new(layers, experts) if self.start is None else dict(self.start.matrices)
        for name, pair in matrices.items():
            check_fits(name, weights.get(name), *pair)
            place = device or (device_of(layers[name]) if name in layers else weights[name].device)
            a, b = (nn.Parameter(matrix.to(place, torch.float32, copy=True)) for matrix in pair)
            if name in experts:
                add_to_experts(*experts[name], a, b, self.shape.scale)
            else:
                add(layers[name], a, b, self.shape.scale)
        mark(self.full_modules(model))
        if self.start is not None:
            set_full(model, self.start.full)
        self.attached = True

    def full_modules(self, model: nn.Module) -> list[nn.Module]:
        """Return the modules that are trained in full beside the adapter, by the settings or the folder."""
        if self.start is None:
            return matching_modules(model, self.config.full)
        wanted = {name.rpartition(".")[0] for name in self.start.full}
        return [module for name, module in model.named_modules() if name in wanted]

    def _new(
        self, layers: Mapping[str, nn.Linear], experts: Mapping[str, tuple[nn.Module, str]]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        whole = self.config.full
        names = choose_layers(layers, self.config.targets)
        names = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in whole)]
        if not names:
            raise ConfigError(f"lora.full={list(whole)} leaves no linear layer for an adapter")
        shapes = {name: describe_weight(layers[name]).shape for name in names}
        if self.config.experts:
            if not experts:
                raise ConfigError("lora.experts: no layer of the model has experts in one tensor")
            shapes |= {name: cast(Tensor, module._parameters[own]).shape for name, (module, own) in experts.items()}
        generator = torch.Generator().manual_seed(self.seed)
        found = {}
        for name, (*stack, rows, columns) in shapes.items():
            rank = self.shape.rank * math.prod(stack)
            a = torch.empty(rank, columns, device="cpu")
            if self.config.init == "gaussian":
                a.normal_(std=1 / self.shape.rank, generator=generator)
            else:
                nn.init.kaiming_uniform_(a, a=math.sqrt(5), generator=generator)
            found[name] = (a, torch.zeros(rows, rank))
        return found

    def state(self, model: nn.Module) -> dict[str, Tensor]:
        """Return a checkpoint's tensors: the adapter's, and the base's where its folder does not have them."""
        full = set(full_names(model)) & {name for name, _ in model.named_parameters()}  # of tied ones, one
        return {
            name: tensor
            for name, tensor in model.state_dict().items()
            if self.holds_base or is_adapter(name) or name in full
        }

    def prepare(
        self,
        model: nn.Module,
        source: Callable[[], nn.Module],
        *,
        adapter: bool,
        base: bool,
        device: torch.device | None = None,
    ) -> None:
        """Give the model the tensors that `state` had; the caller loads their contents.

        Args:
            model: with the adapter or without.
            source: loads the base of the trainer's folder.
            adapter: the state had the adapter's.
            base: the state had the base's.
            device: see `attach`.
        """
        detach(model)
        if self.changed and not base:
            model.load_state_dict(source().state_dict())
        self.attached, self.changed = False, base
        if adapter:
            self.attach(model, device)

    def restore(self, model: nn.Module, state: Mapping[str, Tensor], source: Callable[[], nn.Module]) -> None:
        """Make the model what it was when `state` was taken; see `prepare`."""
        adapter = any(map(is_adapter, state))
        own = set(names_of(model, self.full_modules(model)))
        base = any(not is_adapter(name) and name not in own for name in state)
        self.prepare(model, source, adapter=adapter, base=base)
        model.load_state_dict({**model.state_dict(), **state})

    def set_source(self, folder: Path) -> None:
        """Note that this folder holds the base as it is now."""
        self.source, self.changed, self._names = folder, False, None
        self._digest = "" if folder == self.origin else weights_digest(folder)

    def kept_base(self, checkpoint: Path) -> dict[str, str] | None:
        """Return where a checkpoint's base is, from the folder that it is in; None: in itself, or in the origin."""
        if self.holds_base or self.source == self.origin:
            return None
        return {"folder": os.path.relpath(self.source, checkpoint.parent), "digest": self._digest}

    def find_base(self, kept: Mapping[str, str] | None, checkpoint: Path) -> None:
        """Go by the folder that a checkpoint's base is in; `prepare` loads it.

        Raises:
            InvalidInput: it is not there, or holds other weights.
        """
        folder = self.origin if kept is None else Path(os.path.abspath(checkpoint.parent / kept["folder"]))
        if kept is not None and (not folder.is_dir() or weights_digest(folder) != kept["digest"]):
            raise InvalidInput(f"{checkpoint}: the base that its adapter belongs to is not in {folder}, or is another")
        if folder != self.source:
            self.set_source(folder)
            self.changed = True

    def write(
        self, model: nn.Module, state: Mapping[str, Tensor], folder: Path, side_files: Mapping[str, bytes]
    ) -> None:
        """Write the model with its adapter merged, and beside it, in folders, the adapter and a base of its own."""
        model.save_pretrained(folder, state_dict=dict(merge_adapter(state, self.shape.scale)))  # type: ignore[operator]
        inner = folder / "adapter"
        inner.mkdir()
        base = "base" if self.changed else str(self.source.absolute())
        write_adapter(inner, self.saved(model, base, state), linear_layers(model))
        if self.changed:
            own = {name: tensor for name, tensor in state.items() if not is_adapter(name)}
            model.save_pretrained(inner / "base", state_dict=own)  # type: ignore[operator]
            write_side_files(side_files, inner / "base")

    def part(self, model: nn.Module) -> SavedAdapter | None:
        """Return a model's adapter for engines that have its base; None where no folder holds that."""
        if not self.attached or self.changed:
            return None
        found = self.saved(model, str(self.source.absolute()))
        if self._names is None:
            self._names = frozenset(tensors(self.source))
        full = {tensor.data_ptr() for name, tensor in found.full.items() if name in self._names}
        known = all(tensor.data_ptr() in full for tensor in found.full.values())
        held = {name for name in found.matrices if name in self._names or f"{name}.weight" in self._names}
        return found if known and held == found.matrices.keys() else None

    def saved(self, model: nn.Module, base: str, state: Mapping[str, Tensor] | None = None) -> SavedAdapter:
        """Return a model's adapter as files hold it, with its base's name.

        Args:
            model: has the adapter.
            base: the base's name.
            state: its tensors, whole; None: shards are gathered, on all ranks together.
        """
        matrices: dict[str, Any] = {name: (layer.lora_A, layer.lora_B) for name, layer in list_adapted(model)}
        matrices |= {name: matrices_of(module, own) for name, module, own in adapted_experts(model)}
        weights = dict(model.named_parameters(remove_duplicate=False))
        whole: dict[int, Tensor] = {}  # of tied ones, one
        for name in (names := full_names(model)):
            key = id(weights[name])
            if state is None and key not in whole:
                whole[key] = gather_whole(weights[name])
            elif state is not None and name in state:
                whole[key] = state[name]
        full = {name: whole[id(weights[name])] for name in names}
        return SavedAdapter(replace(self.shape, base=base), matrices, full)


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return a language model's linear layers by name, but for its output layer, whose rows are tokens."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head}


def choose_layers(layers: Mapping[str, nn.Linear], patterns: tuple[str, ...]) -> list[str]:
    """Return the names of the layers that patterns match, in the model's order; all, where there is no pattern.

    Raises:
        ConfigError: a pattern matches none, or there is no linear layer.
    """
    if not layers:
        raise ConfigError("lora.rank: the model has no linear layer (torch.nn.Linear) that an adapter could be on")
    return choose_names("lora.targets", patterns or ("*",), list(layers), "linear layers")


def list_adapted(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the layers that have an adapter."""
    for name, module in model.named_modules():
        if A in module._parameters:
            yield name, cast(nn.Linear, module)


@torch.no_grad()
def merge(model: nn.Module) -> nn.Module:
    """Add adapters to the weights of their layers, and remove them; layers in four bits get whole weights first."""
    unpack_layers(model)
    for _, layer in list(list_adapted(model)):
        weight, product = layer.weight, merged_product(layer.lora_A, layer.lora_B, cast(float, layer.lora_scale))
        if not weight.is_meta:  # else it is a layer's description
            _add_in_place(weight, product)
    for _, module, own in adapted_experts(model):
        if not (tensor := cast(Tensor, module._parameters[own])).is_meta:
            _add_in_place(tensor, product_of(module, own))
    detach(model)
    return model


def _add_in_place(weight: Tensor, product: Tensor) -> None:
    """Add a whole product to a weight, or to its shard; what adds nothing changes no bit."""
    product = distribute_as(weight, product)
    weight.copy_(torch.where(product == 0, weight, weight + product))


def detach(model: nn.Module) -> None:
    """Take a model's adapter away; its weights stay as they are."""
    for _, layer in list(list_adapted(model)):
        remove(layer)
    remove_from_experts(model)
    remove_marks(model)


def merge_adapter(state: Mapping[str, Tensor], scale: float) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a model without its adapter's, and with their products added."""
    base = ((name, tensor) for name, tensor in state.items() if not is_adapter(name))
    yield from with_products(base, adapter_in(state, scale))


def adapter_in(state: Mapping[str, Tensor], scale: float) -> SavedAdapter:
    """Return the adapter among a model's tensors by name, with the scale of its products."""
    names = [name for name in state if is_adapter(name) and name.endswith(A)]
    matrices = {layer_weight(n).removesuffix(".weight"): (state[n], state[n[: -len(A)] + B]) for n in names}
    return SavedAdapter(AdapterShape(1, scale), matrices)


def refuse_state_of_adapter(path: Path, state: Mapping[str, Tensor]) -> None:
    """Raise ConfigError where a checkpoint's tensors are an adapter's, for a trainer that has none."""
    if any(map(is_adapter, state)):
        raise ConfigError(f"{path} was saved with an adapter: resume with its lora settings")


def add(layer: nn.Linear, a: nn.Parameter, b: nn.Parameter, scale: float) -> None:
    """Give a layer without an adapter these matrices, as its own parameters."""
    layer.register_parameter(A, a)
    layer.register_parameter(B, b)
    layer.lora_scale = scale  # type: ignore[assignment]
    layer.register_forward_hook(_add_product)


def remove(layer: Any) -> None:
    """Take a layer's adapter away; its weight stays as it is."""
    del layer._parameters[A], layer._parameters[B]
    for hook in [key for key, function in layer._forward_hooks.items() if function is _add_product]:
        del layer._forward_hooks[hook]


def _add_product(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Add scale · (x A') B' to a layer's output, by one product: a sum of its own would need two more tensors."""
    a, b = layer.lora_A, layer.lora_B
    if output.dtype != a.dtype and not torch.is_autocast_enabled(output.device.type):
        a, b = a.to(output.dtype), b.to(output.dtype)  # what FSDP gathered has the precision of the pass
    low = functional.linear(inputs[0], a).flatten(0, -2)
    added = torch.addmm(output.flatten(0, -2), low, b.t(), alpha=layer.lora_scale)
    return added.view(output.shape)
