"""Adapters on experts that a layer holds as one tensor: each expert has matrices of its own, stacked as PEFT does it.

transformers computes with the tensor in one of several ways. So while its module computes, the sum of the tensor and
the products stands in the tensor's place. It is made anew in each pass, and is a second copy of a layer's experts;
`trainer.recompute=full` frees it before the next layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from torch import Tensor, nn

from agentrl.errors import ConfigError
from agentrl.models.adapters import EXPERTS, merged_product

A, B = "lora_A", "lora_B"
MARK = "__"
"""Between the name of a tensor and that of its matrices, which are parameters of the same module."""


def stacked_tensors(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return by their whole names the tensors that hold a layer's experts: their modules, and their names there."""
    found = {}
    for name, module in model.named_modules():
        if name.endswith(".experts") and not getattr(module, "is_transposed", True):
            for own in EXPERTS:
                tensor = module._parameters.get(own)
                if tensor is not None and tensor.ndim == 3:
                    found[f"{name}.{own}"] = (module, own)
    return found


def refuse_columns(model: nn.Module) -> None:
    """Raise ConfigError where a model's experts are laid out as no products are computed."""
    experts = [module for name, module in model.named_modules() if name.endswith(".experts")]
    if any(getattr(module, "is_transposed", False) for module in experts):
        raise ConfigError(
            "lora.experts: the model's experts are laid out in columns ([experts, in, out], as GPT-OSS has them), for "
            "which no products are computed: leave it out, and the adapter is on the other layers"
        )


def adapted_experts(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield the tensors that have an adapter: their whole names, their modules, and their names there."""
    for name, module in model.named_modules():
        for own in EXPERTS:
            if f"{own}{MARK}{A}" in module._parameters:
                yield f"{name}.{own}", module, own


def matrices_of(module: nn.Module, own: str) -> tuple[Tensor, Tensor]:
    """Return a tensor's matrices, A [experts x rank, in] and B [out, rank x experts]."""
    a, b = (module._parameters[f"{own}{MARK}{kind}"] for kind in (A, B))
    return cast(Tensor, a), cast(Tensor, b)


def product_of(module: nn.Module, own: str) -> Tensor:
    """Return what an adapter adds to a tensor, float32 [experts, out, in]."""
    tensor = cast(Tensor, module._parameters[own])
    return cast(Tensor, merged_product(*matrices_of(module, own), cast(float, module.lora_scale), tensor))


def add_to_experts(module: nn.Module, own: str, a: nn.Parameter, b: nn.Parameter, scale: float) -> None:
    """Give a tensor without an adapter these matrices, as parameters of its module."""
    module.register_parameter(f"{own}{MARK}{A}", a)
    module.register_parameter(f"{own}{MARK}{B}", b)
    module.lora_scale = scale  # type: ignore[assignment]
    if _put_sums not in module._forward_pre_hooks.values():
        module.register_forward_pre_hook(_put_sums)
        module.register_forward_hook(_take_sums, always_call=True)


def remove_from_experts(model: nn.Module) -> None:
    """Take the adapters of a model's experts away; their tensors stay as they are."""
    for _, module, own in list(adapted_experts(model)):
        for kind in (A, B):
            del module._parameters[f"{own}{MARK}{kind}"]
        for hooks, function in ((module._forward_pre_hooks, _put_sums), (module._forward_hooks, _take_sums)):
            for key in [key for key, hook in hooks.items() if hook is function]:
                del hooks[key]


def _put_sums(module: nn.Module, _: Any) -> None:
    for own in EXPERTS:
        if f"{own}{MARK}{A}" in module._parameters:
            tensor = cast(Tensor, module._parameters[own])
            module.__dict__[own] = tensor + product_of(module, own).to(tensor.dtype)  # found before the parameter


def _take_sums(module: nn.Module, *_: Any) -> None:
    for own in EXPERTS:
        module.__dict__.pop(own, None)
