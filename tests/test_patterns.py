"""Regular expressions from data find what Python's own find, and none takes more than its time."""

from __future__ import annotations

import re

import pytest

from agentrl.common.patterns import PatternTooSlow, count, is_in
from agentrl.envs.builtin.instructions.checks import followed
from agentrl.envs.builtin.swe.generation.expect import fits
from agentrl.envs.builtin.swe.generation.observe import AssertionSite

pytestmark = pytest.mark.slow
SLOW = [
    ("(a+)+$", "a" * 60 + "b"),
    ("(a|a)*$", "a" * 60 + "b"),
    (r"(.*)*\1x", "ab" * 99),
]


@pytest.mark.parametrize("pattern", ["a", "a.c", "(a|b)+", r"a\b", "a{2,3}", r"(\w)\1", "x*", "ä?", "[(]"])
def test_a_pattern_is_found_as_often_as_by_python(pattern: str) -> None:
    text = "abc aac aaab ABBA xx ä (a)"
    assert count(pattern, text, re.IGNORECASE) == len(re.findall(pattern, text, re.IGNORECASE))
    assert is_in(pattern, text) is (re.search(pattern, text) is not None)
    assert count(pattern, text, most=1) == min(1, len(re.findall(pattern, text)))


@pytest.mark.parametrize("pattern", ["[", "(", "*", "(?P<a"])
def test_what_is_no_pattern_says_so(pattern: str) -> None:
    with pytest.raises(re.error):
        count(pattern, "text")


@pytest.mark.parametrize(("pattern", "text"), SLOW)
def test_a_search_without_end_is_ended(pattern: str, text: str) -> None:
    with pytest.raises(PatternTooSlow):
        count(pattern, text)


def test_no_text_follows_an_instruction_by_making_its_pattern_slow() -> None:
    pattern, text = SLOW[0]
    kinds = ["keywords:existence", "keywords:forbidden_words"]
    assert followed(text, kinds, [{"keywords": [pattern]}, {"forbidden_words": [pattern]}], loose=True) == [
        False,
        False,
    ]


def test_no_answer_matches_or_fails_to_match_by_making_its_pattern_slow() -> None:
    pattern, text = SLOW[0]
    for holds in (True, False):
        site = AssertionSite("compare", {"operator": "Regex", "holds": holds, "swapped": False})
        assert not fits(site, pattern, text)
