"""What was collected once is run by several processes, and reported as if one had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
MEETS = """
import os, time
from pathlib import Path

def test_meets_the_other():
    own, other = Path({own!r}), Path({other!r})
    own.touch()
    while not other.exists():
        time.sleep(0.01)
    {then}

def test_is_right(): pass
"""
RUN = """
import os, sys, pytest
from tests.suite.forks import Forks
os.environ["MAIN"] = str(os.getpid())
sys.exit(pytest.main(["-p", "no:cacheprovider", "--rootdir=.", "."], plugins=[Forks(2)]))
"""
CHILD = "if os.environ['MAIN'] != str(os.getpid()): "


@pytest.mark.parametrize(
    ("then", "code", "says"),
    [
        ("pass", 0, ["4 passed"]),
        (f"{CHILD}assert not 'a fault'", 1, ["1 failed, 3 passed", "AssertionError: assert not 'a fault'"]),
        (f"{CHILD}os._exit(3)", 1, ["a forked process ended with status"]),
    ],
    ids=["all right", "a test that fails", "a process that dies"],
)
def test_two_processes_run_modules_side_by_side_and_all_is_reported(
    then: str, code: int, says: list[str], tmp_path: Path
) -> None:
    for own, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"test_{own}.py").write_text(MEETS.format(own=own, other=other, then=then))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert all(words in done.stdout for words in says), done.stdout
