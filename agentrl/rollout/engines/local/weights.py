"""Loading named tensors into a model in place: all of them or none.

Files name every expert's matrices by themselves, and so does whoever publishes as files do; transformers holds a
layer's experts in two tensors. So those have places inside them by the files' names, beside their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import EngineError, nearest
from agentrl.models.vision_families import FAMILIES
from agentrl.rollout.engines.folder import tensors


def load_weights(model: Any, weights: Iterable[tuple[str, Any]]) -> None:
    """Copy (Hugging Face name, tensor) pairs into a transformers model.

    Names may come with or without those that are tied to another (`lm_head.weight`); experts may come one by one,
    as files have them, or together, as transformers has them; buffers that files hold may come or stay as they are.
    Tensors of models that see may have the files' names, where transformers has others.
    Everything is checked before anything is copied.

    Raises:
        EngineError: a name is unknown, given twice or missing, or a shape differs.
    """
    own = dict(model.named_parameters(remove_duplicate=False))
    inside = {name: single_experts(model, name, parameter) for name, parameter in own.items()}
    places: dict[str, Tensor] = {**model.state_dict(), **own}
    for parts in inside.values():
        places |= parts
    given: dict[str, Any] = {}
    theirs = {other: name for name in places for other in _other_names(model, name) if other not in places}
    for name, tensor in weights:
        name = theirs.get(name, name)
        if name in given:
            raise EngineError(f"weights name {name!r} twice")
        if name not in places:
            guess = nearest(name, places)
            raise EngineError(
                f"weights hold {name!r}, which the model lacks" + (f"; nearest: {guess!r}" if guess else "")
            )
        if tuple(tensor.shape) != tuple(places[name].shape):
            raise EngineError(f"weights hold {name!r} of shape {tuple(tensor.shape)}, not {tuple(places[name].shape)}")
        given[name] = tensor
    covered = {parameter.data_ptr() for name, parameter in own.items() if name in given}
    missing: list[str] = []
    for name, parameter in own.items():
        come = [part for part in inside[name] if part in given]
        if come and name in given:
            raise EngineError(f"weights hold {name!r} and {come[0]!r}, which is a part of it")
        if parameter.data_ptr() not in covered:
            missing += [part for part in inside[name] if part not in given] if come else [name]
    if missing:
        rest = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise EngineError(f"weights lack {', '.join(map(repr, missing[:3]))}{rest}")
    with torch.no_grad():
        for name, tensor in given.items():
            places[name].copy_(tensor)


def names_in_files(model: Any, folder: Path) -> dict[str, str]:
    """Return the names of the model's tensors in a folder's files, where transformers has others."""
    others = {name: found for name in model.state_dict() if (found := _other_names(model, name))}
    held = tensors(folder) if others else {}
    return {name: other for name, found in others.items() if name not in held for other in found if other in held}


def _other_names(model: Any, name: str) -> list[str]:
    family = FAMILIES.get(model.config.model_type)
    return [] if family is None else family.names_in_files(name)


def single_experts(model: Any, name: str, parameter: Tensor) -> dict[str, Tensor]:
    """Return the places of single experts in a tensor of a layer's, by the files' names; nothing for others.

    Args:
        model: of transformers.
        name: the tensor's own, in the model.
        parameter: the tensor.
    """
    stem, _, last = name.rpartition(".")
    if not stem.endswith(".experts") or parameter.ndim != 3:
        return {}
    experts = model.get_submodule(stem)
    if getattr(experts, "is_transposed", True) or not getattr(experts, "is_concatenated", False):
        return {}  # laid out in another way: such experts come whole
    found: dict[str, Tensor] = {}
    for index, own in enumerate(parameter.detach()):
        if last == "gate_up_proj":
            gate, up = own.chunk(2)
            found |= {f"{stem}.{index}.gate_proj.weight": gate, f"{stem}.{index}.up_proj.weight": up}
        elif last == "down_proj":
            found[f"{stem}.{index}.down_proj.weight"] = own
    return found
