"""Files that settings name may import what lies beside them, and nothing gets in another one's way."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
from pathlib import Path

import pytest

import agentrl
from agentrl.common import imports
from agentrl.errors import ConfigError

ENV = """
import json
from dataclasses import dataclass

import agentrl
import helpers
from words import LIST as WORDS
from words.more import longer
from words import more as other


class Beside(agentrl.Env):
    def tasks(self, split="train"):
        return [{"word": word} for word in WORDS]

    def reset(self, task, *, seed=None):
        from helpers import Pair

        self.pair = Pair(task["word"], longer(task["word"]))
        return json.dumps(helpers.shown(self.pair))

    @agentrl.reward
    def said(self, session):
        return float(session.answer == other.longer(self.pair.first))
"""
HELPERS = """
from dataclasses import dataclass


@dataclass
class Pair:
    first: str
    second: str


def shown(pair):
    return "NAME: " + pair.first
"""


def folder(at: Path, name: str) -> Path:
    (at / "words").mkdir(parents=True)
    (at / "env.py").write_text(ENV)
    (at / "helpers.py").write_text(HELPERS.replace("NAME", name))
    (at / "words" / "__init__.py").write_text(f"LIST = ['{name}']")
    (at / "words" / "more.py").write_text(
        "from . import LIST\n\n\ndef longer(word):\n    return word * len(LIST) + '!'\n"
    )
    (at / "json.py").write_text("raise RuntimeError('what is installed goes first')")
    return at / "env.py"


def test_a_file_imports_modules_and_packages_that_lie_beside_it(tmp_path: Path) -> None:
    """In two folders of the same names, each its own; nothing of it is in Python's table by its bare name."""
    envs = [agentrl.make(f"{folder(tmp_path / name, name)}:Beside") for name in ("one", "two")]
    assert [env.reset(agentrl.Task.of({"word": "w"})) for env in envs] == ['"one: w"', '"two: w"']
    assert [list(env.tasks()) for env in envs] == [[{"word": "one"}], [{"word": "two"}]]
    assert not {"helpers", "words"} & sys.modules.keys()
    assert json.dumps({}) == "{}"


def test_what_a_helper_defines_is_pickled_by_a_name_that_another_process_finds(tmp_path: Path) -> None:
    load = imports.load(f"{folder(tmp_path, 'one')}:Beside", "env")
    pair = load.reset.__globals__["helpers"].Pair("a", "b")
    data, known = pickle.dumps(pair), imports.files()
    names = [name for name in known if name in data.decode("latin1")]
    assert [Path(known[name].path).name for name in names] == ["helpers.py"]
    package = next(name for name, file in known.items() if file.path == str(tmp_path / "words" / "__init__.py"))
    gone = {name: sys.modules.pop(name) for name in list(known) if Path(known[name].path).is_relative_to(tmp_path)}
    try:
        imports.find_files(known)
        assert vars(pickle.loads(data)) == {"first": "a", "second": "b"}
        assert importlib.import_module(f"{package}.more").longer("x") == "x!"
    finally:
        sys.meta_path.pop()
        sys.modules.update(gone)


def test_another_process_finds_a_file_and_what_it_imports_later(tmp_path: Path) -> None:
    file = tmp_path / "env.py"
    file.write_text("import helpers\n\n\ndef make():\n    import later\n\n    return helpers.ONE, later.TWO\n")
    (tmp_path / "helpers.py").write_text("ONE = 1")
    (tmp_path / "later.py").write_text("TWO = 2")
    data, known = pickle.dumps(imports.load(f"{file}:make", "env")), imports.files()
    gone = {name: sys.modules.pop(name) for name in list(known) if Path(known[name].path).is_relative_to(tmp_path)}
    try:
        imports.find_files(known)
        assert pickle.loads(data)() == (1, 2)
    finally:
        sys.meta_path.pop()
        sys.modules.update(gone)


@pytest.mark.parametrize("half", [True, False])
def test_another_process_imports_what_this_one_has_whatever_the_files_are_by_then(
    half: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that took another's place amid a run played the environment as its author was just rewriting it."""
    file = folder(tmp_path, "one")
    imports.load(f"{file}:Beside", "env")
    known = imports.files()
    for each in tmp_path.rglob("*.py"):
        each.write_text("def half(:" if half else "LIST = []") if each != file else each.unlink()
    for name in [name for name in known if Path(known[name].path).is_relative_to(tmp_path)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(imports, "_given", {})
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    imports.find_files(known)
    env = agentrl.make(f"{file}:Beside")
    assert env.reset(agentrl.Task.of({"word": "w"})) == '"one: w"'
    assert list(env.tasks()) == [{"word": "one"}]
    assert imports.files().keys() == known.keys()


@pytest.mark.parametrize(
    "line", ["import nowhere", "from words import nothing", "import words.nothing", "from . import x"]
)
def test_what_is_not_there_is_named(tmp_path: Path, line: str) -> None:
    file = folder(tmp_path, "one")
    file.write_text(line)
    missing = line.split()[-1].rpartition(".")[2]
    with pytest.raises(
        (ConfigError, agentrl.errors.UnknownName), match=f"importing it raised .*{missing}|no known parent"
    ):
        imports.load(f"{file}:Beside", "env")


def test_a_file_that_changes_the_working_directory_changes_it_for_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`env=own.py:E` was not found any more once it had been imported."""
    (tmp_path / "own.py").write_text("import os\nos.chdir('/')\nVALUE = 3\n")
    monkeypatch.chdir(tmp_path)
    assert [imports.load("own.py:VALUE", "env") for _ in range(2)] == [3, 3]
    assert f"changed the working directory to /: it is {tmp_path} again" in caplog.text


def test_a_part_of_a_package_that_is_named_by_its_file_is_told_how_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told to name a module, which then was not found, since Python does not look in the working directory."""
    for name in ("top/__init__.py", "top/deep/__init__.py", "top/deep/part.py", "alone.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("from ..common import VALUE\n" if name.endswith(("part.py", "alone.py")) else "")
    with pytest.raises(ConfigError, match=rf"relative import .*: PYTHONPATH={tmp_path} and top\.deep\.part:NAME"):
        imports.load(f"{tmp_path / 'top/deep/part.py'}:VALUE", "env")
    with pytest.raises(ConfigError, match=r"relative import .*; it is in no package"):
        imports.load(f"{tmp_path / 'alone.py'}:VALUE", "env")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(agentrl.errors.UnknownName, match=r"no module 'top' .*is found with PYTHONPATH=\."):
        imports.load("top.deep.part:VALUE", "env")


def test_a_file_that_is_edited_within_a_second_and_keeps_its_length_is_read_anew(tmp_path: Path) -> None:
    def written(at: str, word: str) -> None:
        (tmp_path / at).write_text(f"{'import helpers' if at == 'main.py' else ''}\nWORD = {word!r}\n")
        os.utime(tmp_path / at, (1_700_000_000, 1_700_000_000))

    def loaded() -> list[str]:
        module = imports.module_of(str(tmp_path / "main.py"), "env=main.py")
        return [module.WORD, module.helpers.WORD]

    written("main.py", "more")
    written("helpers.py", "less")
    assert loaded() == ["more", "less"]
    for name in imports.files():
        del sys.modules[name]  # as a new process has it
    written("helpers.py", "much")
    assert loaded() == ["more", "much"]
    written("main.py", "many")
    assert loaded() == ["many", "much"]
    assert not (tmp_path / "__pycache__").exists()


def test_a_script_that_trains_where_it_is_imported_is_told_so(tmp_path: Path) -> None:
    """`agentrl check env=script.py:Shop` trained a model first, and so did each worker that imported it."""
    for call in ("train", "evaluate", "rollouts", "check_env"):
        (tmp_path / f"{call}.py").write_text(f"import agentrl\nagentrl.{call}('calculator')\n")
        with pytest.raises(ConfigError, match=rf"{call}\.py calls agentrl\.{call} where it is imported.*__main__"):
            imports.load(f"{tmp_path / call}.py:Shop", "env=x")
