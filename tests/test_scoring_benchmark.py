"""The benchmark of checked answers, in its small form."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_scoring_benchmark_tells_right_answers_from_wrong_ones_here_and_in_workers() -> None:
    command = [sys.executable, "-m", "benchmarks.scoring", "--small"]
    found = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    rows = re.findall(
        r"^(.+): math (\S+) a second, exact_match (\S+), ratio ([\d.]+)(?:; CPU time .*)?$", found.stdout, re.MULTILINE
    )
    assert [row[0] for row in rows] == ["this process", "2 reward workers"]
    assert all(float(number.replace(",", "")) > 0 for row in rows for number in row[1:])
