"""The one pool of worker processes, and tiny models of every family, for the whole session."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import need
from tests.suite.schedule import kept
from tests.train.backends.megatron.world import World, open_world


@pytest.fixture(scope="session")
def world() -> World:
    """Workers in which Megatron runs (`tests.train.backends.megatron.world`), until the last test of ranks."""
    need(importlib.util.find_spec("megatron") is not None, "megatron-core is not installed")
    return kept("world", open_world)


@pytest.fixture
def own_proofs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proofs are kept in a folder of the test; another XDG_CACHE_HOME would have every rank load Megatron anew."""
    from agentrl.train.trainers import proof

    monkeypatch.setattr(proof, "cache_folder", lambda: tmp_path / "cache" / "models")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """By a case's name, the Hugging Face folder of its tiny random model; see `tests.….zoo`."""
    from tests.train.backends.megatron import zoo

    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = zoo.write(name, tmp_path_factory.mktemp(name))
        return made[name]

    return folder
