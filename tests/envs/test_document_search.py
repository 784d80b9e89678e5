"""Questions on long documents: answers that reading the whole document confirms, and the user's own files."""

from __future__ import annotations

import json
import re
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs import calls
from agentrl.envs.builtin.document_search.document import FOUND, SECTION, Document, cut
from agentrl.envs.builtin.document_search.env import MAX_NOTES, SUMMARISE
from agentrl.envs.builtin.document_search.generate import RELATIONS, SIZES, Chronicle, chronicle
from agentrl.envs.check import check_env
from agentrl.envs.episode import play
from agentrl.envs.registry import make
from agentrl.errors import ConfigError
from agentrl.sessions.tree import tree
from agentrl.types import Message, Status


def read_facts(document: Chronicle) -> dict[tuple[str, str], str]:
    """What a reader of the whole document learns, by regular expressions on its sentences."""
    found = {}
    patterns = [(relation, pattern_of(relation, form)) for relation, r in RELATIONS.items() for form in r.sentences]
    for sentence in re.findall(r"[^.]+\.", " ".join(document.sections)):
        for relation, pattern in patterns:
            if match := pattern.fullmatch(sentence.strip()):
                found[relation, match["subject"]] = match["value"]
    return found


def pattern_of(relation: str, form: str) -> re.Pattern[str]:
    name = r"(?:[A-Z]\w+ ?)+"
    value = {"founded": r"\d+", "staff": r"\d+", "trade": "[a-z]+"}.get(relation, name)
    pattern = re.escape(form).replace(r"\{0\}", f"(?P<subject>{name})")
    return re.compile(pattern.replace(r"\{1\}", f"(?P<value>{value})"))


@pytest.mark.slow
@pytest.mark.parametrize("level", SIZES)
def test_every_answer_follows_from_reading_the_whole_document(level: int):
    tasks = list(islice(make("document_search", level=level).tasks(), 80))
    number = tasks[0]["document"]
    told = read_facts(chronicle(0, level, number))
    for task in (task for task in tasks if task["document"] == number):
        found = re.fullmatch(r"Find (.*)\.", task["question"])
        if found:
            assert followed(found[1], told) == task["answer"], task
        elif found := re.search(r"the staff of (.*), (.*) and (.*) together", task["question"]):
            assert task["answer"] == str(sum(int(told["staff", firm]) for firm in found.groups()))
        else:
            found = re.fullmatch(r"Which of (.*), (.*) and (.*) was founded first\?", task["question"])
            assert found
            years = {firm: int(told["founded", firm]) for firm in found.groups()}
            assert all(year > years[task["answer"]] for firm, year in years.items() if firm != task["answer"])


def followed(words: str, told: dict[tuple[str, str], str]) -> str:
    """What a phrase of a question means."""
    for relation, how in RELATIONS.items():
        match = re.fullmatch(re.escape(how.phrase).replace(r"\{0\}", "(.*)"), words)
        if match:
            return told[relation, followed(match[1], told)]
    return words


@pytest.mark.slow
@pytest.mark.parametrize("level", SIZES)
async def test_the_expert_finds_every_answer_with_searches_and_reading_where_it_was_found(level: int):
    for task in islice(make("document_search", level=level).tasks("eval"), 8):
        session = await play(make("document_search", level=level), task)
        assert (session.reward, session.status, session.counters["tool_errors"]) == (1, Status.COMPLETED, 0)
        read = {section for name, call in task["calls"] if name == "read" for section in call.values()}
        answers = [message.text for message in session.messages if message.role == "tool"]
        shown = {int(number) for text in answers for number in re.findall(r"^Section (\d+):", text, re.M)}
        assert read <= shown


def test_documents_are_far_longer_than_a_context_and_no_document_is_in_two_splits():
    words = {level: sum(len(text.split()) for text in chronicle(0, level, 0).sections) for level in SIZES}
    assert words[1] > 5_000
    assert words[2] > 15_000
    assert words[3] > 50_000
    env = make("document_search", level=1)
    used = {split: {task["document"] for task in islice(env.tasks(split), 60)} for split in env.splits}
    assert not used["train"] & used["eval"]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=6_000))
@pytest.mark.slow
def test_cutting_a_text_loses_nothing_but_white_space_and_bounds_every_section(text: str):
    sections = cut(text)
    assert "".join("".join(sections).split()) == "".join(text.split())
    assert all(0 < len(section) <= SECTION + 2 for section in sections)


def test_a_search_ranks_rare_words_first_and_finds_nothing_where_there_is_nothing():
    document = Document(["the cat and the dog", "the dog", "the bird", *["the end"] * 9])
    assert document.search("the bird")[:1] == [3]
    assert document.search("dog CAT")[:2] == [1, 2]
    assert document.search("whale") == document.search("") == []
    assert len(document.search("the")) == FOUND
    long = Document(["x " * 900 + "needle in here " + "y " * 900])
    assert "needle" in long.excerpt(1, "needle")


def folder_of(path: Path, *rows: Any) -> Path:
    (path / "guide.txt").write_text("\n\n".join(f"Chapter {n}. The word of it is w{n}." for n in range(200)))
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (path / "questions.jsonl").write_text("\n".join(lines))
    return path


def test_a_question_may_hold_separators_of_lines_that_json_leaves_as_they_are(tmp_path: Path):
    question = "What is the word\u2028of chapter\x85150?"
    row = json.dumps(
        {"document": "guide.txt", "question": question, "answer": "w150", "split": "eval"}, ensure_ascii=False
    )
    env: Any = make("document_search", path=str(folder_of(tmp_path, row)))
    assert [task["question"] for split in env.splits for task in env.tasks(split)] == [question]


async def test_questions_on_the_users_own_files_are_played(tmp_path: Path):
    row = {"document": "guide.txt", "question": "What is the word of chapter 150?", "answer": "w150"}
    folder = folder_of(tmp_path, {**row, "split": "train"}, {**row, "split": "eval", "question": "The same?"})
    env: Any = make("document_search", path=str(folder))
    assert [[task["question"] for task in env.tasks(split)] for split in env.splits] == [
        [row["question"]],
        ["The same?"],
    ]
    await calls.reset(env, next(iter(env.tasks())))
    found = (await calls.step(env, env.call("search", query="chapter 150"))).messages[0].text
    number = int(re.findall(r"Section (\d+):", found)[0])
    text = (await calls.step(env, env.call("read", section=number))).messages[0].text
    assert "Chapter 150. The word of it is w150." in text
    assert len(text) <= SECTION + 2
    assert "from 1 to" in (await calls.step(env, env.call("read", section=10_000))).messages[0].text
    assert "at most 300" in (await calls.step(env, env.call("search", query="x" * 301))).messages[0].text
    session = await play(make("document_search", path=str(folder)), next(iter(env.tasks("eval"))))
    assert session.reward == 1


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{", "line 1 is not JSON"),
        ({"document": "guide.txt", "question": "?"}, "line 1 needs 'answer'"),
        ({"document": "other.txt", "question": "?", "answer": "a"}, "'other.txt' can't be read"),
        ({"document": "../secret.txt", "question": "?", "answer": "a"}, "is outside of"),
        ({"document": "guide.txt", "question": "?", "answer": "a", "split": "test"}, "allowed are train, eval"),
    ],
)
def test_a_wrong_folder_is_refused_with_the_line(tmp_path: Path, row: Any, words: str):
    with pytest.raises(ConfigError, match=re.escape(words)):
        make("document_search", path=str(folder_of(tmp_path, row)))


async def test_a_compacted_history_is_replaced_by_notes_and_every_path_is_shorter_than_the_whole():
    for task in islice(make("document_search", level=3).tasks("eval"), 5):
        whole = await play(make("document_search", level=3), task)
        session = await play(make("document_search", level=3, compact=2_000), task)
        assert (session.reward, session.status, session.counters["tool_errors"]) == (1, Status.COMPLETED, 0)
        paths = [[node.message for node in path] for path in session.paths()]
        assert len(paths) >= 2
        for before, after in pairwise(paths):
            assert before[-2].text == SUMMARISE
            assert after[0].text.endswith(f"Your notes so far:\n{before[-1].text}")
            assert task["question"] in after[0].text
        assert max(map(length, paths)) < length(whole.messages)
        tree.check(session)


def length(messages: Any) -> int:
    return sum(len(message.text) for message in messages)


async def test_an_episode_goes_on_amid_a_compaction_and_notes_are_bounded():
    env: Any = make("document_search", level=1, compact=500)
    task = next(iter(env.tasks()))
    opening = (await calls.reset(env, task))[0].text
    answers = await calls.step(env, env.call("search", query="the staff of the office grew"))
    assert answers.messages[-1].text == SUMMARISE
    other: Any = await calls.fork(env)
    for each in (env, other):
        begun = await calls.step(each, Message(role="assistant", content="x" * 9_000))
        assert begun.fresh
        assert len(begun.messages[0].text) < len(opening) + MAX_NOTES + 50
        answer = await calls.step(each, Message(role="assistant", content=f"Answer: {task['answer']}"))
        assert answer.terminated


@pytest.mark.slow
def test_a_missing_folder_an_unknown_level_and_both_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"questions\.jsonl can't be read"):
        make("document_search", path=str(tmp_path))
    with pytest.raises(ConfigError, match=r"env\.level = 4: allowed are 1, 2, 3"):
        make("document_search", level=4)
    with pytest.raises(ConfigError, match=r"env\.compact = 10: it must be at least 500"):
        make("document_search", compact=10)
    with pytest.raises(ConfigError, match="is for made documents"):
        make("document_search", level=1, path=str(tmp_path))


@pytest.mark.slow
def test_it_keeps_the_contract():
    assert check_env("document_search", level=1, compact=1_000, scored=8) == []
