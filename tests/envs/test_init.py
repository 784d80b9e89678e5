"""`agentrl init` makes a package that works as it is made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.envs.init.project import FILES, init_package
from agentrl.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
TRAIN = (
    "steps=1 warm_start.steps=2 warm_start.demos=16 eval.tasks=2 rollout.groups_per_step=1 rollout.group_size=2 "
    "rollout.turn_tokens=8 engine.threads=1 trainer.threads=1"
)


@pytest.mark.slow
def test_the_package_installs_passes_its_own_tests_is_checked_and_trains(tmp_path: Path):
    folder = init_package("tea-shop", tmp_path)
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(*install, "--target", str(site), str(folder))
    assert (site / "tea_shop" / "tasks.jsonl").is_file()
    assert "4 passed" in run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis")
    assert "keeps the environment contract" in run(sys.executable, "-m", "agentrl", "check", "env=tea-shop")
    trained = run(
        sys.executable, "-m", "agentrl", "train", "env=tea-shop-v1", f"run_dir={tmp_path / 'run'}", *TRAIN.split()
    )
    assert "run folder" in trained
    assert (tmp_path / "run" / "sessions.db").is_file()


def test_every_file_has_the_new_name_in_place_of_the_templates(tmp_path: Path):
    folder = init_package("tea-shop", tmp_path)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == len(FILES)
    for path in files:
        assert not any(name in path.read_text() + path.name for name in ("my_env", "my-env", "MyEnv")), path
    assert "class TeaShop(agentrl.Env)" in (folder / "tea_shop" / "env.py").read_text()
    assert 'tea-shop-v1 = "tea_shop.env:TeaShop"' in (folder / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "allowed are lower-case letters"),
        ("Shop", "allowed are lower-case letters"),
        ("my_shop", "allowed are lower-case letters"),
        ("../shop", "allowed are lower-case letters"),
        ("s" * 51, "at most 50 characters"),
        ("shop-v2", "leave out the version; it begins as shop-v1"),
        ("json", "a package can't be called 'json'"),
        ("class", "a package can't be called 'class'"),
        ("numpy", "a package 'numpy' is installed, whose place it would take"),
        ("calculator", "there is an environment of that name"),
    ],
)
def test_a_name_that_a_package_or_an_environment_can_not_have_is_refused(name: str, words: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=words):
        init_package(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_folder_that_is_there_already_is_left_as_it_is(tmp_path: Path):
    (tmp_path / "tea-shop").mkdir()
    with pytest.raises(ConfigError, match="is there already"):
        init_package("tea-shop", tmp_path)
    assert list((tmp_path / "tea-shop").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be written"):
        init_package("tea-shop", tmp_path / "file")
