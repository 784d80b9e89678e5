"""The benchmark of the gateway under load, in its small form: `agentrl serve`, a fleet, a real tokenizer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl import models
from agentrl.errors import InfraError
from tests.conftest import need

ROOT = Path(__file__).parents[3]


def printed(*parts: str) -> str:
    """What the benchmark prints, in its small form."""
    try:
        models.resolve("smollm2-135m")
    except InfraError as error:
        need(False, str(error))
    command = [sys.executable, "-m", "benchmarks.gateway_load", *parts, "--small"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_load_benchmark_compares_turns_of_a_served_fleet_with_an_echo_and_with_its_bare_parts() -> None:
    text = printed("cpu", "floor")
    for name in ("gateway", "echo"):
        cost = re.search(rf"one session at a time, {name}: median (\S+), least (\S+)", text)
        assert cost is not None, text
        assert float(cost[1]) >= float(cost[2]) > 0
    bare = [float(cost) for cost in re.findall(r"^bare CPU ms: (\S+) ", text, re.MULTILINE)]
    assert len(bare) == 5, text
    assert min(bare) > 0
    assert "times what can't be left out" in text


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_parts_of_a_turn_add_up_to_its_cpu_time() -> None:
    text = printed("profile")
    whole = re.search(r"^CPU ms per turn: (\S+), of which", text, re.MULTILINE)
    assert whole is not None, text
    parts = [float(cost) for cost in re.findall(r"^  (\S+)  ", text, re.MULTILINE)]
    assert len(parts) > 8, text
    assert sum(parts) == pytest.approx(float(whole[1]), abs=0.1)
