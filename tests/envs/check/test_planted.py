"""A sample of the planted faults, one for each rule, is found for the right reason; correct worlds pass.

`python -m benchmarks.check_faults` plays all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrl
from agentrl.envs.calculator import Calculator
from tests.envs.check import worlds
from tests.envs.check.planting import Fault, check, check_fault, faults, working_in

SAMPLE = list({fault.rule: fault for fault in reversed(faults())}.values())
CORRECT = (worlds.Parity, worlds.Walk, worlds.Duel, worlds.Auction)


def test_there_are_77_faults_or_more_each_with_a_name_of_its_own():
    assert len(faults()) >= 77
    assert len({fault.name for fault in faults()}) == len(faults())


@pytest.mark.parametrize("fault", SAMPLE, ids=lambda fault: fault.name)
@pytest.mark.slow
def test_a_planted_fault_is_found_for_the_right_reason(fault: Fault, tmp_path: Path):
    outcome = check_fault(fault, tmp_path, tasks=1 if fault.rule not in ("state", "determinism") else 2)
    assert outcome.names(fault), outcome.findings


@pytest.mark.parametrize("world", CORRECT, ids=lambda world: world.__name__)
@pytest.mark.slow
def test_nothing_is_found_in_a_game_a_quiz_and_a_world_with_chance(world: type, tmp_path: Path):
    with working_in(tmp_path):
        assert check(world).findings == []


@pytest.mark.slow
def test_a_factory_is_not_taken_for_its_class_whose_options_another_process_does_not_know():
    def short() -> Calculator:
        return Calculator(max_steps=2)

    assert agentrl.check_env(short, tasks=1, scored=8) == []
