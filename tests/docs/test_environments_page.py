"""What an author is told works as printed: every block of docs/environments.md, README's, and the examples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.config import RunConfig
from agentrl.envs import calls
from agentrl.envs.base import has_demonstrator, has_expert
from agentrl.envs.episode import DEMONSTRATOR, EXPERT, play
from agentrl.envs.registry import factory
from agentrl.overrides import merge, spread
from agentrl.train.display.console import Display
from agentrl.train.driver import api
from agentrl.train.driver.api import run_train
from agentrl.train.driver.result import TrainResult

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "environments.md"
pytestmark = pytest.mark.timeout(900)  # it checks every environment of the page: minutes on a busy machine
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
EXAMPLES = sorted((ROOT / "examples" / "environments").glob("*.py"))
SMALL: Mapping[str, Any] = {
    "steps": 1,
    "warm_start.steps": 2,
    "warm_start.demos": 16,
    "warm_start.batch": 8,
    "eval.tasks": 2,
    "rollout.groups_per_step": 1,
    "algo.minibatches": 1,
    "rollout.group_size": 2,
}


def blocks(path: Path) -> list[str]:
    """A page's blocks of Python."""
    return BLOCK.findall(path.read_text())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the page's blocks leave behind, run one after the other; its runs are made as well, but small."""
    folder = tmp_path_factory.mktemp("page")

    def small(config: RunConfig, display: Display | None = None) -> TrainResult:
        sizes = {**SMALL, "run_dir": str(folder / "run")}
        return run_train(RunConfig.model_validate(merge(config.model_dump(), spread(sizes))), display)

    scope: dict[str, Any] = {"__name__": "page"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "run_train", small)
        patch.chdir(folder)
        for number, block in enumerate(blocks(PAGE)):
            exec(compile(block, f"environments.md, block {number}", "exec"), scope)
        yield scope


def environments(scope: Mapping[str, Any]) -> dict[str, type[agentrl.Env]]:
    """The environments that a namespace defines."""
    found = {name: value for name, value in scope.items() if isinstance(value, type) and issubclass(value, agentrl.Env)}
    return {name: value for name, value in found.items() if value.__module__ == "page"}


@pytest.mark.slow
def test_every_block_of_the_page_runs_and_its_environments_keep_the_contract(page: dict[str, Any]) -> None:
    found = environments(page)
    assert len(found) >= 8
    assert page["result"].checkpoint.name == "step-000001"
    for name, cls in found.items():
        options = {"sandbox": "subprocess"} if name.endswith("Shell") else {}
        assert agentrl.check_env(factory(cls, **options), tasks=1, scored=8) == [], name
        assert disjoint(cls(**options)), name


def test_the_page_names_every_method_and_attribute_of_env() -> None:
    page = PAGE.read_text()
    public = [name for name in vars(agentrl.Env) if not name.startswith("_")]
    assert [name for name in public if not re.search(rf"`[^`]*\b{name}\b[^`]*`", page)] == []


@pytest.mark.slow
def test_the_readmes_environment_is_the_pages_first_and_the_examples(page: dict[str, Any]) -> None:
    (readme,) = [block for block in blocks(ROOT / "README.md") if "agentrl.Env" in block]
    assert readme == blocks(PAGE)[0]
    theirs = factory(f"{ROOT / 'examples' / 'environments' / 'oracle.py'}:Oracle")()
    ours = page["Oracle"]()
    for split in ours.splits:
        assert list(ours.tasks(split)) == list(theirs.tasks(split))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
async def test_an_example_keeps_the_contract_and_its_splits_apart(path: Path) -> None:
    make = factory(f"{path}:{path.stem.capitalize()}")
    env = make()
    assert f"`{path.name}`" in PAGE.read_text()
    assert disjoint(env)
    if has_demonstrator(env):
        policy = EXPERT if has_expert(env) else DEMONSTRATOR
        tasks = [task for task, _ in zip(calls.tasks(env, "eval"), range(20), strict=False)]
        scores = [(await play(make(), task, policy)).score for task in tasks]
        assert any(scores), "nothing to start from"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *(f"several_agents/{each}.py:{each.capitalize()}" for each in ("demand", "hiding", "relay")),
        "plugins/frozen_opponent.py:HigherDigit",
    ],
)
def test_an_example_of_several_agents_passes_the_check(name: str) -> None:
    """Two of them trained and measured on the same tasks."""
    assert agentrl.check_env(f"{ROOT}/examples/{name}", scored=8) == []


def disjoint(env: agentrl.Env) -> bool:
    """Whether no problem is in two of its splits."""
    drawn = [{str(sorted(task.data.items())) for task in calls.tasks(env, split)} for split in env.splits]
    return sum(map(len, drawn)) == len(set().union(*drawn))
