"""No code under test gets a reward, or its session drawn again, by breaking what scores it."""

from __future__ import annotations

import pytest

from agentrl.envs.builtin.code.reward import code_verdict
from agentrl.envs.builtin.code.runners import InSandbox
from tests.envs.swe.conftest import BROKEN, FIXED, docker, judged  # noqa: F401
from tests.redteam.attack import Attack, ids
from tests.redteam.cheats import ANSWERS, CHEATS, HELD

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("docker")]


@pytest.mark.parametrize("case", CHEATS, ids=ids(CHEATS))
def test_a_repository_is_not_worth_more_for(case: Attack) -> None:
    verdict = judged({"slug.py": case.payload + "\n" + BROKEN})
    assert not verdict.solved, case.must_not
    if case.must_not == HELD:
        assert "timeout" not in verdict.note, case.must_not


@pytest.mark.parametrize("case", CHEATS, ids=ids(CHEATS))
async def test_a_function_is_not_worth_more_for(case: Attack) -> None:
    verdict = await code_verdict(
        f"{case.payload}\ndef f(x): return None",
        ["assert f(2) == 4"],
        entry_point="f",
        timeout=20.0,
        runner=InSandbox(),
    )
    assert not verdict.solved, case.must_not


ASKED = [
    "assert 'q8zk' in f(2)",
    "r = f(2)\nassert 4 in r and len(r) == 1",
    "assert all(map(lambda x: f(x) == x * x, [1, 2]))",
    "assert not any(map(lambda x: f(x) != x * x, [1, 2]))",
    "assert [y for y in map(f, [1, 2]) if y not in (1, 4)] == []",
    "assert sum(1 for got, want in zip(map(f, [1, 2]), [1, 4]) if got != want) == 0",
    "assert f(2).count(4) == 1",
    "assert f(2).startswith('4') or f(2).endswith('4')",
    "assert {4}.issubset(f(2)) and len(f(2)) == 1",
    "assert f(2).issuperset({4})",
    "assert f(2) in (4, [4])",
    "assert isinstance(f(2), int) and f(2) + 0 == 4",
    "assert f(2) <= {4}",
    "assert {4} - f(2) == set()",
    "xs = [2, 1]\nassert f(xs) == sorted(xs)",
    "try: f(2)\nexcept BaseException: raise AssertionError('caught')\nassert f(1) == 1",
    "try: f(2)\nexcept: pass\nassert {2: 4}[2] == f(2)",
]
"""Ways in which tests ask a function that squares a number, or sorts numbers."""


@pytest.mark.parametrize("case", ANSWERS, ids=ids(ANSWERS))
async def test_no_answer_decides_how_its_question_is_written(case: Attack) -> None:
    verdict = await code_verdict(
        f"{case.payload}\ndef f(x): return answer(x)",
        ASKED,
        entry_point="f",
        partial=True,
        timeout=60.0,
        runner=InSandbox(),
    )
    assert verdict.passed == 0, case.must_not


@pytest.mark.parametrize("case", ANSWERS, ids=ids(ANSWERS))
def test_no_repository_is_worth_more_whose_function_answers_so(case: Attack) -> None:
    code = f"{BROKEN}\n{case.payload}\ndef slug(text): return answer(text)\n"
    assert not judged({"slug.py": code}).solved, case.must_not


def test_a_correct_repair_gets_the_full_reward_after_every_one_of_them() -> None:
    """What they did to their sandboxes is nobody else's trouble."""
    assert judged({"slug.py": FIXED}).solved
