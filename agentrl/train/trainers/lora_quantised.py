"""The frozen layers under an adapter in four bits (`lora.quantize`, QLoRA, arXiv:2305.14314), by bitsandbytes.

A run's base is rewritten once, before anything reads it: each linear layer's weight becomes the values that four bits
can hold, in float32 (`quantise_folder`). So the run's own folder is the base of the trainer, of engines, of exports and
of merged models alike, and whoever knows nothing of four bits computes the same. The trainer then holds those weights
packed, and makes each anew where it is used (`pack`). That loses nothing: scales are not quantised again, so a block's
largest value stays exact and packing what was unpacked gives the same bits. It is checked for each layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from agentrl.config.lora import INSTALL_QUANTISER
from agentrl.errors import ConfigError, InvalidWeights, MissingExtra
from agentrl.models.folders import export_folder, read_side_files
from agentrl.train.trainers.lora_full import matching_modules

BLOCK = 64
"""Weights that share a scale."""


def load_library() -> Any:
    """Return bitsandbytes' functions."""
    try:
        from bitsandbytes import functional as library  # type: ignore[import-not-found]
    except ImportError as error:
        raise MissingExtra(
            f"lora.quantize=nf4 computes with bitsandbytes, which can't be imported ({error}): {INSTALL_QUANTISER}"
        ) from error
    return library


class PackedLinear(nn.Linear):
    """A frozen linear layer that holds its weight in four bits; `pack_layer` makes a plain one into it."""

    packed: Tensor
    absmax: Tensor

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weight, float32 [out, in], made anew."""
        return unpack_values(self.packed, self.absmax, (self.out_features, self.in_features))

    def forward(self, x: Tensor) -> Tensor:
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        product: Tensor = _Product.apply(x, self)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias.to(x.dtype)


class _Product(torch.autograd.Function):
    """A product with a packed weight, which is made anew for the backward pass and not kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: PackedLinear) -> Tensor:
        ctx.layer = layer
        return functional.linear(x, layer.weight.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.layer.weight.to(gradient.dtype), None


def pack_values(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a weight in four bits, and the scales of its blocks."""
    library = load_library()
    packed, state = library.quantize_4bit(weight.float().contiguous(), blocksize=BLOCK, quant_type="nf4")
    return packed, state.absmax


def unpack_values(packed: Tensor, absmax: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the weight that four bits and scales are of, float32."""
    library = load_library()
    state = library.QuantState(
        absmax=absmax,
        shape=torch.Size(shape),
        code=library.get_4bit_type("nf4", device=packed.device, blocksize=BLOCK),
        blocksize=BLOCK,
        quant_type="nf4",
        dtype=torch.float32,
    )
    return cast(Tensor, library.dequantize_4bit(packed, state))


def round_values(weight: Tensor) -> Tensor:
    """Return a weight with each value replaced by the nearest that four bits hold, float32."""
    return unpack_values(*pack_values(weight), (weight.shape[0], weight.shape[1]))


def layers_to_pack(model: nn.Module) -> dict[str, nn.Linear]:
    """Return by name the layers that are held in four bits: linear ones, but the output layer and those tied to it."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    ends = [module.weight for module in (head, model.get_input_embeddings()) if module is not None]  # type: ignore[operator]
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear and not any(module.weight is end for end in ends)
    }


@torch.no_grad()
def quantise_folder(folder: Path, full: tuple[str, ...] = ()) -> None:
    """Rewrite a model's folder in place: its linear layers' weights become values that four bits hold, in float32.

    Other weights keep their precision. A folder that has been rewritten stays as it is, bit for bit.

    Args:
        folder: of Hugging Face.
        full: patterns of modules that are trained in full (`lora.full`), and keep their weights.

    Raises:
        MissingExtra: bitsandbytes is not installed.
        InvalidInput: transformers can't load the folder.
    """
    from agentrl.models.untrained import Untrained
    from agentrl.models.vision import load_lm

    load_library()
    files, left = read_side_files(folder), Untrained(folder)
    model = load_lm(folder, "auto", "sdpa")
    kept = set(matching_modules(model, full))
    for layer in set(layers_to_pack(model).values()) - kept:
        layer.weight = nn.Parameter(round_values(layer.weight), requires_grad=False)
    with export_folder(folder, files) as out:
        model.save_pretrained(out)
        left.write(out, files)


def pack(model: nn.Module, source: Path, kept: Iterable[nn.Module] = ()) -> None:
    """Hold the weights of a model's linear layers in four bits; they stay what they are.

    Raises:
        InvalidWeights: a weight has values that four bits don't hold.
    """
    whole = set(kept)
    chosen = {name: layer for name, layer in layers_to_pack(model).items() if layer not in whole}
    if not chosen:
        raise ConfigError(f"lora.quantize=nf4: {source} has no linear layer (torch.nn.Linear) to be held in four bits")
    for name, layer in chosen.items():
        pack_layer(layer, f"{source}: {name}.weight")


@torch.no_grad()
def pack_layer(layer: nn.Linear, where: str) -> None:
    """Make a layer a packed one; see `pack`."""
    packed, absmax = pack_values(layer.weight)
    if not torch.equal(unpack_values(packed, absmax, (layer.out_features, layer.in_features)), layer.weight.float()):
        raise InvalidWeights(
            f"{where} has values that four bits (lora.quantize=nf4) don't hold: engines, which load the folder, "
            "would compute with others than the trainer"
        )
    del layer._parameters["weight"]
    layer.register_buffer("packed", packed, persistent=False)
    layer.register_buffer("absmax", absmax, persistent=False)
    layer.__class__ = PackedLinear


def unpack_layers(model: nn.Module) -> None:
    """Have a model hold all weights in float32, as before `pack`."""
    for layer in model.modules():
        if isinstance(layer, PackedLinear):
            plain: nn.Module = layer
            weight = layer.weight
            del layer._buffers["packed"], layer._buffers["absmax"]
            plain.__class__ = nn.Linear
            plain.register_parameter("weight", nn.Parameter(weight))


def describe_weight(layer: nn.Linear) -> Tensor:
    """Return a layer's weight, or of a packed one an empty tensor of its shape."""
    packed = isinstance(layer, PackedLinear)
    return torch.empty(layer.out_features, layer.in_features, device="meta") if packed else layer.weight


def device_of(layer: nn.Linear) -> torch.device:
    """Return where a layer's weight is."""
    return layer.packed.device if isinstance(layer, PackedLinear) else layer.weight.device


class WholeState(Mapping[str, Tensor]):
    """A model's tensors by name, with the weights of its packed layers, each made when it is asked for.

    Args:
        model: with packed layers or without.
        instead: tensors in the place of the model's.
        device: of the weights that are made; None: where their layers are.
    """

    def __init__(
        self, model: nn.Module, instead: Mapping[str, Tensor] | None = None, *, device: str | None = None
    ) -> None:
        self._state: dict[str, Tensor] = model.state_dict() | dict(instead or {})
        layers = ((name, layer) for name, layer in model.named_modules() if isinstance(layer, PackedLinear))
        self._packed = {f"{name}.weight": layer for name, layer in layers}
        self._device = device

    def __getitem__(self, name: str) -> Tensor:
        layer = self._packed.get(name)
        return self._state[name] if layer is None else layer.weight.to(self._device or layer.packed.device)

    def __iter__(self) -> Iterator[str]:
        yield from self._state
        yield from self._packed

    def __len__(self) -> int:
        return len(self._state) + len(self._packed)
