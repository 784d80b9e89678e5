"""The parts of a model's files that are not trained, and how they stay with the weights.

Towers for images and sound, and layers that predict several tokens (MTP), have no place in the model that transformers
builds for training. An export without them could not be served as what the folder was. So they are copied, as they are,
from the folder into every export, under the names that they had, and the configuration stays the folder's. Families
that are trained whole, towers included, have none (`vision_families.FAMILIES`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.models import tensors
from agentrl.models.loading import read_config
from agentrl.models.vision_families import FAMILIES

if TYPE_CHECKING:
    from torch import Tensor

LOST = "in no checkpoint of this trainer"
_INDEX, _SINGLE, _FIRST = "model.safetensors.index.json", "model.safetensors", "model-00001-of-00001.safetensors"


class Untrained:
    """The tensors in a folder's files of weights that are not trained; deleted files stay readable."""

    def __init__(self, folder: Path) -> None:
        """Look for them in a folder's safetensors files, or in PyTorch's."""
        self.names: dict[str, tuple[str, ...]] = {}
        self._read: dict[str, Callable[[str], Tensor]] = {}
        files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
        config = read_config(folder) if files else None
        text = config.get_text_config() if config is not None else None
        whole = config is not None and config.model_type in FAMILIES
        beside = tensors.is_dropped if whole else tensors.stays_beside
        for path in files:
            held, read = _open(path)
            if names := tuple(sorted(name for name in held if beside(name, text))):
                self.names[path.name], self._read[path.name] = names, read

    def write(self, folder: Path, source: Mapping[str, bytes]) -> None:
        """Add the parts to a folder that transformers has written, and make its configuration that of the source.

        Args:
            folder: the export, with safetensors files under the names of the source.
            source: the source's other files (`folders.read_side_files`).
        """
        from safetensors.torch import save_file

        if self.names:
            index = _index(folder)
            for number, (file, names) in enumerate(self.names.items()):
                beside = f"model-untrained-{number:05d}.safetensors"
                held = {name: self._read[file](name).contiguous() for name in names}
                save_file(held, folder / beside, metadata={"format": "pt"})
                index["weight_map"] |= dict.fromkeys(names, beside)
                index["metadata"]["total_size"] += sum(one.numel() * one.element_size() for one in held.values())
            (folder / _INDEX).write_text(json.dumps(index, indent=1))
        _restore_config(folder, source)


def _open(file: Path) -> tuple[Iterable[str], Callable[[str], Tensor]]:
    """The names of the tensors in a file, and what reads one; only what is read is in memory."""
    if file.suffix == ".safetensors":
        from safetensors import safe_open

        opened: Any = safe_open(file, "pt")
        return opened.keys(), opened.get_tensor
    import torch

    try:
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # an old file, which can't be mapped
        state = torch.load(file, map_location="cpu", weights_only=True)
    return state, lambda name: state[name].clone()


def _index(folder: Path) -> dict[str, Any]:
    """The index of an export's files; a single file gets another name, since loaders would look no further."""
    from safetensors import safe_open

    if (folder / _INDEX).is_file():
        found: dict[str, Any] = json.loads((folder / _INDEX).read_text())
        return {**found, "metadata": {"total_size": 0, **found.get("metadata", {})}}
    (folder / _SINGLE).rename(folder / _FIRST)
    with safe_open(folder / _FIRST, "pt") as file:
        names = list(file.keys())
        size = sum(math.prod(file.get_slice(name).get_shape()) for name in names) * 4
    return {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(names, _FIRST)}


def _restore_config(folder: Path, source: Mapping[str, bytes]) -> None:
    """The language model may be a part of what the folder held: transformers then writes the part's configuration."""
    written = json.loads((folder / "config.json").read_text())
    settings = json.loads(source["config.json"])
    if settings.get("model_type") == written.get("model_type"):
        return
    settings.pop("torch_dtype", None)
    settings["dtype"] = written.get("dtype")
    if isinstance(text := settings.get("text_config"), dict) and "dtype" in text:
        text["dtype"] = written.get("dtype")
    (folder / "config.json").write_text(json.dumps(settings, indent=2))


def notes(folder: Path, *, kept: bool = True) -> Sequence[str]:
    """Return in sentences what of a folder is not trained, and in what its exports differ from it.

    Args:
        folder: the model's.
        kept: whether the trainer copies the rest into its exports.
    """
    found = Untrained(folder)
    said = []
    if names := [name for each in found.names.values() for name in each]:
        shown = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
        said.append(f"not trained, and {'copied into every checkpoint as they are' if kept else LOST}: {shown}")
    dtypes = stored_dtypes(folder)
    if kept and dtypes - {"F32"}:
        said.append(f"checkpoints hold float32 weights; the model's files have {', '.join(sorted(dtypes))}")
    return said


def stored_dtypes(folder: Path) -> set[str]:
    """The types of the tensors in a folder's safetensors files, as these call them (`BF16`)."""
    found = set[str]()
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        found |= {entry["dtype"] for name, entry in header.items() if name != "__metadata__"}
    return found
