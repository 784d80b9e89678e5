"""`agentrl doctor` says of this machine what is missing, what that costs and what mends it."""

from __future__ import annotations

import importlib.util
import re
import socket
import tempfile
import tomllib
from pathlib import Path

import pytest

from agentrl.train.plan.this_machine import EXTRAS, find_features, find_port

ROOT = Path(__file__).parents[2]


def test_every_package_that_is_missing_costs_something_and_is_installed_by_an_extra_that_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    features = {feature.name: feature for feature in find_features(tmp_path / "runs")}
    for name, extra in {"torch": "train", "Docker": "docker", **{name: EXTRAS[name][0] for name in EXTRAS}}.items():
        assert extra in extras
        assert features[name].costs
        assert features[name].mend == f"pip install 'agentrl-platform[{extra}]'"
    assert "engine.python" in features["vllm"].mend
    assert all(bool(feature.costs) == bool(feature.mend) for feature in features.values())
    assert not (tmp_path / "runs").exists()


def test_a_port_is_told_as_taken_while_somebody_listens_at_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert find_port(port, "agentrl view").found == "taken"
    assert find_port(port, "agentrl view").found == "free"


def test_a_folder_for_temporary_files_that_is_not_there_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Python takes another one in silence."""

    def told() -> str:
        monkeypatch.setattr(tempfile, "tempdir", None)
        return next(str(each) for each in find_features(tmp_path) if each.name == "temporary files")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert re.fullmatch(rf"ok       temporary files: .* GiB free in {tmp_path}", told())
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    assert f"missing  temporary files: TMPDIR={tmp_path / 'gone'} can't be written, and /" in told()
