"""Weights that clients have saved: `tinker://RUN/weights/NAME` with moments, `…/sampler_weights/NAME` without."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentrl.common.scratch import remove, write_folder
from agentrl.errors import InvalidInput
from agentrl.train.record.files import sync, write_atomically
from agentrl.train.server.learner import SharedBase
from agentrl.train.server.passes import RunAdapter
from agentrl.train.server.served_run import ServedRun

SCHEME = "tinker://"
KINDS = {"weights": "training", "sampler_weights": "sampler"}
"""The folders of a run that hold them, and their types on the wire."""
ABOUT, STATE = "checkpoint.json", "state.pt"


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """The facts of saved weights; times are seconds since 1970, `request` is the number of what saved them."""

    base_model: str
    rank: int
    attention: bool
    mlp: bool
    request: int = -1
    created: float = field(default_factory=time.time)
    expires: float | None = None
    metadata: dict[str, Any] | None = None


def parse_path(path: str) -> tuple[str, str, str]:
    """Return run, folder and name of a path."""
    parts = path.removeprefix(SCHEME).split("/")
    if not path.startswith(SCHEME) or len(parts) != 3 or parts[1] not in KINDS:
        raise InvalidInput(f"{path!r} is no path of saved weights: {SCHEME}RUN/weights/NAME or …/sampler_weights/NAME")
    return parts[0], parts[1], checked_name(parts[2])


def checked_name(name: str) -> str:
    """Return a checkpoint's name."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]{0,127}", name):
        raise InvalidInput(f"{name!r} is no name of a checkpoint: letters, digits and _ . = + -, at most 128")
    return name


def write_checkpoint(
    folder: Path, base: SharedBase, adapter: RunAdapter, about: CheckpointInfo, *, moments: bool
) -> None:
    """Write a folder in PEFT's format, which is whole when it has its name; one that is there is replaced."""
    import torch

    from agentrl.models.adapters import write_adapter

    with write_folder(folder) as beside:
        write_adapter(beside, adapter.saved(str(base.source.absolute())), base.layer_names())
        (beside / ABOUT).write_text(json.dumps(asdict(about)))
        if moments:
            torch.save(adapter.state(), beside / STATE)
        for file in beside.iterdir():
            write_atomically(file, file.read_bytes())
    sync(folder.parent)


def read_about(folder: Path) -> CheckpointInfo | None:
    """Return what is known of saved weights; None where there are none, or they have expired, and are removed."""
    try:
        about = CheckpointInfo(**json.loads((folder / ABOUT).read_text()))
    except FileNotFoundError:
        return None
    if about.expires is not None and about.expires < time.time():
        remove(folder)
        return None
    return about


def set_expiry(folder: Path, about: CheckpointInfo, expires: float | None) -> None:
    """Set when saved weights expire; None: never."""
    changed = {**asdict(about), "expires": expires}
    write_atomically(folder / ABOUT, json.dumps(changed).encode())


def describe(run: ServedRun, kind: str, folder: Path, about: CheckpointInfo) -> dict[str, Any]:
    """Return a checkpoint as the wire lists it."""
    return {
        "checkpoint_id": f"{kind}/{folder.name}",
        "checkpoint_type": KINDS[kind],
        "time": stamp(about.created),
        "tinker_path": f"{SCHEME}{run.info.model_id}/{kind}/{folder.name}",
        "size_bytes": sum(file.stat().st_size for file in folder.iterdir()),
        "public": False,
        "user_metadata": about.metadata,
        "expires_at": None if about.expires is None else stamp(about.expires),
    }


def list_checkpoints(run: ServedRun) -> list[dict[str, Any]]:
    """Return a run's checkpoints, the oldest first."""
    folders = [(kind, folder) for kind in KINDS for folder in (run.path / kind).glob("[!.]*")]
    known = [(about, kind, folder) for kind, folder in folders if (about := read_about(folder)) is not None]
    return [describe(run, kind, folder, about) for about, kind, folder in sorted(known, key=lambda one: one[0].created)]


def stamp(seconds: float) -> str:
    """Return a time in ISO 8601, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
