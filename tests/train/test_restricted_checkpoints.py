"""A checkpoint from a stranger is read as numbers: nothing that its pickles name is run."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint

from agentrl.errors import InvalidInput
from agentrl.train.backends.ranks.restricted import METADATA, check


class Planted:
    """Writes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.write_text, (self.marker, "run")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint as torch writes it: tensors, and values that are none."""
    folder = tmp_path / "saved"
    state = {"weight": torch.ones(3, 2, dtype=torch.bfloat16), "optimizer": {"step": 3, "extra": io.BytesIO(b"x")}}
    checkpoint.save(state, checkpoint_id=folder / "tensors", no_dist=True)  # type: ignore[attr-defined]
    torch.save({"steps": 3, "rng": torch.get_rng_state(), "copies": ["average"]}, folder / "numbers.pt")
    return folder


def test_what_is_saved_by_torch_is_taken(saved: Path) -> None:
    check(saved)


def test_metadata_that_names_code_is_refused_unread(saved: Path, tmp_path: Path) -> None:
    file = saved / "tensors" / METADATA
    metadata = pickle.loads(file.read_bytes())
    metadata.planner_data = Planted(tmp_path / "marker")
    file.write_bytes(pickle.dumps(metadata))
    with pytest.raises(InvalidInput, match=r"names pathlib.*write_text|names "):
        check(saved)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("name", ["numbers.pt", "policy/common.pt"])
def test_numbers_that_hold_code_are_refused_unread(saved: Path, tmp_path: Path, name: str) -> None:
    (saved / name).parent.mkdir(exist_ok=True)
    torch.save({"steps": Planted(tmp_path / "marker")}, saved / name)
    with pytest.raises(InvalidInput, match="more than numbers"):
        check(saved)
    assert not (tmp_path / "marker").exists()


def test_values_beside_tensors_that_hold_code_are_refused_unread(tmp_path: Path) -> None:
    folder, marker = tmp_path / "saved", tmp_path / "marker"
    checkpoint.save({"a": Planted(marker)}, checkpoint_id=folder, no_dist=True)  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match="more than numbers"):
        check(folder)
    assert not marker.exists()


def test_metadata_that_leads_out_of_the_folder_is_refused(saved: Path, tmp_path: Path) -> None:
    file = saved / "tensors" / METADATA
    metadata = pickle.loads(file.read_bytes())
    for place in metadata.storage_data.values():
        object.__setattr__(place, "relative_path", "../../elsewhere")
    file.write_bytes(pickle.dumps(metadata))
    with pytest.raises(InvalidInput, match="not in its folder"):
        check(saved)


def test_metadata_cut_anywhere_raises_only_what_says_so(saved: Path) -> None:
    file = saved / "tensors" / METADATA
    data = file.read_bytes()
    for place in [position for _, _, position in pickletools.genops(data) if position][::23]:
        file.write_bytes(data[:place])
        with pytest.raises(InvalidInput, match="refused"):
            check(saved)
