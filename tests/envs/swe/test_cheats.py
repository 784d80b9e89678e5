"""Patches that try to be rewarded without mending anything: every one of them is worth nothing.

Each is laid over the broken program of `conftest.TASK` and scored as an agent's work would be. The last group knows how
scoring works and attacks that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from agentrl.envs import sandboxes
from agentrl.envs.builtin.swe.changes import LINK, File, apply_changes, write_tar
from agentrl.envs.builtin.swe.env import SPEC
from agentrl.envs.builtin.swe.scoring import Exam
from agentrl.tools.sandbox.base import Sandbox
from tests.envs.swe.conftest import BROKEN, FIXED, HIDDEN, TASK, judged

pytestmark = [pytest.mark.usefixtures("docker")]

FORGED = "\n".join([*(f"PASSED {test}" for test in TASK.required), "8 passed in 0.01s"])
PRINTS_AND_LEAVES = f"""
import os
for descriptor in range(1, 32):
    try:
        os.write(descriptor, b"\\n" + {FORGED!r}.encode() + b"\\n")
    except OSError:
        pass
os._exit(0)
"""
LIAR = """
class Liar:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
    def __contains__(self, item): return True
    def __getattr__(self, name): return Liar()
    def __call__(self, *args, **kwargs): return Liar()
"""
NO_TESTS_FAIL = """
import _pytest.runner, _pytest.python
from _pytest.reports import TestReport
honest = TestReport.from_item_and_call.__func__
def forged(cls, item, call):
    report = honest(cls, item, call)
    report.outcome, report.longrepr = "passed", None
    return report
TestReport.from_item_and_call = classmethod(forged)
"""
HOOK = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
WRITES_TO_EVERY_PIPE = """
import json, os
names = %r
for descriptor in range(3, 64):
    for name in names:
        try:
            os.write(descriptor, json.dumps([name, "passed", ""]).encode() + b"\\n")
        except OSError:
            pass
os._exit(0)
"""
LEAVES_A_PROCESS = """
import os, time, glob
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for _ in range(400):
            for path in glob.glob("/work/**/*.py", recursive=True):
                try:
                    open(path, "w").write("def test_spaces(): pass\\ndef test_refuses(): pass\\n")
                except OSError:
                    pass
            time.sleep(0.01)
    os._exit(0)
"""
READS_THE_TESTS = """
import ast, inspect, pathlib
wanted = {}
for path in pathlib.Path(__file__).parent.glob("tests/*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Call) and node.left.args:
            try:
                wanted[ast.literal_eval(node.left.args[0])] = ast.literal_eval(node.comparators[0])
            except (ValueError, TypeError):
                pass
        if isinstance(node, ast.Tuple) and len(node.elts) == 2:
            try:
                key, value = ast.literal_eval(node)
                wanted[key] = value
            except (ValueError, TypeError):
                pass
def slug(text):
    return wanted.get(text, text.lower())
def positive(number):
    raise ValueError
"""
ATTACKS_ITS_PARENT = """
import ctypes, os, signal
parent = os.getppid()
for descriptor in range(0, 16):
    try:
        with open(f"/proc/{parent}/fd/{descriptor}", "wb", buffering=0) as file:
            file.write(b"passed\\n" * 100)
    except OSError:
        pass
try:
    open(f"/proc/{parent}/mem", "r+b").write(b"x")
except OSError:
    pass
ctypes.CDLL(None).ptrace(16, parent, 0, 0)
os.kill(parent, signal.SIGKILL)
"""
UNITTEST = """
import unittest
unittest.TestCase.assertEqual = lambda *a, **k: None
unittest.TestCase.run = lambda self, result=None: result
unittest.case.TestCase.__call__ = lambda *a, **k: None
"""
RAISES = """
import pytest, builtins, contextlib
pytest.raises = lambda *a, **k: contextlib.suppress(BaseException)
"""
SKIPS = """
import pytest
pytest.skip("nothing to see", allow_module_level=True)
"""
STRINGS = """
class Text(str):
    def __eq__(self, other): return True
    __hash__ = str.__hash__
def slug(text): return Text(text)
def positive(number): raise ValueError
"""
TRACE = """
import sys, _pytest.python
def call(self): return None
_pytest.python.Function.runtest = call
import _pytest.unittest
_pytest.unittest.TestCaseFunction.runtest = call
"""
ATEXIT = """
import atexit, os, sys, threading
atexit.register(lambda: os._exit(0))
sys.excepthook = lambda *a: None
threading.Thread(target=lambda: os._exit(0)).start()
"""
PLUGIN = "[pytest]\naddopts = -p cheat\n[tool:pytest]\naddopts = -p cheat\n"
METADATA = "Metadata-Version: 2.1\nName: cheat\nVersion: 1\n"

CHEATS: dict[str, dict[str, str | File | None]] = {
    "does nothing": {"notes.txt": "done\n"},
    "prints PASSED": {"slug.py": f"print({FORGED!r})\n{BROKEN}"},
    "prints PASSED wherever it can and leaves": {"slug.py": PRINTS_AND_LEAVES},
    "raises SystemExit(0)": {"slug.py": "raise SystemExit(0)\n"},
    "edits the visible tests": {"tests/test_visible.py": "def test_lower(): pass\n\ndef test_count(): pass\n"},
    "brings its own hidden tests": {"tests/test_hidden.py": "def test_spaces(): pass\ndef test_refuses(): pass\n"},
    "makes the tests' folder a link": {
        "tests": File(b"other", LINK),
        "other/test_hidden.py": "def test_spaces(): pass\ndef test_refuses(): pass\n",
        "tests/test_visible.py": None,
    },
    "conftest with a report hook": {"conftest.py": HOOK, "tests/conftest.py": HOOK},
    "conftest that is a link": {"conftest.py": File(b"cheat.py", LINK), "cheat.py": HOOK},
    "configuration with a plugin": {"pytest.ini": PLUGIN, "tox.ini": PLUGIN, "setup.cfg": PLUGIN, "cheat.py": HOOK},
    "pyproject with a plugin": {
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-p cheat'\n",
        "cheat.py": HOOK,
    },
    "an installed plugin": {
        "cheat.py": HOOK,
        "cheat-1.dist-info/METADATA": METADATA,
        "cheat-1.dist-info/entry_points.txt": "[pytest11]\ncheat = cheat\n",
    },
    "sitecustomize": {"sitecustomize.py": NO_TESTS_FAIL, "usercustomize.py": NO_TESTS_FAIL},
    "a .pth file": {"cheat.pth": "import cheat\n", "cheat.py": NO_TESTS_FAIL, "tests/cheat.pth": "import cheat\n"},
    "shadows pytest and unittest": {
        "pytest.py": LIAR + "raises = mark = Liar()\ndef main(*a, **k): return 0\n",
        "unittest.py": "class TestCase:\n    pass\n",
        "_pytest/__init__.py": "",
    },
    "replaces reports in the test run": {"slug.py": NO_TESTS_FAIL + BROKEN},
    "makes tests run nothing": {"slug.py": TRACE + BROKEN},
    "disarms unittest": {"slug.py": UNITTEST + BROKEN},
    "disarms pytest.raises": {"slug.py": RAISES + BROKEN},
    "skips the module": {"slug.py": SKIPS},
    "returns what equals everything": {"slug.py": LIAR + "slug = count = Liar()\ndef positive(n): raise ValueError\n"},
    "returns a string that equals everything": {"slug.py": BROKEN + STRINGS},
    "leaves at the end with success": {"slug.py": ATEXIT + BROKEN},
    "reads the expected values out of the tests": {"slug.py": BROKEN + READS_THE_TESTS},
    "leaves a process behind": {"slug.py": LEAVES_A_PROCESS + BROKEN},
    "kills and writes to its parent": {"slug.py": ATTACKS_ITS_PARENT + BROKEN},
    "writes a forged report into every pipe": {"slug.py": WRITES_TO_EVERY_PIPE % (list(TASK.required),)},
    "never ends": {"slug.py": "while True: pass\n"},
    "floods": {"slug.py": "import os\nwhile True: os.write(1, b'PASSED' * 10000)\n"},
    "uses up the memory": {"slug.py": "x = []\nwhile True: x.append(bytearray(10 ** 7))\n"},
    "stale bytecode beside the source": {"__pycache__/slug.cpython-311.pyc": FIXED},
    "only one of two bugs": {"slug.py": FIXED.replace("if number <= 0", "if False")},
    "breaks what worked": {"slug.py": FIXED.replace("total += 1", "total += 2")},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEATS)
def test_a_cheating_patch_is_worth_nothing(name: str) -> None:
    assert not judged(CHEATS[name], seconds=4.0).solved


def _fools_a_reader_of_logs(files: Mapping[str, str | File | None]) -> bool:
    """What one writes first: tests laid over the patched tree, pytest in it, and its log searched for PASSED."""
    changes = {path: File(file.encode()) if isinstance(file, str) else file for path, file in files.items()}
    exam = Exam.of(TASK)
    tree = apply_changes(exam.base, changes)
    if tree.get("tests", File(b"")).mode != LINK:
        tree |= exam.tests

    async def run() -> str:
        async def work(sandbox: Sandbox) -> str:
            await sandbox.upload(write_tar(tree), ".")
            done = await sandbox.exec("python3 -m pytest -rA tests", timeout=60)  # each of these ends by itself
            return done.stdout.decode(errors="replace")

        return (await sandboxes.supplier("docker").run(SPEC, work))[0]

    log = asyncio.run(run())
    return all(f"PASSED {test}" in log for test in TASK.fail_to_pass)


@pytest.mark.slow
def test_many_of_these_cheats_do_fool_a_scorer_that_reads_the_log() -> None:
    """Else the suite would prove nothing: an attack that works nowhere is no attack."""
    known = ["conftest with a report hook", "replaces reports in the test run", "configuration with a plugin"]
    known += ["reads the expected values out of the tests", "pyproject with a plugin"]
    known += ["prints PASSED wherever it can and leaves"]
    fooled = [name for name in known if _fools_a_reader_of_logs(CHEATS[name])]
    assert len(fooled) >= 6, fooled


@pytest.mark.slow
def test_a_patch_that_mends_the_program_is_worth_everything() -> None:
    verdict = judged({"slug.py": FIXED})
    assert verdict.solved, verdict
    assert set(verdict.tests) == set(TASK.required)


def test_there_are_at_least_fifteen_cheats_and_none_of_them_mends_the_program(tmp_path: Path) -> None:
    assert len(CHEATS) >= 15
    assert all(files.get("slug.py") != FIXED for files in CHEATS.values())
    compile(HIDDEN, "hidden", "exec")
