"""Adapters on disk, in PEFT's format: `adapter_config.json` beside `adapter_model.safetensors`.

Only what is trained here is read: LoRA on linear layers and on experts that are one tensor of a layer, without dropout
or biases, and modules trained in full beside them. What else a folder holds is refused by name, because leaving it out
would be another model.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentrl.common.untrusted import read_json
from agentrl.errors import InvalidInput, InvalidWeights

SETTINGS = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
EXPERTS = ("gate_up_proj", "down_proj")
"""The tensors of a layer's experts that may have an adapter, in the order in which PEFT wraps them."""
_PREFIX, _WRAPPED = "base_model.model.", ".base_layer"
_NEUTRAL: Mapping[str, Any] = {
    "bias": "none",
    "use_dora": False,
    "use_qalora": False,
    "lora_bias": False,
    "fan_in_fan_out": False,
    "trainable_token_indices": None,
    "layer_replication": None,
    "alora_invocation_tokens": None,
    "arrow_config": None,
    "kasa_config": None,
    "monteclora_config": None,
    "use_bdlora": None,
    "velora_config": None,
}
"""PEFT's settings that change what is computed, with the values that leave it as it is."""
_KEEP_BASE = (True, False, None, "gaussian", "eva")
"""The ways to begin (`init_lora_weights`) that leave the base's weights as they are."""


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
    """An adapter in memory.

    Attributes:
        shape: its settings.
        matrices: A [rank, in] and B [out, rank] by their layers' names; for experts in one tensor, by its name,
            [experts x rank, in] and [out, rank x experts].
        full: the tensors of modules trained in full, by name; one that the base ties has all its names.
    """

    shape: AdapterShape
    matrices: Mapping[str, tuple[Any, Any]]
    full: Mapping[str, Any] = field(default_factory=dict)

    def _tensors(self) -> list[Any]:
        """Its tensors; of those that are tied, one."""
        full = {tensor.data_ptr(): tensor for tensor in self.full.values()}
        return [matrix for pair in self.matrices.values() for matrix in pair] + list(full.values())

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.nbytes for tensor in self._tensors())

    @property
    def dtype(self) -> str:
        """The tensors' dtype, as torch names it ("float32")."""
        return "+".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in self._tensors()}))

    def digest(self) -> str:
        """Return a digest of its scale and tensors, 32 hexadecimal digits; its base's name is no part of it."""
        import torch

        digest = hashlib.blake2b(repr(self.shape.scale).encode(), digest_size=16)
        named: dict[str, tuple[Any, ...]] = {**self.matrices, **{name: (tensor,) for name, tensor in self.full.items()}}
        for name, tensors in sorted(named.items()):
            digest.update(f"{name} {[list(tensor.shape) for tensor in tensors]}".encode())
            for tensor in tensors:
                digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def copied(self) -> SavedAdapter:
        """Return a copy in host memory."""
        pairs = {
            n: (a.detach().to("cpu", copy=True), b.detach().to("cpu", copy=True)) for n, (a, b) in self.matrices.items()
        }
        once = {t.data_ptr(): t.detach().to("cpu", copy=True) for t in {id(t): t for t in self.full.values()}.values()}
        return SavedAdapter(self.shape, pairs, {name: once[tensor.data_ptr()] for name, tensor in self.full.items()})


def write_adapter(folder: Path, adapter: SavedAdapter, linear: Iterable[str]) -> None:
    """Write an adapter as PEFT does.

    Args:
        folder: exists.
        adapter: what is written.
        linear: names of all linear layers but the output layer: where the last parts of the targets' names mean just
            the targets, they are written in their place, as engines want them.
    """
    from safetensors.torch import save_file

    shape, wrappers = adapter.shape, _wrappers(name for name in adapter.matrices if is_stacked(name))
    names = [name for name in adapter.matrices if name not in wrappers]
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
        "modules_to_save": sorted({name.rpartition(".")[0] for name in adapter.full}) or None,
    }
    if wrappers:
        settings["target_parameters"] = sorted(wrappers)
    tensors = {f"{_PREFIX}{name}": tensor.detach().to("cpu", copy=True) for name, tensor in adapter.full.items()}
    for name, (a, b) in adapter.matrices.items():
        where = f"{_PREFIX}{wrappers.get(name, name)}"
        tensors[f"{where}.lora_A.weight"] = a.detach().cpu().contiguous()
        tensors[f"{where}.lora_B.weight"] = b.detach().cpu().contiguous()
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2))
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def is_stacked(name: str) -> bool:
    """Return whether a name is that of a tensor of a layer's experts, and not of a layer."""
    module, _, last = name.rpartition(".")
    return module.endswith(".experts") and last in EXPERTS


def _wrappers(names: Iterable[str]) -> dict[str, str]:
    """Return by the tensors' names where PEFT has their matrices: a module's last tensor wraps those before it."""
    given = set(names)
    found: dict[str, str] = {}
    for module in sorted({name.rpartition(".")[0] for name in given}):
        own = [f"{module}.{last}" for last in EXPERTS if f"{module}.{last}" in given]
        found |= {name: module + _WRAPPED * depth for depth, name in enumerate(reversed(own))}
    return found


def read_adapter(folder: Path) -> SavedAdapter:
    """Read an adapter that PEFT, or `write_adapter`, wrote.

    Raises:
        InvalidInput: there is none, or it is one of a kind that is not computed here.
        InvalidWeights: a matrix is missing, or has another shape than its settings say.
    """
    from safetensors.torch import load_file

    where, settings = _where(folder), _read_settings(folder)
    for name, neutral in _NEUTRAL.items():
        if settings.get(name) not in (neutral, None, False, {}, []):
            raise InvalidInput(f"{where}: {name}={settings[name]!r} ({SETTINGS}) is not computed here")
    if (begun := settings.get("init_lora_weights")) not in _KEEP_BASE:
        raise InvalidInput(
            f"{where}: init_lora_weights={begun!r} ({SETTINGS}) rewrites the base; convert it: PEFT's "
            "save_pretrained(…, path_initial_model_for_weight_conversion=…)"
        )
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
    full = _take_full(where, tuple(settings.get("modules_to_save") or ()), tensors)
    stacked = tuple(settings.get("target_parameters") or ())
    if other := [target for target in stacked if target.rpartition(".")[2] not in EXPERTS]:
        raise InvalidInput(f"{where}: target_parameters={other} ({SETTINGS}) is not computed here")
    layers = {key.removeprefix(_PREFIX).rpartition(".lora_")[0] for key in tensors}
    shape = _one_shape(where, settings, shape, {_tensor_name(layer, stacked) for layer in layers})
    return SavedAdapter(shape, _matrices(where, shape, tensors, stacked), full)


def _one_shape(where: str, settings: Mapping[str, Any], shape: AdapterShape, names: Iterable[str]) -> AdapterShape:
    """Return the settings of all layers; where patterns give some of them another rank or scale, they are refused."""
    found = {"rank": shape.rank, "alpha": shape.alpha}
    for kind, plain in (("rank_pattern", "rank"), ("alpha_pattern", "alpha")):
        patterns = dict(settings.get(kind) or {})
        values = {next((v for p, v in patterns.items() if _matches(p, name)), found[plain]) for name in names}
        if len(values) > 1:
            raise InvalidInput(f"{where}: {kind}={patterns!r} ({SETTINGS}) is not computed here")
        found[plain] = values.pop() if values else found[plain]
    return replace(shape, rank=int(found["rank"]), alpha=float(found["alpha"]))


def _matches(pattern: str, name: str) -> bool:
    return re.match(rf"(.*\.)?({pattern})$", name) is not None


def beside_layers(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the modules that an adapter's folder holds in full, and of experts' tensors with matrices.

    Raises:
        InvalidInput: there is no adapter, or none of LoRA.
    """
    settings = _read_settings(folder)
    return tuple(settings.get("modules_to_save") or ()), tuple(settings.get("target_parameters") or ())


def _where(folder: Path) -> str:
    return f"lora.adapter={str(folder)!r}"


def _read_settings(folder: Path) -> dict[str, Any]:
    try:
        settings = read_json((folder / SETTINGS).read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{_where(folder)} holds no adapter: {SETTINGS} can't be read ({error})") from None
    if not isinstance(settings, dict) or settings.get("peft_type") != "LORA":
        kind = settings.get("peft_type") if isinstance(settings, dict) else None
        raise InvalidInput(f"{_where(folder)}: peft_type={kind!r} ({SETTINGS}); only LORA is computed here")
    return settings


def _take_full(where: str, modules: tuple[str, ...], tensors: dict[str, Any]) -> dict[str, Any]:
    """Take from a file's tensors those of modules trained in full, by the model's names."""
    found = {}
    for key in list(tensors):
        name = key.removeprefix(_PREFIX)
        module, _, last = name.rpartition(".")
        of_module = module.endswith(modules)  # as PEFT compares them: "norm" is also "input_layernorm"
        if of_module and not module.endswith(("lora_A", "lora_B")):
            found[f"{module}.{last}"] = tensors.pop(key)
    for module in modules:
        if not any(name.rpartition(".")[0].endswith(module) for name in found):
            raise InvalidWeights(f"{where} lacks the tensors of {module!r} (modules_to_save)")
    return found


def _matrices(
    where: str, shape: AdapterShape, tensors: Mapping[str, Any], stacked: tuple[str, ...]
) -> dict[str, tuple[Any, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        name, dot, kind = key.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
        if not dot or kind not in ("lora_A", "lora_B") or tensor.ndim != 2:
            raise InvalidWeights(f"{where} holds {key!r}, which is no matrix of an adapter on a linear layer")
        name = _tensor_name(name, stacked)
        rank = tensor.shape[0 if kind == "lora_A" else 1]
        if rank % shape.rank if is_stacked(name) else rank != shape.rank:
            raise InvalidWeights(f"{where}: {key!r} has shape {tuple(tensor.shape)}, and r={shape.rank}")
        found.setdefault(name, {})[kind] = tensor
    if not found:
        raise InvalidWeights(f"{where} holds no matrices")
    for name, pair in found.items():
        if len(pair) < 2:
            missing = ({"lora_A", "lora_B"} - pair.keys()).pop()
            raise InvalidWeights(f"{where} lacks {missing} of {name!r}")
    return {name: (pair["lora_A"], pair["lora_B"]) for name, pair in found.items()}


def _tensor_name(wrapper: str, targets: tuple[str, ...]) -> str:
    """Return the name of the experts' tensor whose matrices PEFT has in a wrapper; another name itself."""
    module = wrapper
    while module.endswith(_WRAPPED):
        module = module.removesuffix(_WRAPPED)
    every = [f"{module}.{last}" for last in EXPERTS] if module.endswith(".experts") else []
    own = [name for name in every if any(f".{name}".endswith(f".{target}") for target in targets)]
    return next((name for name, place in _wrappers(own).items() if place == wrapper), wrapper)


def with_products(tensors: Iterable[tuple[str, Any]], adapter: SavedAdapter) -> Iterator[tuple[str, Any]]:
    """Yield a base's (name, tensor) pairs with an adapter's products added, in float32; the tensors stay as they are.

    Those that the adapter has in full are yielded in the base's place.

    Raises:
        InvalidWeights: the base has no such layer, or one of another shape.
    """
    import torch

    left, full = dict(adapter.matrices), dict(adapter.full)
    for name, tensor in tensors:
        if name in full:
            check_full(name, tensor, full[name])
            yield name, full.pop(name).detach()
            continue
        layer = name.removesuffix(".weight")
        pair = left.pop(layer, None) if layer != name or is_stacked(name) else None
        if pair is not None:
            check_fits(layer, tensor, *pair)
            product = merged_product(*pair, adapter.shape.scale, tensor).to(tensor.device)
            tensor = torch.where(product == 0, tensor, tensor + product)  # what adds nothing changes no bit
        yield name, tensor
    for name, (a, b) in left.items():
        check_fits(name, None, a, b)
    for name, tensor in full.items():  # of tied ones, files have one
        if not any(other not in full and torch.equal(t, tensor) for other, t in adapter.full.items()):
            check_full(name, None, tensor)


def check_full(name: str, weight: Any, tensor: Any) -> None:
    """Raise InvalidWeights where a model lacks a weight that an adapter has in full, or has one of another shape."""
    if weight is None or weight.shape != tensor.shape:
        shape = None if weight is None else tuple(weight.shape)
        raise InvalidWeights(
            f"the adapter has {name!r} in full, of shape {tuple(tensor.shape)}, and the model's is {shape}: it belongs "
            "to another base"
        )


def check_fits(name: str, weight: Any, a: Any, b: Any) -> None:
    """Raise InvalidWeights where a model has no layer of a name, or one whose weight has another shape."""
    shape = None if weight is None else tuple(weight.shape)
    stack = (shape[0],) if shape is not None and len(shape) == 3 else ()
    wanted = (*stack, b.shape[0], a.shape[1])
    if shape != wanted or a.shape[0] != b.shape[1] or (stack and a.shape[0] % stack[0]):
        raise InvalidWeights(
            f"the adapter is on {name!r} of shape {wanted}, and the model's is {shape}: it belongs to another base"
        )


def merged_product(a: Any, b: Any, scale: float, weight: Any = None) -> Any:
    """Return scale · B A, float32 [out, in]: what an adapter adds to its layer's weight.

    Of experts in one tensor, `weight` [experts, out, in], it is the product of each.
    """
    if weight is None or weight.ndim == 2:
        return (b.float() @ a.float()) * scale
    experts = weight.shape[0]
    each = b.float().reshape(b.shape[0], -1, experts).permute(2, 0, 1)
    return (each @ a.float().reshape(experts, -1, a.shape[1])) * scale
