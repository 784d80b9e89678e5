"""Adapters put into models: merged with their weights, and the weights that they have in full set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import InvalidWeights
from agentrl.models.adapters import SavedAdapter, check_fits, check_full, is_stacked, merged_product, read_adapter


def merge_adapter(base: Path, adapter: Path, out: Path) -> None:
    """Write a whole model folder: the base's weights with an adapter's products added, in the base's precision.

    Raises:
        InvalidInput: the base is no model, or the adapter belongs to another one.
    """
    from agentrl.models.folders import export_folder, read_side_files
    from agentrl.models.loading import load_causal_lm
    from agentrl.models.untrained import Untrained

    saved = read_adapter(adapter)
    files = read_side_files(base)
    model = load_causal_lm(base, "auto", "sdpa")
    add_products(model, saved)
    with export_folder(out, files) as folder:
        model.save_pretrained(folder)
        Untrained(base).write(folder, files)


def add_products(model: Any, adapter: SavedAdapter) -> None:
    """Add an adapter's products to a model's weights, computed in float32, and set those that it holds in full.

    Raises:
        InvalidWeights: the model has no such layer, or one of another shape, or ties other weights.
    """
    import torch

    set_full(model, adapter.full)
    weights = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, (a, b) in adapter.matrices.items():
            weight: Any = weights.get(name if is_stacked(name) else f"{name}.weight")
            check_fits(name, weight, a, b)
            weight.copy_(weight.float() + merged_product(a, b, adapter.shape.scale, weight).to(weight.device))


def set_full(model: Any, full: Mapping[str, Any]) -> None:
    """Set the weights of a model's modules that an adapter has trained in full.

    Raises:
        InvalidWeights: the model has no such weight, or one of another shape, or ties weights that the adapter has not
            as one.
    """
    import torch

    weights = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in full.items():
        check_full(name, weights.get(name), tensor)
        for other, weight in weights.items():
            if weight is weights[name] and (other not in full or not torch.equal(full[other], tensor)):
                raise InvalidWeights(f"the adapter has {name!r} in full, and another {other!r}: its base ties them")
    with torch.no_grad():
        for name, tensor in full.items():
            weights[name].copy_(distribute_as(weights[name], tensor.to(weights[name].device)))


def gather_whole(tensor: Any) -> Any:
    """Return a tensor whole, on every rank that has a shard of it; another tensor itself."""
    return tensor.detach().full_tensor() if hasattr(tensor, "full_tensor") else tensor


def distribute_as(weight: Any, tensor: Any) -> Any:
    """Return a whole tensor, which every rank has, sharded as a weight is; itself, where that is whole."""
    if not hasattr(weight, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, weight.device_mesh, weight.placements, src_data_rank=None)
