"""Hugging Face folders, file by file: the files beside the weights, and a folder of one's own that links to another.

A run must not depend on a folder that somebody else may delete or prune: another run's checkpoint, or one of its
own. So it keeps what it loads: files beside the weights are copied, since they are small, and weights are hard links,
which cost nothing and outlive the name that they were made from.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentrl.common.scratch import write_folder
from agentrl.common.untrusted import read_json
from agentrl.errors import InvalidInput

_WEIGHTS = frozenset(
    (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".ot", ".npz", ".ckpt", ".tflite")
)
_TEMPLATES = "additional_chat_templates"
_OF_A_CHECKPOINT = frozenset(("trainer", "manifest.json"))
"""Files of a run's checkpoint that belong to no model."""


def side_files(folder: Path) -> Iterator[Path]:
    """The files that belong to a model beside its weights: configuration, tokenizer, templates, code, licence."""
    for file in sorted((*folder.iterdir(), *(folder / _TEMPLATES).glob("*"))):
        if file.is_file() and not is_weights(file) and file.name not in _OF_A_CHECKPOINT:
            yield file


def refuse_adapter(folder: Path) -> None:
    """Refuse a folder that holds an adapter: transformers would load the model that it names."""
    file = folder / "adapter_config.json"
    if not file.is_file():
        return
    try:
        base = read_json(file.read_text()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        base = None
    if isinstance(base, str) and base and (folder / base).is_dir():
        base = str(folder / base)  # where a run with a warm start keeps it
    of, words, own = f" of {base!r}" if base else "", shlex.quote(str(base or "BASE")), shlex.quote(str(folder))
    raise InvalidInput(
        f"model={str(folder)!r} holds an adapter{of} (adapter_config.json), and a run starts from a whole model: "
        f"train it further with model={words} lora.adapter={own}, or merge it: "
        f"agentrl models merge {words} {own} MERGED, and name model=MERGED"
    )


def model_settings(folder: Path) -> Any:
    """Return a folder's config.json as attributes, without importing transformers; of one that sees, its language's.

    Raises:
        InvalidInput: there is none, or it is not JSON.
    """
    try:
        whole = json.loads((folder / "config.json").read_text())
        return SimpleNamespace(**whole | whole.get("text_config", {}))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{folder}: no model's config.json there: {error}") from None


def is_weights(file: Path) -> bool:
    """Return whether a file holds weights, in whatever format, or lists the files that do."""
    return file.suffix in _WEIGHTS or file.name.endswith(".index.json")


def read_side_files(folder: Path) -> dict[str, bytes]:
    """The contents of `side_files` by their names in the folder, to write them when it may have been deleted."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in side_files(folder)}


def write_side_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write what `read_side_files` read, except what is in the folder already."""
    for name, data in files.items():
        file = folder / name
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(data)


@contextlib.contextmanager
def export_folder(path: Path, side_files: Mapping[str, bytes]) -> Iterator[Path]:
    """An empty folder to write weights into; it then gets the other files of a model and becomes `path`.

    A reader of `path` sees what was there before, nothing, or the whole new folder.

    Args:
        path: the Hugging Face folder to write; it replaces what was there.
        side_files: what `read_side_files` read from the model that the weights were made from.
    """
    with write_folder(path) as beside:
        yield beside
        write_side_files(side_files, beside)


def pin(source: Path, own: Path) -> Path:
    """Make `own` a model folder that stays whole when `source` is deleted; written beside and renamed.

    Weights become hard links. Where the file system can't link them, a run's checkpoint is copied, since it will be
    pruned, and any other folder's weights are linked by name, since copying them could fill the disk.
    """
    with write_folder(own) as beside:
        write_side_files(read_side_files(source), beside)
        for file in source.iterdir():
            if file.is_file() and is_weights(file):
                _link(file.resolve(), beside / file.name, copy=(source / "trainer").exists())
    return own


def _link(file: Path, name: Path, *, copy: bool) -> None:
    try:
        os.link(file, name)
    except OSError:
        if copy:
            shutil.copyfile(file, name)
        else:
            name.symlink_to(file)


def weights_digest(folder: Path) -> str:
    """Return a digest of a folder's weight files, 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            digest.update(file.name.encode() + hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()
