"""IFEval's instructions: each check accepts what follows it and refuses what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.builtin.instructions import checks
from agentrl.envs.builtin.instructions.env import Instructions
from agentrl.envs.check import check_env
from agentrl.envs.episode import play
from agentrl.errors import ConfigError
from agentrl.types import Message

AT_LEAST, LESS = "at least", "less than"
CASES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "keywords:existence": ({"keywords": ["sea", "Sky"]}, ["The SEA and the sky."], ["The sea."]),
    "keywords:frequency": ({"keyword": "so", "frequency": 2, "relation": AT_LEAST}, ["So and so."], ["so"]),
    "keywords:forbidden_words": ({"forbidden_words": ["not"]}, ["a knot"], ["Not me"]),
    "keywords:letter_frequency": ({"letter": "z", "let_frequency": 2, "let_relation": LESS}, ["Zoo"], ["Zz"]),
    "length_constraints:number_sentences": (
        {"num_sentences": 3, "relation": AT_LEAST},
        ["One. Two! Three?", 'He said "one." Then two. And three'],
        ["Dr. Who is here. Yes.", "One, e.g. two."],
    ),
    "length_constraints:number_paragraphs": (
        {"num_paragraphs": 2},
        ["a\n***\nb", "a *** b\n***"],
        ["a", "a***b***c", "a***   ***b"],
    ),
    "length_constraints:number_words": ({"num_words": 3, "relation": LESS}, ["two words"], ["these are three"]),
    "length_constraints:nth_paragraph_first_word": (
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        ['One.\n\n"Then, two.'],
        ["One.\n\nTwo then.", "Then", "a\n\nthen\n\nb"],
    ),
    "detectable_content:number_placeholders": ({"num_placeholders": 2}, ["[a] and [b c]"], ["[a]"]),
    "detectable_content:postscript": ({"postscript_marker": "P.S."}, ["Bye.\nP. S. More", "p.s. x"], ["Bye. PS"]),
    "detectable_format:number_bullet_lists": ({"num_bullets": 2}, ["* a\n- b"], ["* a", "**a**\n* b", "- a\n- b\n- c"]),
    "detectable_format:constrained_response": ({}, ["Well: My answer is no."], ["No."]),
    "detectable_format:number_highlighted_sections": ({"num_highlights": 2}, ["*a* and *b c*"], ["*a*", "* a"]),
    "detectable_format:multiple_sections": (
        {"section_spliter": "SECTION", "num_sections": 2},
        ["SECTION 1 a SECTION 2 b"],
        ["SECTION 1"],
    ),
    "detectable_format:json_format": ({}, ['```json\n{"a": 1}\n```', "[1]"], ["{a: 1}", "x"]),
    "detectable_format:title": ({}, ["<<A day>>\ntext"], ["<<>>", "<A day>"]),
    "combination:two_responses": ({}, ["a\n******\nb"], ["a******a", "a", "a******b******c"]),
    "combination:repeat_prompt": ({"prompt_to_repeat": "Say it."}, ["say it. It."], ["It. Say it."]),
    "startend:end_checker": ({"end_phrase": "Any questions?"}, ['Text. any questions?"'], ["Any questions? No."]),
    "startend:quotation": ({}, ['"all of it"'], ['"some" of it', '"']),
    "change_case:capital_word_frequency": ({"capital_frequency": 2, "capital_relation": LESS}, ["ONE word"], ["A B"]),
    "change_case:english_capital": ({}, ["ALL OF IT."], ["Most OF IT."]),
    "change_case:english_lowercase": ({}, ["all of it."], ["All of it."]),
    "punctuation:no_comma": ({}, ["none"], ["one, two"]),
}


def test_every_kind_of_instruction_has_a_case() -> None:
    assert set(CASES) | {checks.LANGUAGE} == set(checks.CHECKS)


@pytest.mark.parametrize("kind", CASES)
def test_a_check_accepts_what_follows_and_refuses_what_does_not(kind: str) -> None:
    arguments, right, wrong = CASES[kind]
    for texts, verdict in ((right, True), (wrong, False)):
        for text in texts:
            assert checks.list_followed(text, [kind], [arguments]) == [verdict], text
            assert checks.list_followed("", [kind], [arguments]) == [False]


NLTK = ("length_constraints:number_sentences", "change_case:capital_word_frequency")
LANGDETECT = ("change_case:english_capital", "change_case:english_lowercase")


@pytest.mark.parametrize("kind", [kind for kind in CASES if kind not in (*NLTK, *LANGDETECT)])
def test_verdicts_are_those_of_the_published_checker(kind: str) -> None:
    """On the texts of all cases; the checker is not one of our dependencies."""
    published = pytest.importorskip("if_verifiable.ifeval.instructions_registry").INSTRUCTION_DICT
    arguments = CASES[kind][0]
    for text in sorted({text for _, right, wrong in CASES.values() for text in (*right, *wrong)}):
        checker = published[kind](kind)
        checker.build_description(**arguments)
        assert checks.list_followed(text, [kind], [arguments]) == [bool(checker.check_following(text))], text


@given(st.text(max_size=80))
@pytest.mark.slow
def test_no_text_breaks_a_check_and_the_loose_verdict_is_never_stricter(text: str) -> None:
    for kind, (arguments, _, _) in CASES.items():
        (strict,), (loose,) = (checks.list_followed(text, [kind], [arguments], loose=each) for each in (False, True))
        assert loose >= strict


def test_the_loose_verdict_looks_past_an_introduction_and_asterisks() -> None:
    said = "Sure, here it is:\n**all in small letters**"
    assert checks.list_followed(said, ["change_case:english_lowercase"], [{}]) == [False]
    assert checks.list_followed(said, ["change_case:english_lowercase"], [{}], loose=True) == [True]


def rows(path: Path, *given: dict[str, Any]) -> Path:
    file = path / "input_data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in given))
    return file


ROW = {
    "key": 1000,
    "prompt": "Write without commas, and with a title.",
    "instruction_id_list": ["punctuation:no_comma", "detectable_format:title"],
    "kwargs": [{"num_words": None}, {}],
}


async def test_a_file_of_the_published_format_is_played_and_scored(tmp_path: Path) -> None:
    env = Instructions(str(rows(tmp_path, ROW)))
    (task,) = env.tasks()
    assert task.id == "ifeval-1000"
    for said, strict, share in (("<<A>> b", 1.0, 1.0), ("<<A>> b, c", 0.0, 0.5), ("", 0.0, 0.0)):
        session = await play(env, task, lambda env, messages, said=said: Message(role="assistant", content=said))
        assert (session.rewards["strict"], session.rewards["instructions"], session.score) == (strict, share, strict)


def test_languages_need_langdetect_or_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {**ROW, "instruction_id_list": [checks.LANGUAGE], "kwargs": [{"language": "de"}]}
    file = str(rows(tmp_path, ROW, other))
    assert len(Instructions(file, languages=False).tasks()) == 1
    monkeypatch.setattr("agentrl.envs.builtin.instructions.env.can_tell_languages", lambda: False)
    with pytest.raises(ConfigError, match="langdetect, which is not installed"):
        Instructions(file).tasks()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"instruction_id_list": ["punctuation:no_coma"], "kwargs": [{}]}, "the nearest is 'punctuation:no_comma'"),
        ({"instruction_id_list": ["length_constraints:number_words"], "kwargs": [{}]}, "lacks num_words"),
        ({"kwargs": []}, "kwargs for each of"),
        ({"prompt": None}, "prompt must be text"),
    ],
)
def test_a_row_that_is_none_is_named(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"line 1: .*{said}"):
        Instructions(str(rows(tmp_path, {**ROW, **changed}))).tasks()


@pytest.mark.slow
def test_the_environment_keeps_its_contract(tmp_path: Path) -> None:
    assert check_env("instructions", path=str(rows(tmp_path, ROW, {**ROW, "key": 2})), scored=8) == []
