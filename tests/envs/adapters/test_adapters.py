"""Adapters against the real libraries: the tests in `inside/` run in `.venv-adapters`, which `make adapters` makes.

They want other versions of packages than `.venv` has, and some of them others than the rest (`APART`). Those of one
environment are run by a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import agentrl
from agentrl.envs import calls
from agentrl.envs.builtin.swe import library
from agentrl.envs.builtin.swe.formats import harbor
from agentrl.envs.context import context_of
from tests.conftest import need

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PACKAGES = ROOT / ".venv-adapters"
APART = {"verifiers_adapter.py": ROOT / ".venv-adapters-verifiers"}
BY_NIGHT = "the_contract_holds or the_check_finds_nothing"
"""The rules of `agentrl check`, but for Gymnasium's; episodes are compared with the libraries' own by day."""
SECONDS = 900


def need_libraries(packages: Path) -> None:
    """The libraries of an environment, in the versions that are wanted now."""
    name = packages.name.removeprefix(".venv-adapters-").removeprefix(".venv-")
    wanted = "".join((HERE / "requirements" / f"{file}.txt").read_text() for file in ("common", name))
    there = packages / "installed"
    need(there.exists() and there.read_text() == wanted, "the adapters' libraries are not there: make adapters")


def files_of(packages: Path) -> list[str]:
    """The modules of tests that run in an environment."""
    every = sorted(path.name for path in (HERE / "inside").glob("*_adapter.py"))
    return [name for name in every if APART.get(name, PACKAGES) == packages]


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("packages", [PACKAGES, *APART.values()], ids=lambda path: path.name)
def test_the_tests_of_adapters_pass_beside_their_libraries(packages: Path, pytestconfig: pytest.Config) -> None:
    """Those that share an environment share a process: its start and torch's were a third of their time."""
    files = files_of(packages)
    need_libraries(packages)
    if "openenv_adapter.py" in files:
        need_libraries(ROOT / ".venv-adapters-openenv")
    if "nemo_gym_adapter.py" in files and not (ROOT / ".venv-adapters-nemo_gym" / "installed").exists():
        files.remove("nemo_gym_adapter.py")  # it needs Python 3.12: `make adapters` installs it where there is one
    by_day = ["-k", f"not ({BY_NIGHT})"] if "not nightly" in pytestconfig.getoption("markexpr") else []
    command = [packages / "bin" / "python", "-m", "pytest", "-q", "--noconftest", "-c", "pytest.ini", *by_day, *files]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        command, cwd=HERE / "inside", env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_a_tiny_model_is_trained_in_an_adapted_environment(tmp_path: Path) -> None:
    """The library comes from `.venv-adapters`, and what both have (NumPy) from `.venv`."""
    need_libraries(PACKAGES)
    (site,) = PACKAGES.glob("lib/python*/site-packages")
    program = f"import sys; sys.path.append({str(site)!r}); from agentrl.cli import main; main()"
    words = (
        "train env=gymnasium:FrozenLake-v1 env.is_slippery=false env.actions=[left,down,right,up] env.observe=ansi "
        "env.max_episode_steps=4 steps=1 warm_start.steps=2 warm_start.demos=8 rollout.groups_per_step=1 "
        "rollout.group_size=2 eval.tasks=2 weights.probe_tokens=0 weights.start_tokens=0 run_dir=run"
    )
    command = [sys.executable, "-c", program, *words.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") >= 1


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("gymnasium:CartPole-v1", "gymnasium"),
        ("pettingzoo:tictactoe-v3", "pettingzoo"),
        ("textarena:TicTacToe-v0", "textarena"),
        ("verifiers:wordle", "verifiers"),
        ("inspect:tasks.py@sums", "inspect"),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_its_extra(name: str, extra: str) -> None:
    with pytest.raises(agentrl.errors.MissingExtra, match=rf"pip install 'agentrl-platform\[{extra}\]'"):
        agentrl.make(name)


def test_a_source_is_given_in_the_name_or_as_a_setting_and_not_in_both() -> None:
    with pytest.raises(agentrl.errors.ConfigError, match="source is given twice"):
        agentrl.make("gymnasium:CartPole-v1", source="CartPole-v1")
    with pytest.raises(agentrl.errors.ConfigError, match=r"env\.source is missing"):
        agentrl.make("gymnasium")
    with pytest.raises(agentrl.errors.UnknownName, match="no module 'calculator'"):
        agentrl.make("calculator:CartPole-v1")


@pytest.mark.slow
def test_a_folder_in_harbors_format_is_named_by_itself(tmp_path: Path) -> None:
    for task in library.builtin()[:3]:
        harbor.write(task, tmp_path / "tasks" / task.id)
    named, given = (
        agentrl.make(f"harbor:{tmp_path / 'tasks'}", steps=7),
        agentrl.make("swe", path=str(tmp_path / "tasks")),
    )
    assert list(calls.tasks(named)) == list(calls.tasks(given))
    assert named.max_turns == 7
    args, options = context_of(named).arguments
    assert list(calls.tasks(type(named)(*args, **options))) == list(calls.tasks(given)), "what a fork makes"
    with pytest.raises(agentrl.errors.ConfigError, match="there is no such folder"):
        agentrl.make(f"harbor:{tmp_path / 'nowhere'}")
    with pytest.raises(agentrl.errors.ConfigError, match="stepz"):
        agentrl.make(f"harbor:{tmp_path / 'tasks'}", stepz=7)
