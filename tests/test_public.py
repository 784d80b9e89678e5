"""What others build on: public names are a list that changes on purpose, typed for a checker, completed by a shell.

`python -m tests.test_public` writes the list anew.
"""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import agentrl
from agentrl import plugins

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "public_names.txt"
OUTSIDE = """
import agentrl
from agentrl.plugins.reward import Reward


class Shop(agentrl.Env):
    def tasks(self, split: str = "train") -> list[dict[str, int]]:
        return [{"n": n} for n in range(10)]

    @agentrl.tool
    def search(self, words: str) -> str:
        return words


reveal_type(agentrl.train(Shop))
reveal_type(agentrl.check_env(Shop))
reveal_type(agentrl.rollouts)
reveal_type(Reward)
agentrl.trane(Shop)
Shop().tasks(split=3)
"""


def public_names() -> str:
    """Every name of `agentrl` and `agentrl.plugins`, one a line."""
    modules = ["agentrl", *(f"agentrl.plugins.{each.name}" for each in pkgutil.iter_modules(plugins.__path__))]
    found = [f"{module}:{name}" for module in modules for name in getattr(import_module(module), "__all__", ())]
    return "".join(f"{name}\n" for name in sorted(found))


def test_the_public_names_are_those_of_the_list() -> None:
    """A name that is gone breaks other people's code: it is deprecated for a minor version first."""
    assert public_names() == LIST.read_text(), "run python -m tests.test_public, and tell it in CHANGELOG.md"


def test_every_public_name_can_be_imported() -> None:
    for line in LIST.read_text().splitlines():
        module, _, name = line.partition(":")
        assert _there(module, name), line


def _there(module: str, name: str) -> bool:
    try:
        return hasattr(import_module(module), name)
    except ModuleNotFoundError as error:  # of an extra that is not installed here
        return not str(error.name).startswith("agentrl")


@pytest.mark.slow
def test_a_type_checker_knows_the_public_names_and_finds_a_wrong_one(tmp_path: Path) -> None:
    """Checked with this repository's settings, so that the linters' cache serves."""
    (tmp_path / "shop.py").write_text(OUTSIDE)
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", tmp_path / "shop.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    revealed = [
        line.partition("Revealed type is ")[2].strip('"') for line in done.stdout.splitlines() if "note" in line
    ]
    assert revealed[0] == "agentrl.train.driver.result.TrainResult"
    assert revealed[1] == "list[agentrl.envs.check.findings.Finding]"
    assert not any("Any" in each.partition("->")[0] for each in revealed[3:])
    wrong = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(wrong) == 2, done.stdout
    assert "trane" in wrong[0]
    assert "split" in wrong[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "completed"), [("train algo.lo", "algo.loss="), ("train env=calc", "env=calculator")]
)
def test_a_shell_completes_settings_and_their_names(typed: str, completed: str) -> None:
    asked = {"_AGENTRL_COMPLETE": "complete_bash", "COMP_WORDS": f"agentrl {typed}", "COMP_CWORD": "2"}
    command = [sys.executable, "-c", "import sys; sys.argv = ['agentrl']; from agentrl.__main__ import main; main()"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, timeout=100)
    assert completed in done.stdout.splitlines(), done.stderr


def test_the_versions_of_the_package_and_its_names_are_one() -> None:
    assert agentrl.__version__ in (ROOT / "CHANGELOG.md").read_text()


if __name__ == "__main__":
    LIST.write_text(public_names())
