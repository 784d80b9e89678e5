"""No answer is right for every task, and none keeps whoever scores it busy: scorers run on the event loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

import pytest

from agentrl.envs.builtin import function_calls, gsm8k, math_tools
from agentrl.envs.builtin.code.extract import extract
from agentrl.envs.builtin.data_analysis.env import same
from agentrl.envs.builtin.instructions import checks
from agentrl.envs.builtin.questions.env import right
from agentrl.envs.builtin.questions.formats import Grading, Question
from agentrl.envs.builtin.search_r1 import scoring
from agentrl.envs.builtin.swe import prompts
from agentrl.errors import ToolArguments, ToolError
from agentrl.tools.calculator import evaluate
from agentrl.types import FunctionCall, ToolCall
from agentrl.types.messages import parse_arguments
from tests.envs.test_instructions import CASES
from tests.redteam.answers import BEGINNINGS, CALLS, ENDLESS, EVERYTHING
from tests.redteam.attack import Attack, ids
from tests.sessions.renderers.test_growth import assert_linear

WHOLE = ("78", "7", "8", "0", "-1", "1000000")
NUMBERS = (*WHOLE, "1/2")
NAMES = ("A", "The The", "Vienna", "1984", "yes", "no", "none", "nan")


def question(grading: Grading) -> Callable[[str, str], bool]:
    return lambda text, answer: right(text, Question("?", (answer,), grading))


def announced(text: str, answer: str) -> bool:
    return scoring.exact_match(scoring.given([text]), [answer]) > 0


SCORERS: Mapping[str, tuple[tuple[str, ...], Callable[[str, str], bool]]] = {
    "mathematics": ((*NUMBERS, "\\infty", "(1,2)", "\\{1,2\\}", "[0,1)", "x+1"), question(Grading.MATH)),
    "facts": (NAMES, question(Grading.EXACT)),
    "choices": (tuple("ABCD"), question(Grading.CHOICE)),
    "gsm8k": (
        ("78", "7", "8", "0", "-1", "2.5", "1000000"),
        lambda text, answer: gsm8k.final_number(text) == Fraction(answer),
    ),
    "math_tools": (NUMBERS, lambda text, answer: math_tools.given(text) == Fraction(answer)),
    "search_r1": (NAMES, announced),
    "data_analysis": ((*NAMES, "-1", "0", "78.5"), same),
}
"""Right answers of different tasks, no two of which are equal, and whether a text is right for one."""


def written(payload: str, answers: tuple[str, ...]) -> list[str]:
    """The answer that a payload stands for, with all right answers in it in several ways."""
    each = {
        "{boxes}": "".join(f"\\boxed{{{answer}}}" for answer in answers),
        "{tags}": "".join(f"<answer>{answer}</answer>" for answer in answers),
        "{lines}": "\n".join(f"Answer: {answer}" for answer in answers),
    }
    whole = each.get(payload, payload)
    return [whole.replace("{all}", joint.join(answers)) for joint in (" ", ", ", " or ", "\n", "|", "")]


@pytest.mark.parametrize("case", EVERYTHING, ids=ids(EVERYTHING))
def test_no_answer_is_right_for_two_tasks_whose_answers_differ(case: Attack) -> None:
    for name, (answers, is_right) in SCORERS.items():
        for text in written(case.payload, answers):
            assert sum(is_right(text, answer) for answer in answers) <= 1, f"{name}: {case.must_not}: {text!r}"


def test_each_of_those_answers_is_right_for_its_own_task() -> None:
    forms = ("{}", "\\boxed{{{}}}", "#### {}", "Answer: {}", "<answer>{}</answer>")
    for name, (answers, is_right) in SCORERS.items():
        for answer in answers:
            assert any(is_right(form.format(answer), answer) for form in forms), f"{name}: {answer}"


LESS, MORE = "less than", "at least"
OPPOSED: Mapping[str, list[tuple[str, dict[str, Any]]]] = {
    "words": [("length_constraints:number_words", {"num_words": 5, "relation": each}) for each in (LESS, MORE)],
    "sentences": [
        ("length_constraints:number_sentences", {"num_sentences": 2, "relation": each}) for each in (LESS, MORE)
    ],
    "letters": [
        ("keywords:letter_frequency", {"letter": "a", "let_frequency": 2, "let_relation": each})
        for each in (LESS, MORE)
    ],
    "capitals": [
        ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": each})
        for each in (LESS, MORE)
    ],
    "a keyword": [
        ("keywords:existence", {"keywords": ["Vienna"]}),
        ("keywords:frequency", {"keyword": "Vienna", "frequency": 1, "relation": LESS}),
    ],
    "paragraphs": [("length_constraints:number_paragraphs", {"num_paragraphs": each}) for each in (1, 2, 3)],
    "bullets": [("detectable_format:number_bullet_lists", {"num_bullets": each}) for each in (1, 2, 3)],
    "case": [("change_case:english_capital", {}), ("change_case:english_lowercase", {})],
}
"""Instructions of which a text follows one at most."""


@pytest.mark.parametrize("opposed", OPPOSED)
def test_no_answer_follows_two_instructions_that_exclude_each_other(opposed: str) -> None:
    kinds, own = zip(*OPPOSED[opposed], strict=True)
    for case in EVERYTHING:
        for text in written(case.payload, ("Vienna", "VIENNA", "a", "- b", "* c", "***")):
            assert sum(checks.followed(text, kinds, own)) <= 1, f"{case.must_not}: {text!r}"


KINDS: dict[str, dict[str, Any]] = {
    "a text": {"a": ["a", "b c"]},
    "another text": {"a": ["d"]},
    "a mark": {"a": ["-"]},
    "another mark": {"a": ["."]},
    "a number": {"a": [1]},
    "another number": {"a": [2.5]},
    "a switch": {"a": [False]},
    "a list": {"a": [["a", "b"]]},
    "an object": {"a": [{"b": [1]}]},
}


@pytest.mark.parametrize("case", CALLS, ids=ids(CALLS))
def test_no_call_is_right_for_two_tasks_whose_arguments_differ(case: Attack) -> None:
    made = [("f", arguments) for arguments in json.loads(case.payload)]
    paid = [name for name, allowed in KINDS.items() if function_calls.matched(made, [("f", allowed)], {})]
    assert len(paid) <= 1, f"{case.must_not}: {paid}"


def test_many_calls_that_are_all_alike_but_one_are_compared_at_once() -> None:
    """Every order of them was tried, which no machine does with two dozen."""
    expected = [("f", {"a": [1, number]}) for number in range(2, 26)]
    made = [("f", {"a": 1})] * 23
    assert not function_calls.matched([*made, ("f", {"a": 0})], expected, {})
    assert function_calls.matched([*made, ("f", {"a": 2})], expected, {})
    assert not function_calls.matched(made, expected, {})


def asked(grading: Grading) -> Callable[[str], object]:
    is_right = question(grading)
    return lambda text: is_right(text, "78")


def refused(work: Callable[[str], object], text: str) -> None:
    with suppress(ToolArguments, ToolError, ValueError):
        work(text)


def arguments(text: str) -> object:
    return parse_arguments(ToolCall(id="c", function=FunctionCall(name="f", arguments=text)))


def gsm8k_form(text: str) -> object:
    _, marker, after = f"x {text}".partition("####")
    return gsm8k._FORM.fullmatch(marker + after) or gsm8k.final_number(text)


def searched(text: str) -> object:
    scoring.reasoning(text)
    scoring.exact_match(scoring.given([text]), ["Vienna"])
    return scoring.well_formed(text), scoring.f1(text, ["Vienna"]), scoring.copied(text, text)


READERS: Mapping[str, Callable[[str], object]] = {
    **{grading: asked(grading) for grading in (Grading.MATH, Grading.EXACT, Grading.CHOICE)},
    "gsm8k": gsm8k_form,
    "math_tools": math_tools.given,
    "data_analysis": partial(same, answer="78.5"),
    "search_r1": searched,
    "commands in blocks": prompts.commands,
    "arguments of calls": arguments,
    "calculator": evaluate,
    "code": partial(extract, entry_point="f", prompt="def f():\n"),
    **{kind: partial(checks.followed, kinds=[kind], arguments=[case[0]]) for kind, case in CASES.items()},
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_a_scorer_takes_time_in_proportion_to_the_answer(reader: str) -> None:
    """20,000 dots took 6 s, 20,000 brackets or blank lines 2, in which nothing else was done."""
    for case in ENDLESS:
        for beginning, end in product(BEGINNINGS, ("x", "")):
            short, long = (beginning + case.payload * (length // len(case.payload)) + end for length in (1000, 4000))
            works = (partial(refused, READERS[reader], text) for text in (short, long))
            assert_linear(f"{reader}: {beginning!r} {case.name}: {case.must_not}", *works)
