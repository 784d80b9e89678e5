"""A checkpoint from a stranger is read as numbers: nothing that its pickles name is run."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint

from agentrl.errors import InvalidInput
from agentrl.train.trainers.ranks.restricted import METADATA, check


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


ELSEWHERE: list[tuple[str, Any, str]] = [
    ("relative_path", "../numbers.pt", "not in its folder"),
    ("relative_path", "/etc/passwd", "not in its folder"),
    ("relative_path", "none.distcp", "has no bytes"),
    ("relative_path", ".", "has no bytes"),
    ("offset", -1, "has no bytes"),
    ("offset", 1 << 40, "has no bytes"),
    ("length", 1 << 40, "has no bytes"),
    ("length", -5, "has no bytes"),
    ("length", "7 bytes", "refused"),
]
"""A field of a tensor's place, a value in it, and words of the refusal."""


@pytest.mark.parametrize(("field", "value", "words"), ELSEWHERE)
def test_a_tensor_that_lies_elsewhere_is_refused_by_name(saved: Path, field: str, value: Any, words: str) -> None:
    """The places of values that are no tensors alone were looked at."""
    file = saved / "tensors" / METADATA
    metadata = pickle.loads(file.read_bytes())
    (place,) = (place for index, place in metadata.storage_data.items() if index.fqn == "weight")
    object.__setattr__(place, field, value)
    file.write_bytes(pickle.dumps(metadata))
    with pytest.raises(InvalidInput, match=rf"metadata is refused.*{words}|{words}"):
        check(saved)


@pytest.mark.parametrize("name", ["tensors/__0_0.distcp", "numbers.pt", "deeper"])
def test_a_link_out_of_the_folder_is_refused_by_name(saved: Path, tmp_path: Path, name: str) -> None:
    file, outside = saved / name, tmp_path / "outside"
    file.rename(outside) if file.exists() else outside.mkdir()
    file.symlink_to(outside)
    with pytest.raises(InvalidInput, match=f"{name}: the checkpoint is refused: it is a link"):
        check(saved)


def test_what_is_no_file_is_not_waited_for(saved: Path) -> None:
    os.mkfifo(saved / "more.pt")
    with pytest.raises(InvalidInput, match="neither a file nor a folder"):
        check(saved)


def packed(data: bytes) -> bytes:
    """The same archive, compressed."""
    body = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    return body.getvalue()


@pytest.mark.parametrize("of_tensors", [True, False])
def test_a_compressed_checkpoint_is_refused_before_it_is_unpacked(saved: Path, of_tensors: bool) -> None:
    """Ten megabytes of it were ten gigabytes of numbers."""
    if of_tensors:
        body = io.BytesIO()
        torch.save(torch.zeros(1 << 18), body)
        data, file = packed(body.getvalue()), saved / "tensors" / METADATA
        (saved / "tensors" / "bomb.distcp").write_bytes(b"before" + data)
        metadata = pickle.loads(file.read_bytes())
        (place,) = (place for index, place in metadata.storage_data.items() if index.fqn == "weight")
        for field, value in {"relative_path": "bomb.distcp", "offset": 6, "length": len(data)}.items():
            object.__setattr__(place, field, value)
        file.write_bytes(pickle.dumps(metadata))
    else:
        (saved / "numbers.pt").write_bytes(packed((saved / "numbers.pt").read_bytes()))
    with pytest.raises(InvalidInput, match=r"refused: it is compressed"):
        check(saved)


def test_metadata_cut_anywhere_raises_only_what_says_so(saved: Path) -> None:
    file = saved / "tensors" / METADATA
    data = file.read_bytes()
    for place in [position for _, _, position in pickletools.genops(data) if position][::23]:
        file.write_bytes(data[:place])
        with pytest.raises(InvalidInput, match="refused"):
            check(saved)
