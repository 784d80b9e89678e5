"""`benchmarks.supports`: its small form measures what it says."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import need


@pytest.mark.slow
def test_its_small_form_measures_bytes_and_times_of_each_narrowing() -> None:
    command = [sys.executable, "-m", "benchmarks.supports", "cost", "--small"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.findall(
        r"^(.+): (\d+\.\d) bytes a token, 100.0% trained; head \d+\.\d\d times", done.stdout, re.MULTILINE
    )
    sizes = {name: float(size) for name, size in found}
    assert len(sizes) == 5
    assert sizes["full support"] == 0 < sizes["repetition_penalty=1.1"] < sizes["top_p=0.9"]


@pytest.mark.slow
def test_its_small_form_trains_with_calls_under_a_grammar_and_as_if_no_set_was_recorded() -> None:
    need(importlib.util.find_spec("llguidance") is not None, "llguidance, of the extra grammars")
    command = [sys.executable, "-m", "benchmarks.supports", "learn", "--small", "--only", "strict_calls"]
    done = subprocess.run(
        [*command, "--unrenormalised"], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^calculator, .*seed 0: .* after 1 steps", done.stdout, re.MULTILINE)) == 3
