"""Slices of tensors from a folder of safetensors files, without reading the rest.

Block-quantised weights (a `weight_scale_inv` beside the weight: DeepSeek V3's and Kimi K2's own release) are
widened as they are read, slice by slice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from agentrl.errors import InvalidInput, InvalidWeights
from agentrl.models.tensors import is_dropped
from agentrl.train.trainers.megatron.models.family import Family
from agentrl.train.trainers.megatron.models.layouts import Piece, Shape

_LAYER = re.compile(r"^(model\.(?:\w+\.)?layers\.)(\d+)\.")  # of one that sees, model.text_model.layers
_EXPERT = re.compile(r"\.experts\.\d+\.")
_SCALE = "_scale_inv"
_MXFP4 = "_blocks"
_BLOCK = (128, 128)


class TensorReader:
    """A folder's tensors; files are opened on first use, and closed together."""

    def __init__(self, folder: Path, drawn: Mapping[str, Tensor] | None = None) -> None:
        self.folder, self.drawn = folder, drawn or {}
        self._files: dict[str, Any] = {}
        self._stack = ExitStack()
        self._where = self._index()

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def count(self) -> int:
        """The number of tensors."""
        return len(self._where)

    def _index(self) -> dict[str, str]:
        index = self.folder / "model.safetensors.index.json"
        if index.is_file():
            return dict(json.loads(index.read_text())["weight_map"])
        single = "model.safetensors"
        if not (self.folder / single).is_file():
            raise InvalidInput(f"{self.folder} holds no model.safetensors and no index of several")
        return dict.fromkeys(self._open(single).keys(), single)

    def _open(self, file: str) -> Any:
        if file not in self._files:
            from safetensors import safe_open

            if not (self.folder / file).is_file():
                raise InvalidInput(f"{self.folder} lacks {file}, which its index names")
            self._files[file] = self._stack.enter_context(safe_open(self.folder / file, framework="pt"))
        return self._files[file]

    def read(self, name: str, shape: Shape, piece: Piece) -> Tensor:
        """Read a piece of the tensor called `name`."""
        if name + _MXFP4 in self._where:
            raise InvalidInput(
                f"{self.folder}: {name} is quantised (MXFP4), which can't be trained; "
                "load the model with Mxfp4Config(dequantize=True) and save it in bfloat16 first"
            )
        if name not in self._where and name in self.drawn:
            return self.drawn[name].narrow(piece.dim, piece.start, len(piece))
        if name not in self._where:
            raise InvalidWeights(f"{self.folder} lacks the tensor {name}")
        entry = self._open(self._where[name]).get_slice(name)
        if (found := tuple(entry.get_shape())) != shape:
            raise InvalidWeights(f"{self.folder}: {name} has shape {found}; the configuration asks for {shape}")
        interval = slice(piece.start, piece.stop)
        part = cast(Tensor, entry[interval] if piece.dim == 0 else entry[:, interval])
        if name + _SCALE in self._where:
            return self._widen(name, part, piece)
        if not part.is_floating_point() or part.element_size() < 2:
            raise InvalidWeights(
                f"{self.folder}: {name} has the type {str(part.dtype).removeprefix('torch.')} and no scales "
                f"({name}{_SCALE}): it is quantised in a way that is not read; use a copy in bfloat16"
            )
        return part

    def _widen(self, name: str, part: Tensor, piece: Piece) -> Tensor:
        """A part of a weight times the scale of its block, [rows, columns] -> float32."""
        scale = self._open(self._where[name + _SCALE]).get_tensor(name + _SCALE).float()
        for dim, (size, block) in enumerate(zip(part.shape, self._blocks(), strict=True)):
            start = piece.start if dim == piece.dim else 0
            scale = scale.index_select(dim, torch.arange(start, start + size) // block)
        widened: Tensor = part.float() * scale
        return widened

    def _blocks(self) -> tuple[int, int]:
        """Rows and columns that share a scale, by config.json's quantization_config."""
        path = self.folder / "config.json"
        quantised = json.loads(path.read_text()).get("quantization_config") if path.is_file() else None
        rows, columns = (quantised or {}).get("weight_block_size") or _BLOCK
        return int(rows), int(columns)

    def check_known(self, family: Family, config: Any) -> None:
        """Refuse a folder with tensors that no row of the family's table reads: the model would differ."""
        tables = (family.layer, family.outside)
        known = {re.sub(r"\{expert\}", "0", n) for table in tables for layout in table.values() for n in layout.names()}
        unknown = []
        for name in self._where:
            layer = _LAYER.match(name)
            general = _EXPERT.sub(".experts.0.", name.removesuffix(_SCALE))
            if layer and int(layer[2]) < config.num_hidden_layers:
                general = general.replace(layer[0], layer[1] + "{layer}.", 1)
            if general not in known and not is_dropped(name, config):
                unknown.append(name)
        if unknown:
            raise InvalidWeights(f"{self.folder} holds tensors that the family does not know: {', '.join(unknown[:5])}")
