"""A run's own model folder outlives what it was made from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from agentrl.models.folders import pin, read_side_files, write_side_files


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "additional_chat_templates").mkdir(parents=True)
    (folder / "onnx").mkdir()
    names = ("config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json", "trainer")
    for name in (*names, "manifest.json", "additional_chat_templates/tools.jinja", "onnx/model.onnx"):
        (folder / name).write_text(name)
    return folder


MODEL = ["additional_chat_templates/tools.jinja", "config.json", "model.safetensors", "model.safetensors.index.json"]
MODEL.append("tokenizer.json")


def held(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_side_files_are_all_that_belongs_to_the_model_but_its_weights(source: Path, tmp_path: Path) -> None:
    files = read_side_files(source)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("the exporter's own")
    write_side_files(files, tmp_path / "out")
    assert held(tmp_path / "out") == ["additional_chat_templates/tools.jinja", "config.json", "tokenizer.json"]
    assert (tmp_path / "out" / "config.json").read_text() == "the exporter's own"


@pytest.mark.parametrize("linked", [True, False])
def test_a_pinned_checkpoint_is_whole_after_the_checkpoint_is_gone(
    source: Path, tmp_path: Path, linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not linked:
        monkeypatch.setattr(os, "link", refuses)
    own = pin(source, tmp_path / "run" / "model")
    if linked:
        assert (own / "model.safetensors").samefile(source / "model.safetensors"), "weights are not copied"
    shutil.rmtree(source)
    assert held(own) == MODEL
    assert all((own / name).read_text() == name for name in MODEL)


@pytest.mark.slow
def test_weights_that_can_not_be_linked_and_are_no_runs_are_not_copied(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "trainer").unlink()
    monkeypatch.setattr(os, "link", refuses)
    own = pin(source, tmp_path / "model")
    assert (own / "model.safetensors").readlink() == source / "model.safetensors"
    assert not (own / "config.json").is_symlink()


def refuses(*_: object) -> None:
    raise OSError(18, "Invalid cross-device link")
