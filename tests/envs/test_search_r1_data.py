"""Search-R1's small data: passages, what is demonstrated, questions of two hops; and what its metrics tell apart."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.envs.builtin.search_r1.env import SearchR1
from agentrl.envs.builtin.search_r1.squad import choose_demonstrations, sentence_parts, two_hops, with_gaps, write_rows
from agentrl.envs.episode import expert_policy, play
from agentrl.retrieval.index import build
from agentrl.rollout.stream.batch_metrics import rollout_metrics
from agentrl.types import Group, Message, Session, Task
from tests.envs.in_process_index import InProcess

PASSAGES = (
    "Vikings\nRollo led the Norse for many years",
    "Lands\nRollo settled in Neustria, and was made its count",
    "Hills\nthe Rax is near the city",
)


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write(tmp_path / "corpus.jsonl", [{"contents": text} for text in PASSAGES])
    build(tmp_path / "corpus.jsonl", tmp_path / "bm25")
    return tmp_path


def row(name: str, question: str, answer: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "question": question, "golden_answers": [answer], "data_source": "t", **more}


LED, SETTLED = row("led", "Who led the Norse?", "Rollo"), row("settled", "In which lands did Rollo settle?", "Neustria")


@given(st.lists(st.text("ab .", max_size=30), max_size=8), st.integers(1, 12))
def test_parts_of_whole_sentences_are_the_text_again(sentences: list[str], words: int) -> None:
    text = " ".join(" ".join(f"X{each}.".split()) for each in sentences)
    parts = sentence_parts(text, words)
    assert " ".join(parts) == text
    assert all(len(part.split()) <= words or not re.search(r"[.] X", part) for part in parts)


def test_only_questions_whose_answer_a_search_for_them_finds_are_demonstrated(data: Path) -> None:
    [joined] = two_hops([[LED], [SETTLED]])
    hidden = row("hidden", "which hill towers over the Norse?", "Rax")
    unfound = {**joined, "id": "unfound", "steps": [["zzz", "Rollo"], joined["steps"][1]]}
    write(data / "train.jsonl", [LED, hidden, joined, unfound, row("none", "zzz", "Rax")])
    env = SearchR1(data=data)
    assert env.tasks("demo") == env.tasks("train"), "without a choice all are"
    assert choose_demonstrations(data) == 2
    assert [task.id for task in env.tasks("demo")] == ["t-led", "t-led-settled"]
    write_rows(data / "train.jsonl", [{**LED, "note": "lines\u2028that JSON leaves together"}])
    assert choose_demonstrations(data) == 1
    write(data / "train.jsonl", [hidden])
    assert choose_demonstrations(data) == 0
    assert env.tasks("demo") == env.tasks("train"), "an earlier choice does not stay"


def test_a_question_of_two_hops_names_neither_the_joining_answer_nor_its_own() -> None:
    paragraphs = [
        [LED, row("same", "Who was Rollo?", "Rollo"), row("lower", "what is it?", "count")],
        [SETTLED, row("part", "Who was Rollos son?", "William"), row("own", "Who led in Neustria?", "Rollo")],
        [row("told", "Who was count before William?", "Norse"), row("given", "Who made Rollo count?", "Norse")],
    ]
    made = {each["id"]: each for each in two_hops(paragraphs)}
    assert set(made) == {"led-settled", "told-led", "part-told", "same-given"}
    joined = made["led-settled"]
    assert joined["question"] == "X is the answer to: Who led the Norse? In which lands did X settle?"
    assert (joined["golden_answers"], joined["hops"]) == (["Neustria"], 2)
    assert joined["steps"] == [["Who led the Norse?", "Rollo"], ["In which lands did Rollo settle?", "Neustria"]]


def test_a_gap_is_a_name_number_or_long_word_that_its_passage_has_once_and_the_same_ones_are_chosen_each_time() -> None:
    text = "In 911 Rollo met Charles the Simple, near Rouen. Rollo was baptised. There were 30 Norse, or 30 Danes."
    made = {row["golden_answers"][0]: row["question"] for row in with_gaps(text, "n")}
    assert made == {
        "911": "What is X: In X Rollo met Charles the Simple, near Rouen?",
        "Charles the Simple": "What is X: In 911 Rollo met X, near Rouen?",
        "Rouen": "What is X: In 911 Rollo met Charles the Simple, near X?",
        "Norse": "What is X: There were 30 X, or 30 Danes?",
        "Danes": "What is X: There were 30 Norse, or 30 X?",
        "baptised": "What is X: Rollo was X?",
    }
    assert list(with_gaps(text, "n")) == list(with_gaps(text, "n"))


@given(st.text("ab XY1,.'-\n", max_size=80))
def test_a_question_with_its_gap_filled_is_a_part_of_the_passage(text: str) -> None:
    text = " ".join(text.split())
    for each in with_gaps(text, "n"):
        asked = each["question"].removeprefix("What is X: ").removesuffix("?")
        assert any(
            f"{asked[: match.start()]}{each['golden_answers'][0]}{asked[match.end() :]}" in text
            for match in re.finditer("X", asked)
        )


def test_questions_for_a_gap_of_held_out_paragraphs_are_neither_trained_on_nor_demonstrated(tmp_path: Path) -> None:
    def article(count: int) -> dict[str, Any]:
        texts = [f"In town{n} they say that Count{n} and Duke{n} came." for n in range(count)]
        return {"title": "Normans", "paragraphs": [{"context": text, "qas": []} for text in texts]}

    (tmp_path / "squad.json").write_text(json.dumps({"data": [article(40)]}))
    command = ["search-r1", "prepare", str(tmp_path / "squad.json"), "--out", str(tmp_path / "data"), "--gaps", "2"]
    assert CliRunner().invoke(app, command).exit_code == 0

    def towns(env: SearchR1, split: str) -> Counter[str]:
        return Counter(re.sub(r"[^\d]", "", task["answers"][0]) for task in env.tasks(split))

    env = SearchR1(data=tmp_path / "data", questions=tmp_path / "data" / "eval_gaps.jsonl")
    trained, held_out = towns(env, "train"), towns(env, "eval")
    assert towns(env, "demo") == trained
    assert 3 <= len(held_out) <= 16
    assert not set(trained) & set(held_out)
    assert trained + held_out == Counter({str(n): 2 for n in range(40)})


def test_prepare_adds_questions_of_two_hops_where_it_is_told_to(tmp_path: Path) -> None:
    def paragraph(text: str, *rows: dict[str, Any]) -> dict[str, Any]:
        answers = [{**each, "answers": [{"text": each["golden_answers"][0]}]} for each in rows]
        return {"context": text, "qas": answers}

    paragraphs = [paragraph(PASSAGES[0], LED), paragraph(PASSAGES[1], SETTLED)]
    article = {"title": "Normans", "paragraphs": [paragraph(f"{n} is a number") for n in range(5)] + paragraphs}
    (tmp_path / "squad.json").write_text(json.dumps({"data": [article]}))
    hops = {}
    for flags in ([], ["--two-hops"]):
        command = ["search-r1", "prepare", str(tmp_path / "squad.json"), "--out", str(tmp_path / "data"), *flags]
        assert CliRunner().invoke(app, command).exit_code == 0
        env = SearchR1(data=tmp_path / "data")
        hops[len(flags)] = sorted(task["hops"] for task in env.tasks("train"))
    assert hops == {0: [1, 1], 1: [1, 1, 2]}


def make(data: Path, **options: Any) -> SearchR1:
    env, client = SearchR1(data=data, topk=1, **options), InProcess(data)
    env.client = lambda: client  # type: ignore[method-assign, assignment, return-value]
    return env


@pytest.mark.parametrize("form", ["text", "tools"])
async def test_the_expert_takes_both_hops_and_quotes_what_each_search_found(data: Path, form: str) -> None:
    [joined] = two_hops([[LED], [SETTLED]])
    write(data / "train.jsonl", [joined])
    env = make(data, form=form)
    session = await play(env, env.tasks()[0], expert_policy)
    assert (session.rewards["searches"], session.rewards["correct"], session.rewards["exact_more_hops"]) == (2, 1, 1)
    said = [message.text for message in session.messages if message.role == "assistant"]
    assert "Rollo led the Norse" in said[1] or form == "tools"
    assert "Rollo settled in Neustria" in said[2]
    short = await play(make(data, form=form, max_searches=1), env.tasks()[0], expert_policy)
    assert short.rewards["searches"] == 1, "with one search there is no second hop"


def script(*turns: str) -> Callable[..., Message]:
    rest = iter(turns)
    return lambda env, messages: Message(role="assistant", content=next(rest))


@pytest.mark.slow
async def test_metrics_tell_apart_what_the_mean_reward_hides(data: Path) -> None:
    """Two groups of the same mean: one finds and does not say, the other says what it did not find."""
    one = Task(id="one", data={"question": "where did Rollo settle?", "answers": ["Neustria"], "hops": 1})
    two = Task(id="two", data={**one.data, "hops": 2})
    search = "<think> I look it up </think><search> Rollo settled </search>"

    async def group(task: Task, *scripts: Sequence[str]) -> Group:
        sessions: list[Session] = [
            await play(make(data, max_searches=1), task, script(*each))  # one search, then the answer
            for each in scripts
        ]
        return Group(task.id, task, sessions)

    right, missed = (search, "<answer> Neustria </answer>"), (search, "<answer> Rollo in Neustria </answer>")
    guessed, lost = ("<answer> Neustria </answer>",), ("I do not know.", "I still do not.")
    seeing, blind = await group(one, right, missed), await group(two, guessed, lost)
    names = ("mean", "f1", "searches", "valid_actions", "retrieved", "missed", "reasoning_words")
    for groups, values in (([seeing], (0.5, 0.75, 1, 1, 1, 0.5, 4)), ([blind], (0.5, 0.5, 0, 0.5, 0, 0, 0))):
        metrics = rollout_metrics(groups)
        assert [metrics[f"reward/{name}"] for name in names] == pytest.approx(values)
    both = rollout_metrics([await group(one, right, right), await group(two, lost, lost)])
    assert (both["reward/mean"], both["reward/exact_one_hop"], both["reward/exact_more_hops"]) == (0.5, 1, 0)
