"""Reading somebody's record runs nothing that the record names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.common.imports import load, names_only
from agentrl.config import RunConfig
from agentrl.errors import ConfigError, UntrustedCode
from agentrl.overrides import validate
from agentrl.train.record.commands import ratings
from agentrl.train.record.data_identity import STARTS
from agentrl.train.record.ratings import NAME, read
from agentrl.train.record.replay import ReplayConfig, replay
from agentrl.train.record.verify import verify

PLANTED = "from pathlib import Path\nPath({marker!r}).write_text('run')\nclass Thing: pass\ndef make(*args): pass\n"


@pytest.fixture
def planted(tmp_path: Path) -> tuple[str, Path]:
    """A file that leaves a mark when it is imported, and the mark."""
    marker = tmp_path / "marker"
    (tmp_path / "planted.py").write_text(PLANTED.format(marker=str(marker)))
    return f"{tmp_path / 'planted.py'}:Thing", marker


def settings(section: str, path: str) -> dict[str, Any]:
    tree: dict[str, Any] = {"env": {"name": "calculator"}, "model": {"name": "tiny"}}
    chosen = {"name": path} if section == "env" else {"name": path, "odd": 1}
    return {**tree, section: {"own": chosen} if section == "rewards" else chosen}


SECTIONS = ("env", "algo", "trainer", "engine", "rewards")


@pytest.mark.parametrize("section", SECTIONS)
def test_plugins_of_a_record_are_known_by_name_without_being_imported(planted: tuple[str, Path], section: str) -> None:
    path, marker = planted
    with names_only() as refused:
        config = validate(settings(section, path), RunConfig)
    assert refused == (set() if section == "env" else {path})  # which is opened with an episode
    chosen = config.rewards["own"] if section == "rewards" else getattr(config, section)
    assert chosen.name == path
    assert not marker.exists()


@pytest.mark.parametrize("section", SECTIONS)
async def test_commands_that_read_a_record_do_not_import_what_it_names(
    planted: tuple[str, Path], tmp_path: Path, section: str
) -> None:
    path, marker = planted
    run = tmp_path / "run"
    run.mkdir()
    tree = settings(section, path)
    (run / "config.yaml").write_text(yaml.safe_dump(tree))
    (run / STARTS).write_bytes(_line({"step": 0, "settings": tree}))
    with pytest.raises(ConfigError):
        ratings(run)  # it has no games
    with pytest.raises(UntrustedCode, match="--trust"):
        await replay(run, "a", ReplayConfig(turn=1))
    try:
        verify(run)
    except UntrustedCode:
        raise
    except Exception:  # the run has no store
        pass
    assert not marker.exists()


def test_ratings_import_what_a_record_names_where_they_are_told_to(planted: tuple[str, Path], tmp_path: Path) -> None:
    path, marker = planted
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(yaml.safe_dump(settings("engine", path)))
    for trust in (False, True):
        with pytest.raises(ConfigError):
            ratings(run, trust=trust)
        assert marker.exists() is trust


@pytest.mark.parametrize(
    "row",
    [
        *('{"step": 0, "games": {}, "points": {}}', '{"step": 1, "games": {"0": 4}, "points": {"0": -3}}'),
        *('{"step": 1, "games": {"0": 4}, "points": {"0": 5}}', '{"step": 1, "games": {"0": 4}, "points": {}}'),
        *('{"step": 1, "games": {"x": 4}, "points": {"x": 1}}', '{"step": 1e300, "games": {}, "points": {}}', "[]"),
    ],
)
def test_a_record_of_games_that_can_not_be_is_refused_by_its_file(row: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(row + "\n")
    with pytest.raises(ConfigError, match=rf"{NAME} is damaged"):
        read(tmp_path)


async def test_a_records_own_word_does_not_let_its_models_code_run(planted: tuple[str, Path], tmp_path: Path) -> None:
    path, marker = planted
    run = tmp_path / "run"
    (run / "model").mkdir(parents=True)
    shutil.copy(path.rpartition(":")[0], run / "model" / "modeling_own.py")
    maps = {"auto_map": {"AutoModelForCausalLM": "modeling_own.Thing"}, "model_type": "own"}
    (run / "model" / "config.json").write_text(json.dumps(maps))
    tree = {"env": {"name": "calculator"}, "model": {"name": str(run / "model"), "trust_remote_code": True}}
    (run / "config.yaml").write_text(yaml.safe_dump(tree))
    (run / STARTS).write_bytes(_line({"step": 0, "settings": tree}))
    with pytest.raises(UntrustedCode, match=r"modeling_own\.py.*--trust"):
        await replay(run, "a", ReplayConfig(turn=1))
    assert not marker.exists()


def test_what_is_agentrls_own_is_loaded_all_the_same() -> None:
    with names_only() as refused:
        assert load("agentrl.errors:ConfigError", "here") is ConfigError
        with pytest.raises(UntrustedCode):
            load("antigravity:fly", "here")
    assert refused == {"antigravity:fly"}


def _line(row: dict[str, Any]) -> bytes:
    import orjson

    return orjson.dumps(row) + b"\n"
