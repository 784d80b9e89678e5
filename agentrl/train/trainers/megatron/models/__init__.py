"""Hugging Face models on Megatron-core: built, filled and written out again, under any sharding.

    hf = read_config(folder)                         # transformers' configuration, no foreign code
    family = family_of(hf)                           # or by name, or by import path
    chunks = build(family, hf, sequence_parallel=True)    # this rank's part
    load(chunks, folder, family)                     # slices of the files, nothing whole
    for name, tensor in export(chunks, family):      # whole tensors, one at a time
        …

Megatron's parallel state must be initialised before `build`; without a GPU, `..cpu.install` comes first of all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.train.trainers.megatron.models.assembly import build, padded_vocabulary, transformer_config
    from agentrl.train.trainers.megatron.models.family import FAMILIES, Family, family_of, read_config, register
    from agentrl.train.trainers.megatron.models.weights import export, load

_WHERE = {
    **dict.fromkeys(("build", "padded_vocabulary", "transformer_config"), "assembly"),
    **dict.fromkeys(("FAMILIES", "Family", "family_of", "read_config", "register"), "family"),
    **dict.fromkeys(("export", "load"), "weights"),
}
"""Imported on first use: families and layouts are read where Megatron-core is not installed, or not yet wanted."""


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


__all__ = [
    "FAMILIES",
    "Family",
    "build",
    "export",
    "family_of",
    "load",
    "padded_vocabulary",
    "read_config",
    "register",
    "transformer_config",
]
