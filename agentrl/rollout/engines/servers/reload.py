"""Weights as a folder that a server can load: the simplest way to publish, and the one that every engine knows."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agentrl.common.scratch import ScratchFolder
from agentrl.errors import EngineError, require_extra
from agentrl.rollout.engines.folder import ModelFacts, check_tensors, tensors


@contextlib.contextmanager
def write_model(facts: ModelFacts, weights: Iterable[tuple[str, Any]]) -> Iterator[Path]:
    """A temporary folder with these weights and the model's own configuration and tokenizer.

    Raises:
        EngineError: a name is unknown, given twice or missing, or a shape differs.
    """
    with require_extra("train", "safetensors"):
        from safetensors.torch import save_file
    expected = tensors(facts.path)
    given: dict[str, Any] = {}
    for name, tensor in weights:
        if name in given:
            raise EngineError(f"weights name {name!r} twice")
        given[name] = tensor
    check_tensors({name: tensor.shape for name, tensor in given.items()}, expected, facts.tied)
    with ScratchFolder() as folder:
        for file in facts.path.iterdir():
            weights_of = file.suffix in (".safetensors", ".bin") or file.name.endswith(".index.json")
            if file.is_file() and not weights_of:
                shutil.copy(file, folder)
        kept = {name: given[name].detach().contiguous().cpu() for name in expected if name in given}
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
        yield folder
