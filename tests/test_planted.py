"""The planted faults themselves: they all still apply, and the command finds one, and says which is not found."""

from __future__ import annotations

import re

import pytest

from tests.planted.__main__ import check, run
from tests.planted.fault import Fault, NoLongerApplies, entries

TREE = "tests/sessions/test_tree.py"
PATHS = f"{TREE}::test_a_path_is_its_parents_path_and_its_own_tokens"
REVERSED = Fault("agentrl.sessions.tree.tree:path", "found[::-1]", "found", PATHS)
HARMLESS = Fault("agentrl.sessions.tree.tree:new_tokens", "Return the number", "Return that number", PATHS)


@pytest.mark.slow
def test_every_planted_fault_still_applies_and_its_test_is_there() -> None:
    faults = list(entries())
    assert not check(faults)
    assert len({(fault.function, fault.old, fault.new, fault.test) for fault in faults}) == len(faults)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault("agentrl.sessions.tree.tree:new_token", "0", "1", TREE), "the module has no new_token"),
        (Fault("agentrl.sessions.wood:new_tokens", "0", "1", TREE), "there is no file agentrl/sessions/wood.py"),
        (Fault("agentrl.sessions.tree.tree:new_tokens", "leaves", "1", TREE), "it is there 0 times"),
        (Fault("agentrl.sessions.tree.tree:new_tokens", "node", "1", TREE), "it is there 4 times"),
        (Fault("agentrl.sessions.tree.tree:new_tokens", "or 0", "or", TREE), "the new text makes no Python"),
        (
            Fault("agentrl.sessions.tree.tree:new_tokens", "or 0", "or 1", "tests/test_oak.py"),
            "there is no file tests/test_oak",
        ),
        (
            Fault("agentrl.sessions.tree.tree:new_tokens", "or 0", "or 1", f"{TREE}::test_an_oak"),
            "has no test test_an_oak",
        ),
    ],
)
def test_a_fault_that_no_longer_applies_is_an_error_that_says_why(fault: Fault, words: str) -> None:
    with pytest.raises(NoLongerApplies, match=re.escape(words)):
        fault.check()


@pytest.mark.slow
def test_a_text_is_replaced_in_its_function_alone() -> None:
    source = REVERSED.file().read_text()
    changed = Fault("agentrl.sessions.tree.tree:roots", "None", "0", TREE).planted()
    different = [pair for pair in zip(source.splitlines(), changed.splitlines(), strict=True) if pair[0] != pair[1]]
    assert different == [("    return children(session, None)", "    return children(session, 0)")]


@pytest.mark.slow
def test_a_fault_is_planted_in_a_copy_and_found_and_a_harmless_one_is_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = REVERSED.file().read_bytes()
    (wrong,) = run([REVERSED, HARMLESS], 2, sound=False)
    assert wrong.startswith("found 0 times of 2: agentrl.sessions.tree.tree:new_tokens: 'Return the number'")
    assert " 2 of 2  example" in capsys.readouterr().out
    assert REVERSED.file().read_bytes() == source
