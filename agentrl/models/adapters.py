"""Adapters on disk, in PEFT's format: `adapter_config.json` beside `adapter_model.safetensors`.

Only what is trained here is read: LoRA on linear layers, without dropout, biases or layers trained in full. What else
a folder holds is refused by name, because leaving it out would be another model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.common.untrusted import read_json
from agentrl.errors import InvalidInput, InvalidWeights

SETTINGS = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_NEUTRAL: Mapping[str, Any] = {
    "bias": "none",
    "modules_to_save": None,
    "use_dora": False,
    "use_qalora": False,
    "lora_bias": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "fan_in_fan_out": False,
    "target_parameters": None,
    "trainable_token_indices": None,
    "layer_replication": None,
    "alora_invocation_tokens": None,
}
"""PEFT's settings that change what is computed, with the values that leave it as it is."""


@dataclass(frozen=True, slots=True)
class AdapterShape:
    """An adapter's settings.

    Attributes:
        rank: of both matrices.
        alpha: numerator of the scale.
        rslora: the scale's denominator is the rank's root.
        base: the base model, as the folder names it.
    """

    rank: int
    alpha: float
    rslora: bool = False
    base: str | None = None

    @property
    def scale(self) -> float:
        """The factor of an adapter's product."""
        return self.alpha / (self.rank**0.5 if self.rslora else self.rank)


@dataclass(frozen=True, slots=True)
class SavedAdapter:
    """An adapter in memory: its shape, and A [rank, in] and B [out, rank] by their layers' names."""

    shape: AdapterShape
    matrices: Mapping[str, tuple[Any, Any]]

    @property
    def nbytes(self) -> int:
        """Bytes of its matrices."""
        return sum(matrix.nbytes for pair in self.matrices.values() for matrix in pair)

    @property
    def dtype(self) -> str:
        """The matrices' dtype, as torch names it ("float32")."""
        return "+".join(sorted({str(m.dtype).removeprefix("torch.") for p in self.matrices.values() for m in p}))

    def digest(self) -> str:
        """Return a digest of its scale and matrices, 32 hexadecimal digits; its base's name is no part of it."""
        import torch

        digest = hashlib.blake2b(repr(self.shape.scale).encode(), digest_size=16)
        for name, pair in sorted(self.matrices.items()):
            digest.update(f"{name} {[list(matrix.shape) for matrix in pair]}".encode())
            for matrix in pair:
                digest.update(matrix.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def copied(self) -> SavedAdapter:
        """Return a copy in host memory."""
        pairs = {
            n: (a.detach().to("cpu", copy=True), b.detach().to("cpu", copy=True)) for n, (a, b) in self.matrices.items()
        }
        return SavedAdapter(self.shape, pairs)


def write_adapter(folder: Path, adapter: SavedAdapter, linear: Iterable[str]) -> None:
    """Write an adapter as PEFT does.

    Args:
        folder: exists.
        adapter: what is written.
        linear: names of all linear layers but the output layer: where the last parts of the targets' names mean just
            the targets, they are written in their place, as engines want them.
    """
    from safetensors.torch import save_file

    shape, names = adapter.shape, list(adapter.matrices)
    last = {name.rpartition(".")[2] for name in names}
    short = {name for name in linear if name.rpartition(".")[2] in last} == set(names)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": shape.base,
        "r": shape.rank,
        "lora_alpha": shape.alpha,
        "lora_dropout": 0.0,
        "use_rslora": shape.rslora,
        "target_modules": sorted(last) if short else sorted(names),
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
    }
    tensors = {}
    for name, (a, b) in adapter.matrices.items():
        tensors[f"{_PREFIX}{name}.lora_A.weight"] = a.detach().cpu().contiguous()
        tensors[f"{_PREFIX}{name}.lora_B.weight"] = b.detach().cpu().contiguous()
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2))
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def read_adapter(folder: Path) -> SavedAdapter:
    """Read an adapter that PEFT, or `write_adapter`, wrote.

    Raises:
        InvalidInput: there is none, or it is one of a kind that is not computed here.
        InvalidWeights: a matrix is missing, or has another shape than its settings say.
    """
    from safetensors.torch import load_file

    where = f"lora.adapter={str(folder)!r}"
    try:
        settings = read_json((folder / SETTINGS).read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{where} holds no adapter: {SETTINGS} can't be read ({error})") from None
    if not isinstance(settings, dict) or settings.get("peft_type") != "LORA":
        kind = settings.get("peft_type") if isinstance(settings, dict) else None
        raise InvalidInput(f"{where}: peft_type={kind!r} ({SETTINGS}); only LORA is computed here")
    for name, neutral in _NEUTRAL.items():
        if settings.get(name) not in (neutral, None, False, {}, []):
            raise InvalidInput(f"{where}: {name}={settings[name]!r} ({SETTINGS}) is not computed here")
    try:
        shape = AdapterShape(
            int(settings["r"]),
            float(settings["lora_alpha"]),
            bool(settings.get("use_rslora")),
            settings.get("base_model_name_or_path"),
        )
        tensors = load_file(folder / WEIGHTS)
    except Exception as error:  # missing keys, missing files, broken files
        raise InvalidInput(f"{where} can't be read: {type(error).__name__}: {error}") from None
    return SavedAdapter(shape, _matrices(where, shape, tensors))


def _matrices(where: str, shape: AdapterShape, tensors: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        name, dot, kind = key.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
        if not dot or kind not in ("lora_A", "lora_B") or tensor.ndim != 2:
            raise InvalidWeights(f"{where} holds {key!r}, which is no matrix of an adapter on a linear layer")
        if tensor.shape[0 if kind == "lora_A" else 1] != shape.rank:
            raise InvalidWeights(f"{where}: {key!r} has shape {tuple(tensor.shape)}, and r={shape.rank}")
        found.setdefault(name, {})[kind] = tensor
    if not found:
        raise InvalidWeights(f"{where} holds no matrices")
    for name, pair in found.items():
        if len(pair) < 2:
            missing = ({"lora_A", "lora_B"} - pair.keys()).pop()
            raise InvalidWeights(f"{where} lacks {missing} of {name!r}")
    return {name: (pair["lora_A"], pair["lora_B"]) for name, pair in found.items()}


def merge_adapter(base: Path, adapter: Path, out: Path) -> None:
    """Write a whole model folder: the base's weights with an adapter's products added, in the base's precision.

    Raises:
        InvalidInput: the base is no model, or the adapter belongs to another one.
    """
    from agentrl.models.folders import exported, read_side_files
    from agentrl.models.loading import load_causal_lm
    from agentrl.models.untrained import Untrained

    saved = read_adapter(adapter)
    files = read_side_files(base)
    model = load_causal_lm(base, "auto", "sdpa")
    add_products(model, saved)
    with exported(out, files) as folder:
        model.save_pretrained(folder)
        Untrained(base).write(folder, files)


def add_products(model: Any, adapter: SavedAdapter) -> None:
    """Add an adapter's products to a model's weights; computed in float32.

    Raises:
        InvalidWeights: the model has no such layer, or one of another shape.
    """
    import torch

    layers = dict(model.named_modules())
    with torch.no_grad():
        for name, (a, b) in adapter.matrices.items():
            weight: Any = getattr(layers.get(name), "weight", None)
            check_fits(name, weight, a, b)
            weight.copy_(weight.float() + merged_product(a, b, adapter.shape.scale).to(weight.device))


def with_products(tensors: Iterable[tuple[str, Any]], adapter: SavedAdapter) -> Iterator[tuple[str, Any]]:
    """Yield a base's (name, tensor) pairs with an adapter's products added, in float32; the tensors stay as they are.

    Raises:
        InvalidWeights: the base has no such layer, or one of another shape.
    """
    import torch

    left = dict(adapter.matrices)
    for name, tensor in tensors:
        layer = name.removesuffix(".weight")
        pair = left.pop(layer, None) if layer != name else None
        if pair is not None:
            check_fits(layer, tensor, *pair)
            product = merged_product(*pair, adapter.shape.scale).to(tensor.device)
            tensor = torch.where(product == 0, tensor, tensor + product)  # what adds nothing changes no bit
        yield name, tensor
    for name, (a, b) in left.items():
        check_fits(name, None, a, b)


def check_fits(name: str, weight: Any, a: Any, b: Any) -> None:
    """Raise InvalidWeights where a model has no layer of a name, or one whose weight has another shape."""
    if weight is None or tuple(weight.shape) != (b.shape[0], a.shape[1]):
        shape = None if weight is None else tuple(weight.shape)
        raise InvalidWeights(
            f"the adapter is on {name!r} of shape {(b.shape[0], a.shape[1])}, and the model's is {shape}: it belongs "
            "to another base"
        )


def merged_product(a: Any, b: Any, scale: float) -> Any:
    """Return scale · B A, float32 [out, in]: what an adapter adds to its layer's weight."""
    return (b.float() @ a.float()) * scale
