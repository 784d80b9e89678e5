"""What a checkpoint says of itself: damage is named before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import InvalidInput
from agentrl.train.trainers.ranks import contents

SETTINGS = {"trainer.dtype": "float32"}


def alone(value: Any) -> list[Any]:
    return [value]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "weights").write_bytes(bytes(range(256)) * 40)
    torch.save({"steps": 3}, tmp_path / "policy" / "common.pt")
    weights = {"policy": contents.sums([("w", torch.arange(6.0).view(2, 3))])}
    contents.record(tmp_path, SETTINGS, weights, alone, 0)
    return tmp_path


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40), st.data())
@pytest.mark.slow
def test_one_changed_element_or_two_that_changed_places_change_the_checksum(
    bits: list[int], data: st.DataObject
) -> None:
    tensor = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    i, j = (data.draw(st.integers(0, len(bits) - 1)) for _ in range(2))
    changed = torch.tensor(bits, dtype=torch.int32)
    if bits[i] != bits[j]:
        changed[i], changed[j] = bits[j], bits[i]
    else:
        changed[i] ^= 1 << data.draw(st.integers(0, 30))
    assert contents.checksum(changed.view(torch.float32)) != contents.checksum(tensor)
    assert contents.checksum(tensor.clone()) == contents.checksum(tensor)


def test_a_checksum_is_of_the_whole_tensor_however_it_is_cut() -> None:
    tensor = torch.randn(50, 3).bfloat16()
    whole = contents.checksum(tensor)
    assert contents.checksum(tensor, 7) == contents.checksum(tensor.T.contiguous().T, 7) == whole


@pytest.mark.slow
def test_what_was_written_is_read_again(folder: Path) -> None:
    held = contents.read(folder, SETTINGS, alone, 0)
    contents.compare(folder, held["weights"]["policy"], contents.sums([("w", torch.arange(6.0).view(2, 3))]))


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 4
    file.write_bytes(raw)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda folder: flip(folder / "policy" / "weights"), "policy/weights was changed after it was written"),
        (
            lambda folder: (folder / "policy" / "weights").write_bytes(b"\0" * 64),
            "policy/weights has 64 bytes, and 10,240 were written",
        ),
        (lambda folder: (folder / "policy" / "common.pt").unlink(), "policy/common.pt is missing"),
        (lambda folder: (folder / contents.NAME).unlink(), "contents.json is missing"),
        (lambda folder: (folder / contents.NAME).write_text("[]"), "contents.json can't be read"),
        (
            lambda folder: (folder / contents.NAME).write_text(
                (folder / contents.NAME).read_text().replace("10240", "10241")
            ),
            "contents.json can't be read: it was changed",
        ),
        (lambda folder: (folder / contents.NAME).write_bytes(b"\xff\xfe"), "contents.json can't be read"),
    ],
    ids=["flipped", "truncated", "missing", "no-contents", "other-json", "edited", "garbage"],
)
@pytest.mark.slow
def test_damage_is_named(folder: Path, harm: Callable[[Path], object], words: str) -> None:
    harm(folder)
    with pytest.raises(InvalidInput, match=words.replace("(", r"\(")):
        contents.read(folder, SETTINGS, alone, 0)


def test_other_settings_are_named(folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"trainer\.dtype=float32, and this is trainer\.dtype=bfloat16"):
        contents.read(folder, {"trainer.dtype": "bfloat16"}, alone, 0)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"w": torch.arange(6.0).flip(0).view(2, 3)}, "w has checksum"),
        ({"w": torch.arange(6.0)}, r"saved as float32 \[2, 3\], and is float32 \[6\] here"),
        ({}, "w is missing in this model"),
        ({"w": torch.arange(6.0).view(2, 3), "v": torch.ones(1)}, "v is not in the checkpoint"),
    ],
)
def test_weights_that_are_not_those_that_were_saved_are_named(
    folder: Path, found: dict[str, torch.Tensor], words: str
) -> None:
    held = contents.read(folder, SETTINGS, alone, 0)
    with pytest.raises(InvalidInput, match=words):
        contents.compare(folder, held["weights"]["policy"], contents.sums(found.items()))
