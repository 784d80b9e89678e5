"""The benchmark of learning comes to its end, and prints what a policy was worth before and after."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_its_small_form_measures_a_policy_before_and_after_its_steps_and_seeing_beside_blindness() -> None:
    names = ("data_analysis", "grid_camera", "grid_camera_blind")
    command = [sys.executable, "-m", "benchmarks.learning", *names, "--seeds", "1", "--small"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    number = r"\d\.\d{3} \[\d\.\d{3}, \d\.\d{3}\]"
    for name in names:
        words = rf"{name} seed 0: {number} after the warm start -> {number} after 1 steps"
        assert re.search(words, done.stdout), done.stdout
    assert re.search(rf"seed 0: grid_camera {number}.* grid_camera_blind {number}.*: no clear difference", done.stdout)
