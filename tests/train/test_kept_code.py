"""A run keeps the files that its settings name with what they import from beside themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.common import imports
from agentrl.errors import ConfigError
from agentrl.train.record import kept_code

FILES = {
    "own.py": "import json\nimport words\n\n\ndef make():\n    from late import ONE\n\n    return ONE, words.TWO, json",
    "late.py": "import deeper\nONE = deeper.ONE",
    "deeper.py": "ONE = 1",
    "words/__init__.py": "from words.inner.more import TWO",
    "words/inner/more.py": "import deeper\nfrom words.inner import other\nTWO = 1 + deeper.ONE + other.ZERO",
    "words/inner/other.py": "ZERO = 0",
    "json.py": "raise RuntimeError('what is installed goes first')",
    "unused.py": "raise RuntimeError('nobody imports it')",
}
SETTINGS = {"env": {"name": "own.py:make"}, "note": "no.py:X"}
HELPERS = sorted(set(FILES) - {"json.py", "unused.py"})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with an environment's file and what lies beside it."""
    folder = tmp_path / "project"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    return folder


def made(settings: dict[str, Any]) -> Any:
    """What the function that the settings name returns."""
    return imports.load(settings["env"]["name"], "env")()[:2]


def test_files_behind_an_adapters_name_are_kept_as_others_are(project: Path, tmp_path: Path) -> None:
    """A run went on with another environment or agent than it had begun with, and nothing said so."""
    run = tmp_path / "run"
    settings = {"env": {"name": "trl:own.py:make"}, "agent": "slime:own.py:make rm=words/inner/other.py:ZERO x=1"}
    kept_code.keep(run, settings)
    assert set(kept_code.digests(run)) == {"own.py", "words/inner/other.py"}
    (project / "own.py").write_text("# changed")
    assert [line.partition(" ")[0] for line in kept_code.changes(run, settings)] == ["own.py"]
    for name in kept_code.digests(run):
        (project / name).unlink()
    found = kept_code.usable(run, settings)
    assert [Path(found["env"]["name"].split(":")[1]).is_file(), found["agent"].count(str(run / "code"))] == [True, 2]
    assert kept_code.restore_names(run, found) == settings


def test_what_a_replay_would_run_is_listed_wherever_a_setting_names_it() -> None:
    settings = {"a": "inspect:task.py@name", "b": ["verl:tools.yaml", "Note: in main.py, say so"], "c": "own.py:X"}
    assert kept_code.files(settings) == ["task.py", "verl:tools.yaml", "own.py"]


def test_the_modules_and_packages_that_a_file_imports_are_copied_and_used_where_it_is_gone(
    project: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    kept_code.keep(run, SETTINGS)
    (digest,) = kept_code.digests(run).values()
    copies = run / "code" / digest[:12]
    assert sorted(file.relative_to(copies).as_posix() for file in copies.rglob("*.py")) == HELPERS
    assert kept_code.usable(run, SETTINGS) == SETTINGS
    project.rename(tmp_path / "elsewhere")
    moved = run.rename(tmp_path / "moved")
    found = kept_code.usable(moved, SETTINGS)
    assert made(found) == (1, 2)
    assert kept_code.restore_names(moved, found) == SETTINGS
    assert kept_code.has(moved, "own.py", digest)


@pytest.mark.parametrize("name", HELPERS)
@pytest.mark.slow
def test_a_changed_helper_is_told_as_a_changed_file_is_and_kept_beside_the_earlier_one(
    name: str, project: Path, tmp_path: Path
) -> None:
    kept_code.keep(tmp_path, SETTINGS)
    assert not list(kept_code.changes(tmp_path, SETTINGS))
    (digest,) = kept_code.digests(tmp_path).values()
    (project / name).write_text(f"{FILES[name]}\n# changed")
    what = name if name == "own.py" else f"{name} beside own.py"
    was = tmp_path / "code" / digest[:12] / name
    assert list(kept_code.changes(tmp_path, SETTINGS)) == [
        f"{what} changed since this run used it; what it was is in {was}"
    ]
    kept_code.keep(tmp_path, SETTINGS)
    assert not list(kept_code.changes(tmp_path, SETTINGS))
    assert kept_code.has(tmp_path, "own.py", digest)
    assert kept_code.digests(tmp_path)["own.py"] != digest
    was.write_text("else")
    assert not kept_code.has(tmp_path, "own.py", digest)


def test_where_a_helper_alone_is_gone_the_copies_are_used_and_one_that_was_changed_is_refused(
    project: Path, tmp_path: Path
) -> None:
    kept_code.keep(tmp_path, SETTINGS)
    (project / "deeper.py").unlink()
    (line,) = kept_code.changes(tmp_path, SETTINGS)
    assert line.startswith("what own.py imports as 'deeper' is not there: its copy ")
    assert made(kept_code.usable(tmp_path, SETTINGS)) == (1, 2)
    before = kept_code.digests(tmp_path)
    kept_code.keep(tmp_path, SETTINGS)
    assert kept_code.digests(tmp_path) == before
    next(tmp_path.glob("code/*/deeper.py")).write_text("ONE = 3")
    with pytest.raises(ConfigError, match=r"as 'deeper' is not there, and its copy .* is missing or was changed"):
        kept_code.usable(tmp_path, SETTINGS)


def test_a_helper_that_an_edited_file_no_longer_imports_may_go(project: Path, tmp_path: Path) -> None:
    kept_code.keep(tmp_path, SETTINGS)
    (project / "own.py").write_text("def make():\n    return 1, 2, 3")
    (project / "late.py").unlink()
    assert kept_code.usable(tmp_path, SETTINGS) == SETTINGS
    assert [line.partition(" changed")[0] for line in kept_code.changes(tmp_path, SETTINGS)] == [
        "late.py beside own.py",
        "own.py",
    ]


def test_files_of_one_folder_share_their_helpers_in_the_copy_too(project: Path, tmp_path: Path) -> None:
    (project / "agent.py").write_text("import late\n\n\ndef make():\n    return late, 0, 0")
    (project / "own.py").write_text("import late\n\n\ndef make():\n    return late, 0, 0")
    settings = {"env": {"name": "own.py:make"}, "agent": {"name": "agent.py:make"}}
    kept_code.keep(tmp_path, settings)
    (project / "deeper.py").write_text("ONE = 5")
    assert len(list(kept_code.changes(tmp_path, settings))) == 1
    for name in ("own.py", "agent.py"):
        (project / name).unlink()
    found = kept_code.usable(tmp_path, settings)
    one, other = (made({"env": found[name]})[0] for name in ("env", "agent"))
    assert one is other
    assert one.ONE == 1


def test_a_package_s_own_file_is_kept_as_a_package(project: Path, tmp_path: Path) -> None:
    (project / "words" / "__init__.py").write_text(
        "from .inner import other\n\n\ndef make():\n    return 1, other.ZERO"
    )
    settings = {"env": {"name": "words/__init__.py:make"}}
    kept_code.keep(tmp_path / "run", settings)
    project.rename(tmp_path / "elsewhere")
    assert made(kept_code.usable(tmp_path / "run", settings)) == (1, 0)


def test_what_is_no_python_is_copied_and_what_it_imports_is_not_looked_for(project: Path, tmp_path: Path) -> None:
    (project / "own.py").write_text("import words (")
    kept_code.keep(tmp_path, SETTINGS)
    assert [file.name for file in tmp_path.glob("code/*/*")] == ["own.py"]
