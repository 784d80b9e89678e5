"""`benchmarks.supports`, `.sglang_sampler` and `.vllm_sampler`: their small forms measure what they say."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.rollout.engines.servers.driver import driver_environment
from tests.conftest import need
from tests.rollout.engines import servers


@pytest.mark.slow
def test_its_small_form_measures_bytes_and_times_of_each_narrowing_and_compares_sets_and_draws() -> None:
    command = [sys.executable, "-m", "benchmarks.supports", "cost", "proof", "--small"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.findall(
        r"^(.+): (\d+\.\d) bytes a token, 100.0% trained; head \d+\.\d\d times", done.stdout, re.MULTILINE
    )
    sizes = {name: float(size) for name, size in found}
    assert len(sizes) == 5
    assert sizes["full support"] == 0 < sizes["repetition_penalty=1.1"] < sizes["top_p=0.9"]
    rows = r"^200 rows: [01] sets differ from an independent sampler's, by [012] ids at most; 0 tokens are outside"
    assert re.search(rows, done.stdout, re.MULTILINE)
    [(square, freedom)] = re.findall(r"^1000 draws: chi-square (\S+) with (\d+) degrees", done.stdout, re.MULTILINE)
    assert float(square) < 3 * int(freedom)


@pytest.mark.slow
def test_sglangs_own_sampler_keeps_the_sets_of_the_rule_that_is_written_for_it() -> None:
    root = Path(__file__).parents[1]
    command = [servers.python("sglang"), "-m", "benchmarks.sglang_sampler", "--draws", "300", "--steps", "300"]
    env = os.environ | driver_environment() | {"TORCH_COMPILE_DISABLE": "1"}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [apart] = re.findall(r"^300 steps with penalties: logits differ from the rule's by (\S+) at", done.stdout, re.M)
    assert float(apart) < 1e-5
    [found] = re.findall(r"^300 draws: (\d+) sets differ .*, by (\d+) ids at most; (\d+) tokens", done.stdout)
    differ, most, outside = map(int, found)
    assert (differ <= 1, most <= 2, outside) == (True, True, 0)


@pytest.mark.slow
def test_vllms_own_sampler_keeps_the_sets_of_its_rule_and_draws_by_its_log_probabilities() -> None:
    command = [servers.python("vllm"), "-m", "benchmarks.vllm_sampler", "--rows", "500", "--draws", "2000"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [counts] = re.findall(
        r"^500 rows: (\d+) sets differ .* at most, (\d+) of them .*; (\d+) tokens .*; (\d+) log-prob", done.stdout, re.M
    )
    differ, far, outside, wrong = map(int, counts)
    assert (differ <= 2, far, outside, wrong) == (True, 0, 0, 0), "rounding alone"
    [(square, freedom)] = re.findall(r"^2000 draws: chi-square (\S+) with (\d+) degrees", done.stdout, re.M)
    assert float(square) < 3 * int(freedom)


@pytest.mark.slow
def test_its_small_form_trains_with_calls_under_a_grammar_and_as_if_no_set_was_recorded() -> None:
    need(importlib.util.find_spec("llguidance") is not None, "llguidance, of the extra grammars")
    command = [sys.executable, "-m", "benchmarks.supports", "learn", "--small", "--only", "strict_calls"]
    done = subprocess.run(
        [*command, "--unrenormalised"], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^calculator, .*seed 0: .* after 1 steps", done.stdout, re.MULTILINE)) == 3
