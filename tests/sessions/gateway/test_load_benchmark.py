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


@pytest.mark.slow
def test_the_load_benchmark_compares_turns_of_a_served_fleet_with_an_echo() -> None:
    try:
        models.resolve("smollm2-135m")
    except InfraError as error:
        need(False, str(error))
    command = [sys.executable, "-m", "benchmarks.gateway_load", "cpu", "--small"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
    for name in ("gateway", "echo"):
        cost = re.search(rf"one session at a time, {name}: median (\S+), least (\S+)", found.stdout)
        assert cost is not None, found.stdout
        assert float(cost[1]) >= float(cost[2]) > 0
