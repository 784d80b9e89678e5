"""Rewritten tests: they show what a program does, and nothing in them says what it should do."""

from __future__ import annotations

import ast
import builtins
import json
import types
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.builtin.swe.generation.expect import as_shown, decode, fits
from agentrl.envs.builtin.swe.generation.guess import MISSING, MOST, Open, bits, can_fail
from agentrl.envs.builtin.swe.generation.key import Expected, FileKey, ReportRow, is_satisfied, verdicts
from agentrl.envs.builtin.swe.generation.observe import AssertionSite, Rewritten, rewritten
from agentrl.envs.builtin.swe.inside import PROGRAM


def inside() -> dict[str, Any]:
    """The observer and the encoder of the program that runs in the sandbox."""
    space: dict[str, Any] = {}
    wanted = {"encode", "shown", "Raising", "Observer"}
    tree = ast.parse(PROGRAM)
    parts = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in wanted]
    exec("import datetime, decimal, fractions", space)
    exec(compile(ast.Module(parts, []), "inside", "exec"), space)
    return space


INSIDE = inside()


def shown_by(text: str, program: Callable[[Any], Any], test: str = "test_it") -> list[Any]:
    """What a rewritten test shows of a program, which is `f` to it."""
    observer = builtins._observe = INSIDE["Observer"]()  # type: ignore[attr-defined]
    module = types.ModuleType("file")
    module.__dict__["f"] = program
    exec(compile(text, "file", "exec"), module.__dict__)
    function: Any = module
    for part in test.split("."):
        function = getattr(function() if isinstance(function, type) else function, part)
    function()
    return json.loads(json.dumps(observer.events))


def judge(source: str, right: Callable[[Any], Any], tried: Callable[[Any], Any], test: str = "test_it") -> bool:
    """Whether a program is right by the key that another one makes."""
    made = rewritten(source)
    recorded = shown_by(made.recording, right, test)
    expected = Expected(test, [(event[0], event[2] if len(event) > 2 else None) for event in recorded])
    return is_satisfied(made.sites, expected, ReportRow(test, "passed", "", shown_by(made.scoring, tried, test)))


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8), st.binary(max_size=4),
        st.decimals(allow_nan=False), st.fractions(), st.dates(), st.datetimes(), st.timedeltas(),
        st.complex_numbers(allow_nan=False), st.frozensets(st.integers(), max_size=3),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=6,
)  # fmt: skip


@pytest.mark.slow
@given(VALUES)
def test_a_value_comes_out_of_the_sandbox_as_it_was(value: Any) -> None:
    sent = json.loads(json.dumps(INSIDE["shown"](value)))
    assert decode(sent) == value
    assert decode(as_shown(value)) == value
    assert fits(AssertionSite("equal"), sent, sent)


@given(VALUES, VALUES)
@pytest.mark.slow
def test_values_fit_as_they_are_equal(one: Any, other: Any) -> None:
    assert fits(AssertionSite("equal"), as_shown(one), as_shown(other)) == (one == other)


@given(
    st.recursive(st.none() | st.booleans() | st.text(max_size=4) | st.integers(), lambda x: st.lists(x, max_size=3)),
    VALUES,
)
@pytest.mark.slow
def test_whatever_comes_out_is_judged_and_never_an_error(rubbish: Any, value: Any) -> None:
    for kind, expected in (
        ("equal", value),
        ("approx", (value, None, None)),
        ("almost", (value, None, None)),
        ("count", [value]),
    ):
        assert fits(AssertionSite(kind), as_shown(expected), rubbish) in (True, False)
    operators = AssertionSite("compare", {"operator": "In", "holds": True, "swapped": False})
    assert fits(operators, as_shown(value), rubbish) in (True, False)
    is_satisfied([AssertionSite("equal")], Expected("t", [(0, 3)]), ReportRow("t", "passed", "", [rubbish]))


def test_subclasses_of_builtin_kinds_are_what_an_equality_takes_them_for() -> None:
    import collections
    import enum

    pair = collections.namedtuple("pair", "a b")
    grade = enum.IntEnum("grade", {"GOOD": 3})
    assert decode(INSIDE["shown"](pair(1, [grade.GOOD]))) == (1, [3])
    assert decode(INSIDE["shown"](collections.OrderedDict(a=1))) == {"a": 1}


class Liar:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class LyingText(str):
    def __eq__(self, other: object) -> bool:
        return True

    def __repr__(self) -> str:
        return "'right'"

    __hash__ = str.__hash__


def test_what_equals_everything_equals_nothing() -> None:
    for liar in (Liar(), LyingText("wrong"), [LyingText("wrong")]):
        for wanted in ("right", ["right"], None, True, 0):
            assert not fits(AssertionSite("equal"), as_shown(wanted), INSIDE["shown"](liar))


def test_neither_time_nor_memory_is_the_senders_to_choose() -> None:
    colliding = ["set", [["int", str(n * (2**61 - 1))] for n in range(20_000)]]
    endless = ["range", [0, 10**18, 1]]
    looked_for = AssertionSite("compare", {"operator": "In", "holds": True, "swapped": True})
    assert not fits(AssertionSite("equal"), as_shown({1, 2}), colliding)
    assert not fits(looked_for, "text", colliding)
    assert not fits(looked_for, "text", endless)
    assert not fits(AssertionSite("equal"), ["int", "7"], ["int", "7" * 10**6])


# ------------------------------------------------------------------------------------------ honest repairs

IMPORTS = "import pytest\nfrom datetime import date\nself = __import__('unittest').TestCase()\n"
HONEST: dict[str, tuple[str, Any]] = {
    "approx(abs=50)": ("assert f(1) == pytest.approx(1000, abs=50)", lambda right: lambda x: 1040 if right else 1060),
    "approx": ("assert f(1) == pytest.approx([0.1, 0.3])", lambda right: lambda x: (0.1, 0.3 if right else 0.31)),
    "delta": ("self.assertAlmostEqual(f(1), 100, delta=30)", lambda right: lambda x: 75 if right else 69),
    "places": ("self.assertAlmostEqual(f(1), 1.0, places=2)", lambda right: lambda x: 1.004 if right else 1.006),
    "an integer for a float": ("assert f(1) == 2.0", lambda right: lambda x: 2 if right else 3),
    "any order": ("self.assertCountEqual(f(1), [1, 2, 2])", lambda right: lambda x: (2, 1, 2 if right else 1)),
    "one of several": ("assert f(1) in ('a', 'b')", lambda right: lambda x: "b" if right else "c"),
    "a part of a text": ("assert 'b' in f(1)", lambda right: lambda x: "abc" if right else "ac"),
    "no part of a text": ("assert 'b' not in f(1)", lambda right: lambda x: "ac" if right else "abc"),
    "larger": ("self.assertGreater(f(1), 10)", lambda right: lambda x: 11 if right else 10),
    "not equal": ("assert f(1) != 3", lambda right: lambda x: 4 if right else 3),
    "none": ("assert f(1) is None", lambda right: lambda x: None if right else 0),
    "not none": ("self.assertIsNotNone(f(1))", lambda right: lambda x: 0 if right else None),
    "true itself": ("assert f(1) is True", lambda right: lambda x: True if right else 1),
    "truth": ("assert f(1)", lambda right: lambda x: [0] if right else []),
    "a negation": ("assert not f(1)", lambda right: lambda x: [] if right else [0]),
    "raises": ("with pytest.raises(ValueError, match='inv.lid'):\n        f('x')", lambda right: int if right else str),
    "raises, called": ("self.assertRaises(ValueError, f, 'x')", lambda right: int if right else str),
    "raises a subclass": (
        "with pytest.raises(LookupError):\n        f(1)", lambda right: {}.__getitem__ if right else [1].index
    ),
    "a table": (
        "for a, b in [(1, 2), (3, 4)]:\n        assert f(a) == b", lambda right: lambda x: x + 1 if right else 2
    ),
    "a date": ("assert f(1) == date(2024, 2, 29)", lambda right: lambda x: date(2024, 2, 29 if right else 28)),
    "a name": ("wanted = {'a': [1]}\n    assert f(1) == wanted", lambda right: lambda x: {"a": [1 if right else 2]}),
    "in place": ("items = [3, 1]\n    f(items)\n    assert items == [1, 3]", lambda right: list.sort if right else len),
    "a class": (
        "assert [type(e) for e in f(1)] == [OSError]", lambda right: lambda x: [OSError() if right else KeyError()]
    ),
    "two computed sides": ("assert f(1) == f(2)", lambda right: lambda x: 0 if right else x),
    "a random count": ("for item in f(1):\n        assert item > 0", lambda right: lambda x: [1, 2] if right else [0]),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_a_right_program_is_right_and_a_wrong_one_wrong(name: str) -> None:
    body, program = HONEST[name]
    source = f"{IMPORTS}def test_it():\n    {body}\n"
    assert judge(source, program(True), program(True))
    assert not judge(source, program(True), program(False))


def test_what_another_right_program_does_differently_is_not_held_against_it() -> None:
    """Only what assertions say counts, not what the reference solution happens to show."""
    for body, one, other in (
        ("assert f(1) > 3", 4, 100),
        ("assert f(1) == pytest.approx(10, abs=5)", 6, 14),
        ("assert len(f(1)) in (2, 3)", "ab", "abc"),
        ("for item in f(1):\n        assert item", [1, 2], [7]),
        ("assert f(1)", "yes", [0]),
        ("with pytest.raises(ArithmeticError):\n        raise f(1)", OverflowError("a"), ZeroDivisionError("b")),
    ):
        source = f"import pytest\ndef test_it():\n    {body}\n"
        assert judge(source, lambda _, one=one: one, lambda _, other=other: other), body


SWALLOWS = """
import contextlib
def test_it():
    with contextlib.suppress(AssertionError):
        assert f(1) == 7
    try:
        assert f(1) == 8
    except AssertionError:
        pass
    assert f(1) == 3
"""
RETRIES = """
def eventually(check):
    for _ in range(3):
        try:
            return check()
        except AssertionError:
            pass
def test_it():
    def check():
        assert f(1) == 7
    eventually(check)
    assert f(1) == 3
"""
RETURNS = """
def test_it():
    assert f(1) == 3
    if True:
        return
    assert f(1) == 8
"""


@pytest.mark.parametrize("source", [SWALLOWS, RETRIES, RETURNS])
def test_an_assertion_that_never_counted_does_not_count(source: str) -> None:
    assert judge(source, lambda _: 3, lambda _: 3)
    assert not judge(source, lambda _: 3, lambda _: 4)


PLACES = """
import unittest
class Mixin:
    def test_it(self):
        self.assertEqual(f(1), 2)
class TestCase(Mixin, unittest.TestCase):
    pass
class TestOuter:
    class TestInner:
        def test_it(self):
            assert f(1) == 2
if True:
    def test_it():
        assert f(1) == 2
def check(value):
    assert value == 2
def test_helped():
    check(f(1))
"""


@pytest.mark.parametrize("test", ["Mixin.test_it", "TestOuter.TestInner.test_it", "test_it", "test_helped"])
def test_tests_are_rewritten_wherever_they_stand(test: str) -> None:
    source = PLACES.replace("class Mixin:", "class Mixin(unittest.TestCase):")
    assert judge(source, lambda x: x + 1, lambda x: x + 1, test)
    assert not judge(source, lambda x: x + 1, lambda x: x, test)


# ----------------------------------------------------------------------------------- what is not in them

SECRETS = """
import pytest, unittest
WANTED = {"n": "secret-1"}
LINES = ["secret-2", "b"]
@pytest.mark.parametrize("a, b", [(1, "secret-3"), pytest.param(2, "secret-4", id="secret-5")], ids=["secret-6", "x"])
def test_table(a, b):
    assert f(a) == b, "secret-7"
def test_names():
    wanted = ["secret-8"]
    assert f(1) == wanted
    assert f(2) == WANTED
    assert f(3) == "\\n".join(LINES)
def test_loop():
    for a, b in [(1, "secret-9"), (2, "secret-10")]:
        assert b == f(a)
class TestIt(unittest.TestCase):
    def test_all(self):
        self.assertEqual(f(1), "secret-11", "secret-12")
        self.assertAlmostEqual(f(1), 77123.5)
        self.assertIn("secret-13", f(1))
        self.assertRegex(f(1), "secret-14")
        self.assertGreater(f(1), 77124)
        for a, b in ((1, "secret-15"),):
            with self.subTest(a=a, wanted=b):
                self.assertEqual(f(a), b)
        with self.assertRaisesRegex(ValueError, "secret-16"):
            f(1)
        with pytest.raises(KeyError, match="secret-17"):
            f(1)
        assert f(1) == pytest.approx(77125, abs=77126)
"""


def test_expected_values_are_not_in_what_is_sent() -> None:
    made = rewritten(SECRETS)
    assert [text for text in ("7712", "secret") if text in made.scoring] == []
    for number in (1, 2, 3, 4, 8, 9, 10, 11, 13, 15):
        assert f"secret-{number}" in made.recording


def test_a_form_and_its_opposite_look_the_same() -> None:
    def sent(line: str) -> str:
        return rewritten(f"import unittest\ndef test_it():\n    {line}\n").scoring

    for one, other in (
        ("assert f(1)", "assert not f(1)"),
        ("assert f(1) == g(1)", "assert f(1) != g(1)"),
        ("assert f(1) in g(1)", "assert f(1) not in g(1)"),
        ("assert f(1) is g(1)", "assert f(1) is not g(1)"),
        ("assert f(1) < g(1)", "assert f(1) >= g(1)"),
        ("self.assertTrue(f(1))", "self.assertFalse(f(1))"),
        ("assert f(1) is None", "assert f(1) == 'a value'"),
        ("assert f(1) == 2", "assert f(1) == pytest.approx(3)"),
        ("assert f(1) == 2", "assert f(1) > 7"),
        ("assert f(1) == True", "assert f(1) == []"),
        ("with pytest.raises(ValueError):\n        f(1)", "with self.assertRaisesRegex(KeyError, 'a'):\n        f(1)"),
    ):
        assert sent(one) == sent(other)


# ------------------------------------------------------------------------------------------------- the key


def key_of(source: str, tests: list[tuple[str, list[tuple[int, Any]]]]) -> FileKey:
    made: Rewritten = rewritten(source)
    return FileKey(made.scoring, made.sites, [Expected(name, events) for name, events in tests])


ONE = "def test_a():\n    assert f(1) == 2\n    assert f(2) == 3\n"


@pytest.mark.parametrize(
    ("outcome", "events"),
    [
        ("passed", []),
        ("passed", [[0, ["int", "2"]]]),
        ("failed", [[0, ["int", "2"]], [1, ["int", "3"]]]),
        ("passed", [[1, ["int", "3"]], [0, ["int", "2"]]]),
        ("passed", [[0, ["int", "2"]], [1, ["int", "3"]], [1, ["int", "3"]]]),
        ("passed", [[0, ["int", "2"]], [1, ["int", "3"]], [9, None]]),
        ("passed", [[0, ["int", "2"]], [True, ["int", "3"]]]),
        ("passed", [[0, ["int", "2"]], ["x"]]),
        ("passed", [[0, ["int", "2"]], [1, ["int", "4"]]]),
    ],
)
def test_a_report_that_is_not_what_a_right_program_shows_is_not_passed(outcome: str, events: list[Any]) -> None:
    key = key_of(ONE, [("test_a", [(0, ["int", "2"]), (1, ["int", "3"])])])
    assert verdicts(key, [ReportRow("test_a", outcome, "", events)]) == {"test_a": False}
    assert verdicts(key, [ReportRow("test_a", "passed", "", [[0, ["int", "2"]], [1, ["int", "3"]]])]) == {
        "test_a": True
    }


def test_parameters_are_matched_by_their_order() -> None:
    source = (
        "import pytest\n@pytest.mark.parametrize('a,b', [(1, 2), (3, 4)])\ndef test_p(a, b):\n    assert f(a) == b\n"
    )
    key = key_of(source, [("test_p[1-2]", [(0, ["int", "2"])]), ("test_p[3-4]", [(0, ["int", "4"])])])
    rows = [
        ReportRow("test_p[1-None]", "passed", "", [[0, ["int", "2"]]]),
        ReportRow("test_p[3-None]", "passed", "", [[0, ["int", "9"]]]),
    ]
    assert verdicts(key, rows) == {"test_p[1-2]": True, "test_p[3-4]": False}
    assert not any(verdicts(key, rows[:1]).values())


# ------------------------------------------------------------------------------------------------ guessing


def opened(expected: Any, honest: Any, kind: str = "equal", literals: tuple[Any, ...] = ()) -> Open:
    return Open(
        "t", AssertionSite(kind), as_shown(expected), honest if honest is MISSING else as_shown(honest), literals
    )


def test_what_is_near_to_the_wrong_value_is_worth_little_and_what_is_far_much() -> None:
    assert opened(True, False).bits == 0
    assert opened(5, 4).bits < 3
    assert opened([1, 2], [2, 1]).bits < 3
    assert opened("word", "other", literals=("word",)).bits < 7
    assert opened("a report of two lines", "x").rank == MOST
    assert Open("t", AssertionSite("truth", {"holds": True}), None, False, ()).bits == 0


def test_one_guess_that_answers_twice_counts_once() -> None:
    assert bits([opened("far", "x"), opened("far", "x")]) == bits([opened("far", "x")])
    assert bits([opened("far", "x"), opened("farther", "x")]) == 2 * bits([opened("far", "x")])


def test_what_nothing_could_fail_is_no_expectation() -> None:
    assert can_fail(AssertionSite("equal"), as_shown(3))
    assert can_fail(AssertionSite("approx"), as_shown((1000, None, 50)))
    everything = AssertionSite("compare", {"operator": "Eq", "holds": True, "swapped": False, "literal": "x"})
    assert not can_fail(everything, ["unknown"])


COMPARISONS = [
    ("assert f(0) > {}", [5, -3.5, 10**9]),
    ("assert f(0) >= {}", [7]),
    ("assert f(0) < {}", [-8, 2.5]),
    ("assert not f(0) < {}", [41]),
    ("assert {} in f(0)", [17, "k", 3.0]),
    ("assert {} in str(f(0))", ["qx", "end", "7"]),
    ("assert f(0) in {}", [[17, 18], ("no", "yes")]),
    ("assert f(0) not in {}", [[17, 18]]),
    ("unittest.TestCase().assertGreater(f(0), {})", [12]),
    ("unittest.TestCase().assertIn({}, f(0))", [612]),
    ("unittest.TestCase().assertRegex(f(0), {})", [r"\d+", r"^a", "[a-z]{3}", r"\d\d\d\d-\d\d-\d\d"]),
]
"""Assertions of which an answer that fits everything answers each."""


@pytest.mark.parametrize(("form", "values"), COMPARISONS, ids=[form for form, _ in COMPARISONS])
def test_a_comparison_that_one_answer_fits_whatever_is_expected_is_worth_a_bit(form: str, values: list[Any]) -> None:
    for value in values:
        source = f"def test_it():\n    {form.format(repr(value))}\n"
        sites = rewritten(source).sites
        literals = value if isinstance(value, list | tuple) else ()
        assert sites[0].kind == "compare"
        assert Open("t", sites[0], as_shown(value), MISSING, literals).bits <= 1, value


def test_a_task_of_many_comparisons_is_worth_no_more_than_the_few_answers_that_fit_them_all() -> None:
    """Such a task was accepted with 39.7 bits."""
    more = [AssertionSite("compare", {"operator": kind, "holds": True, "swapped": False}) for kind in ("Gt", "GtE")]
    less = [AssertionSite("compare", {"operator": kind, "holds": True, "swapped": False}) for kind in ("Lt", "LtE")]
    found = [Open("t", site, as_shown(1000 + 17 * n), MISSING, ()) for n in range(20) for site in (*more, *less)]
    assert bits(found) <= 2
    assert bits([*found, opened("a text that nobody guesses", "x")]) >= 8
