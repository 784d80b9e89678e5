"""A checkpoint's contents, recorded when it is saved and compared when it is loaded.

`contents.json` has the settings that its tensors depend on, every file's size and SHA-256, and of every weight by its
Hugging Face name the shape, the type and a checksum. Files are compared before anything is read from them: files
that were truncated, replaced or changed in a single bit are named. Weights are compared after everything was loaded, as
engines would get them, the optimizer's float32 masters included, so an error between two layouts never trains on
other weights than those that were saved.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.errors import InvalidInput
from agentrl.train.trainers.ranks import restricted

NAME = "contents.json"
ELEMENTS = 1 << 22
"""Elements of a tensor at a time: a checksum takes 24 bytes for each."""

Gather = Callable[[Any], list[Any]]
"""A function that gathers one value from every rank, in their order, on every rank."""

Sums = dict[str, tuple[list[int], str, str]]
"""Shape, type and checksum by name."""


def checksum(tensor: Tensor, elements: int = ELEMENTS) -> str:
    """A position-dependent sum over a tensor's bits: Σ (2i + 1) · bits_i modulo 2^64, in hexadecimal.

    One changed element, or two swapped ones, always change it. It is the same on every device,
    and for any number of elements at a time.
    """
    widths = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
    bits = tensor.detach().contiguous().flatten().view(widths[tensor.element_size()])
    total = 0
    for start in range(0, len(bits), elements):
        part = bits[start : start + elements].long()
        places = torch.arange(start, start + len(part), device=part.device)
        total += int((part * (2 * places + 1)).sum())
    return f"{total % (1 << 64):016x}"


def sums(weights: Iterable[tuple[str, Tensor]]) -> Sums:
    """Return a record of the weights."""
    return {name: (list(w.shape), str(w.dtype).removeprefix("torch."), checksum(w)) for name, w in weights}


def record(folder: Path, settings: Mapping[str, str], weights: Mapping[str, Sums], gather: Gather, rank: int) -> None:
    """Record a folder's contents; called by every rank, each of which reads its share of the files.

    Args:
        folder: with every file written.
        settings: that the tensors depend on.
        weights: by the folder's part ("policy", "reference"); rank 0's counts.
        gather: of all ranks.
        rank: this one.
    """
    files = _fingerprint_files(folder, sorted(_names(folder)), gather, rank)
    if rank == 0:
        contents = {"settings": settings, "files": files, "weights": weights}
        (folder / NAME).write_text(json.dumps({"sha256": _digest(contents), "contents": contents}, indent=1))


def read(folder: Path, settings: Mapping[str, str], gather: Gather, rank: int) -> dict[str, Any]:
    """Verify a folder's files and return its recorded contents; called by every rank.

    Raises:
        InvalidInput: something is missing or changed, holds code (`restricted`), or was written under other settings;
            the same on all ranks.
    """
    contents = _parse(folder)
    for name, value in contents["settings"].items():
        if settings.get(name) != value:
            raise InvalidInput(f"{folder}: written with {name}={value}, and this is {name}={settings.get(name)}")
    recorded = contents["files"]
    problems = [f"{name} is missing" for name in recorded if not (folder / name).is_file()]
    if not problems:
        found = _fingerprint_files(folder, sorted(recorded), gather, rank)
        for name, (size, digest) in recorded.items():
            if found[name][0] is None:
                problems.append(f"{name} can't be read: {found[name][1]}")
            elif found[name][0] != size:
                problems.append(f"{name} has {found[name][0]:,} bytes, and {size:,} were written")
            elif found[name][1] != digest:
                problems.append(f"{name} was changed after it was written (another SHA-256)")
    if problems:
        raise InvalidInput(f"{folder}: the checkpoint is damaged: {summary(problems)}")
    restricted.check(folder)
    return contents


def compare(folder: Path, recorded: Mapping[str, Any], found: Sums) -> None:
    """Raise where loaded weights are not those that were saved."""
    problems = [f"{name} is missing in this model" for name in recorded if name not in found]
    problems += [f"{name} is not in the checkpoint" for name in found if name not in recorded]
    for name in (name for name in recorded if name in found):
        (shape, dtype, total), (our_shape, our_dtype, our_total) = recorded[name], found[name]
        if (shape, dtype) != (our_shape, our_dtype):
            problems.append(f"{name} was saved as {dtype} {shape}, and is {our_dtype} {our_shape} here")
        elif total != our_total:
            problems.append(f"{name} has checksum {our_total}, and was saved with {total}")
    if problems:
        raise InvalidInput(f"{folder}: the weights are not those that were saved: {summary(problems)}")


def publish(beside: Path, path: Path, group: dist.ProcessGroup | None = None) -> None:
    """Rename a complete folder to its final name; called by every rank."""
    dist.barrier(group)
    if dist.get_rank() == 0:
        shutil.rmtree(path, ignore_errors=True)
        beside.replace(path)
    dist.barrier(group)


def summary(problems: list[str], most: int = 4) -> str:
    """The first of some problems, and how many more there are."""
    more = [f"and {len(problems) - most} more"] if len(problems) > most else []
    return "; ".join([*problems[:most], *more])


def _parse(folder: Path) -> dict[str, Any]:
    try:
        written = json.loads((folder / NAME).read_bytes())
        contents: dict[str, Any] = written["contents"]
        if _digest(contents) != written["sha256"]:
            raise ValueError("it was changed after it was written")
    except FileNotFoundError:
        raise InvalidInput(
            f"{folder}: no checkpoint of a trainer with ranks, or one not written to its end: {NAME} is missing"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{folder}: the checkpoint is damaged: {NAME} can't be read: {error}") from None
    return contents


def _digest(contents: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def _names(folder: Path) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]


def _fingerprint_files(folder: Path, names: list[str], gather: Gather, rank: int) -> dict[str, Any]:
    """Size and SHA-256 of files by name, every rank reading some of them."""
    ranks = len(gather(None))
    own = {name: _fingerprint(folder / name) for name in names[rank::ranks]}
    return {name: entry for each in gather(own) for name, entry in each.items()}


def _fingerprint(file: Path) -> tuple[int | None, str]:
    """Size and SHA-256; None and the reason, where a file can't be read: no rank may raise alone."""
    try:
        with file.open("rb") as opened:
            return os.fstat(opened.fileno()).st_size, hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        return None, str(error.strerror)
