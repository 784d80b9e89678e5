"""The benchmark of learning comes to its end, and prints what a policy was worth before and after."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_its_small_form_measures_a_policy_before_and_after_its_steps() -> None:
    command = [sys.executable, "-m", "benchmarks.learning", "data_analysis", "--seeds", "1", "--small"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    number = r"\d\.\d{3} \[\d\.\d{3}, \d\.\d{3}\]"
    words = rf"data_analysis seed 0: {number} after the warm start -> {number} after 1 steps"
    assert re.search(words, done.stdout), done.stdout
