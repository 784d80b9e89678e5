"""Each planted fault is found for the right reason, with few episodes; correct worlds pass.

Of the faults of ordinary authors one for each rule; `python -m benchmarks.check_faults` plays all, to their ends.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrl
from agentrl.envs.builtin.calculator import Calculator
from agentrl.envs.check.table import RULES
from tests.envs.check import worlds
from tests.envs.check.planting import Fault, check, faults, find, plain_faults, working_in

PLAYED = [*plain_faults(), *{fault.rule: fault for fault in reversed(faults())}.values()]
FIRST = {fault.rule: fault for fault in reversed(PLAYED)}
PARAMETERS = [
    pytest.param(
        fault, id=f"{fault.rule}: {fault.name}", marks=() if FIRST[fault.rule] is fault else pytest.mark.nightly
    )
    for fault in PLAYED
]
CORRECT = (worlds.Parity, worlds.Walk, worlds.Duel, worlds.Auction)


def test_there_are_77_faults_or_more_each_with_a_name_of_its_own():
    assert len(faults()) >= 77
    assert len({fault.name for fault in faults()}) == len(faults())


def test_every_rule_has_a_fault_that_breaks_it():
    assert {fault.rule for fault in PLAYED} == {rule.name for rule in RULES} | {"make"}
    assert len(RULES) >= 40


@pytest.mark.parametrize("fault", PARAMETERS)
@pytest.mark.slow
def test_a_planted_fault_is_found_for_the_right_reason(fault: Fault, tmp_path: Path):
    outcome = find(fault, tmp_path)
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
