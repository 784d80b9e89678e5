"""`agentrl verify` names each of many kinds of changes, and passes many kinds of runs of which nothing was changed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.train.verify import verify
from tests.suite.shared import Once
from tests.train.verified import clean, planted

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def origin(once: Once) -> Path:
    """A folder with a run, an evaluation, and the model and the environment that they had; it is to be read only."""
    return once("verified", clean.make_origin)


@pytest.fixture
def folder(origin: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(origin, tmp_path / "copy"))


def test_there_are_as_many_kinds_as_were_promised() -> None:
    assert len(planted.PLANTED) >= 60
    assert len(clean.KINDS) >= 30


@pytest.mark.parametrize("kind", clean.KINDS)
def test_a_run_of_which_nothing_was_changed_passes(kind: str, folder: Path) -> None:
    report = verify(clean.KINDS[kind](folder))
    assert report.passed, list(report.lines())


@pytest.mark.parametrize("name", planted.PLANTED)
def test_a_planted_change_is_found_and_named(name: str, folder: Path) -> None:
    plant, words = planted.PLANTED[name]
    check(plant, words, folder / "run")


@pytest.mark.parametrize("name", planted.IN_EVALUATIONS)
def test_a_change_planted_in_an_evaluation_is_found_and_named(name: str, folder: Path) -> None:
    plant, words = planted.IN_EVALUATIONS[name]
    check(plant, words, folder / "measured")


def test_a_run_whose_seals_are_gone_is_not_resumed(folder: Path) -> None:
    (folder / "run" / "seals.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"files are gone: seals\.jsonl, which had digests"):
        clean.train(folder, resume=str(folder / "run"), steps=4)


def check(plant: planted.Plant, words: str, run: Path) -> None:
    plant(run)
    report = verify(run)
    found = [str(fault) for each in report.checks for fault in each.faults]
    assert any(re.search(words, fault) for fault in found), found
