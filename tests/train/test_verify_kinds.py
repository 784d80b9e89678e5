"""`agentrl verify` names each of many kinds of changes, and passes many kinds of runs of which nothing was changed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.train.record.verify import verify
from tests.train.verified import clean, planted, planted_steps

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize("corruption", planted_steps.PLANTED, ids=lambda each: each.__name__)
def test_a_change_of_what_a_step_was_trained_on_is_found_and_named(
    corruption: Callable[[Path], None], folder: Path
) -> None:
    session = planted_steps.trained_session(folder / "run")
    name, words = planted_steps.PLANTED[corruption]
    words = words.format(session=session, group=session.rpartition("-")[0])
    check(corruption, words, folder / "run", only=name)


@pytest.mark.parametrize("name", planted.IN_EVALUATIONS)
def test_a_change_planted_in_an_evaluation_is_found_and_named(name: str, folder: Path) -> None:
    plant, words = planted.IN_EVALUATIONS[name]
    check(plant, words, folder / "measured")


def test_a_run_whose_seals_are_gone_is_not_resumed(folder: Path) -> None:
    (folder / "run" / "seals.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"files are gone: seals\.jsonl, which had digests"):
        clean.train(folder, resume=str(folder / "run"), steps=4)


def check(plant: planted.Plant, words: str, run: Path, only: str = "") -> None:
    """A change is named in these words, by the check of that name, if one is given."""
    plant(run)
    report = verify(run)
    found = [str(fault) for each in report.checks if only in ("", each.name) for fault in each.faults]
    assert any(re.search(words, fault) for fault in found), found
