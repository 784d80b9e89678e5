"""Published question sets: every format is read, and answers are compared as the published scorers do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.base import Env
from agentrl.envs.builtin.questions import latex
from agentrl.envs.builtin.questions.env import right
from agentrl.envs.builtin.questions.formats import Grading, Question, question
from agentrl.envs.check import check_env
from agentrl.envs.data.splits import TaskList
from agentrl.envs.episode import play
from agentrl.envs.registry import make
from agentrl.errors import ConfigError
from agentrl.types import Task

ROWS: dict[str, tuple[dict[str, Any], tuple[str, ...], Grading]] = {
    "gsm8k": ({"question": "q", "answer": "It is 2+2=4.\n#### 4"}, ("4",), Grading.MATH),
    "math": (
        {"problem": "q", "level": "Level 5", "type": "Algebra", "solution": r"so $\boxed{\frac{1}{2}}$."},
        (r"\frac{1}{2}",),
        Grading.MATH,
    ),
    "math-500": ({"problem": "q", "solution": r"\boxed{3}", "answer": "3", "unique_id": "a/1"}, ("3",), Grading.MATH),
    "aime": ({"ID": "2024-I-1", "Problem": "q", "Answer": 204}, ("204",), Grading.MATH),
    "nq": (
        {"question": "q", "answer": ["14 December 1972 UTC", "December 1972"]},
        ("14 December 1972 UTC", "December 1972"),
        Grading.EXACT,
    ),
    "search_r1": ({"question": "q", "golden_answers": ["Paris"], "answer": None}, ("Paris",), Grading.EXACT),
    "triviaqa": (
        {"question": "q", "answer": {"value": "Paris", "aliases": ["Paris", "City of Light"]}},
        ("Paris", "City of Light"),
        Grading.EXACT,
    ),
    "popqa": ({"question": "q", "possible_answers": '["politician", "pol"]'}, ("politician", "pol"), Grading.EXACT),
    "hotpotqa": ({"question": "q", "answer": "yes"}, ("yes",), Grading.EXACT),
    "numbers in a list": ({"question": "q", "answers": [4, 4.0]}, ("4", "4.0"), Grading.MATH),
    "mmlu": ({"question": "q", "choices": ["w", "x", "y", "z"], "answer": 2}, ("C",), Grading.CHOICE),
    "arc": (
        {"question": "q", "choices": {"text": ["w", "x"], "label": ["1", "2"]}, "answerKey": "2"},
        ("B",),
        Grading.CHOICE,
    ),
    "aime's own csv": ({"ID": "1983-1", "Problem Number": "1", "Question": "q", "Answer": "60"}, ("60",), Grading.MATH),
    "triviaqa's own": (
        {"Question": "q", "Answer": {"Value": "Paris", "Aliases": ["Paname"]}},
        ("Paris", "Paname"),
        Grading.EXACT,
    ),
    "musique": (
        {"question": "q", "answer": "Paris", "answer_aliases": ["Paname"], "answerable": True},
        ("Paris", "Paname"),
        Grading.EXACT,
    ),
    "webquestions": ({"url": "", "question": "q", "answers": ["Paris"]}, ("Paris",), Grading.EXACT),
    "squad": ({"question": "q", "answers": {"text": ["Paris"], "answer_start": [1]}}, ("Paris",), Grading.EXACT),
    "boolq": ({"question": "q", "passage": "p", "answer": False}, ("no",), Grading.EXACT),
    "nq's own": (
        {
            "question_text": "q",
            "document_tokens": [
                {"token": each, "html_token": each[0] == "<"} for each in ["<P>", "by", "Max", "Planck", "</P>"]
            ],
            "annotations": [{"yes_no_answer": "NONE", "short_answers": [{"start_token": 2, "end_token": 5}]}],
        },
        ("Max Planck",),
        Grading.EXACT,
    ),
    "nq simplified": (
        {
            "question_text": "q",
            "document_text": "by Max Planck in 1900",
            "annotations": [
                {"yes_no_answer": "YES", "short_answers": []},
                {"yes_no_answer": "NONE", "short_answers": [{"start_token": 1, "end_token": 3}]},
            ],
        },
        ("yes", "Max Planck"),
        Grading.EXACT,
    ),
    "arc's own": (
        {
            "question": {"stem": "q", "choices": [{"text": "w", "label": "A"}, {"text": "x", "label": "B"}]},
            "answerKey": "B",
        },
        ("B",),
        Grading.CHOICE,
    ),
    "mmlu-pro": (
        {"question": "q", "options": ["w", "x", "y"], "answer": "C", "answer_index": 2},
        ("C",),
        Grading.CHOICE,
    ),
    "mmlu's own": (
        dict(zip(("question", "A", "B", "C", "D", "answer"), "qwxyzB", strict=True)),
        ("B",),
        Grading.CHOICE,
    ),
    "simple_qa": (
        {"metadata": "{'topic': 'Art', 'answer_type': 'Number'}", "problem": "q", "answer": "120,000 euros"},
        ("120,000 euros",),
        Grading.EXACT,
    ),
    "simple_qa verified": (
        {"original_index": 5, "problem": "q", "answer": "2004", "topic": "Art", "urls": "https://a"},
        ("2004",),
        Grading.EXACT,
    ),
    "truthful_qa": (
        {
            "Type": "Adversarial",
            "Question": "q",
            "Best Answer": "The seeds pass through you",
            "Best Incorrect Answer": "You die",
            "Correct Answers": "Nothing happens; You digest them ; ",
            "Incorrect Answers": "You die; You grow melons",
        },
        ("The seeds pass through you", "Nothing happens", "You digest them"),
        Grading.CLOSER,
    ),
    "truthful_qa on the hub": (
        {"question": "q", "best_answer": "no", "correct_answers": ["no", "never"], "incorrect_answers": ["yes"]},
        ("no", "never"),
        Grading.CLOSER,
    ),
    "truthful_qa's mc_task.json": (
        {"question": "q", "mc1_targets": {"right": 1, "wrong": 0, "worse": 0}, "mc2_targets": {}},
        ("B",),
        Grading.CHOICE,
    ),
    "truthful_qa's choices on the hub": (
        {"question": "q", "mc1_targets": {"choices": ["right", "wrong", "worse"], "labels": [1, 0, 0]}},
        ("B",),
        Grading.CHOICE,
    ),
    "gpqa": (
        {"Question": "q", "Correct Answer": "x", **{f"Incorrect Answer {n}": f"w{n}" for n in (1, 2, 3)}},
        ("A",),
        Grading.CHOICE,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_a_published_set_is_read(name: str) -> None:
    row, answers, grading = ROWS[name]
    found = question(row)
    assert found is not None
    assert (found.answers, found.grading) == (answers, grading)
    assert found.text.startswith("q")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "q"}, "neither `question` nor `problem`"),
        ({"question": "q"}, "no answer"),
        ({"problem": "q", "solution": "none"}, "no answer"),
        ({"question": "q", "choices": ["a"], "answer": 0}, "a list of 2 to 26"),
        ({"question": "q", "choices": ["a", "b"], "answer": 2}, "none of its 2 choices"),
        ({"question": "q", "choices": ["a", "b"], "answer": "long"}, "none of its 2 choices"),
    ],
)
def test_a_row_without_a_question_or_an_answer_is_refused(row: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        question(row)


EQUAL = [
    ("0.5", r"\frac{1}{2}"),
    (r"\frac12", "1/2"),
    (r"\dfrac{3}{4}", r"\frac{3}{4}"),
    ("1,000", "1000"),
    (r"$\frac{1}{2}$", "0.5"),
    (r"-\frac{1}{2}", "-0.5"),
    ("(1, 2)", "(1,2)"),
    (r"\left(1,\frac{1}{2}\right)", "(1, 0.5)"),
    (r"\{1, 2\}", r"\{2, 1\}"),
    ("x = 5", "5"),
    (r"\text{(A)}", "(A)"),
    ("2.0", "2"),
    (r"[0,\infty)", r"\left[0, \infty\right)"),
    ("x^2+1", "x^2 + 1"),
    (r"1 \frac{1}{2}", "1.5"),
    ("7 8", r"7\ 8"),
]
GROUPED = [("1 000 000", "1000000"), (r"12\,345", "12345")]
"""Digits that blanks divide by threes, which math-verify takes for other numbers."""
UNEQUAL = [
    ("0.5", "0.25"),
    ("(1, 2)", "(2, 1)"),
    ("(1, 2)", "[1, 2]"),
    (r"\{1, 2\}", r"\{1, 3\}"),
    ("12", "1"),
    ("-3", "3"),
    ("x+1", "x-1"),
    ("(1,2,3)", "(1,2)"),
    *[(said, "78") for said in ("7 8", "7~8", r"7\ 8", r"7\,8", r"7\quad 8", "$7$ $8$", "7\n8")],
    ("1 23 456", "123456"),
    ("1 0000", "10000"),
    ("3 1/2", "31/2"),
]


@pytest.mark.parametrize(("said", "wanted"), EQUAL + GROUPED)
def test_answers_that_mean_the_same_are_equal(said: str, wanted: str) -> None:
    assert latex.equal(said, wanted)
    assert latex.equal(wanted, said)


@pytest.mark.parametrize(("said", "wanted"), UNEQUAL)
def test_other_answers_are_not(said: str, wanted: str) -> None:
    assert not latex.equal(said, wanted)


@pytest.mark.parametrize("said", [r"7\text{ }8", r"7\$8"])
def test_a_blank_in_words_and_a_dollar_sign_divide_numbers_too(said: str) -> None:
    assert not latex.equal(said, "78")  # they do not for math-verify


def test_verdicts_are_those_of_math_verify() -> None:
    """Where no algebra is needed; the published scorer is not one of our dependencies."""
    published = pytest.importorskip("math_verify")
    for pairs, verdict in ((EQUAL, True), (UNEQUAL, False)):
        for said, wanted in pairs:
            one, other = (
                published.parse(rf"\boxed{{{text.strip('$')}}}", parsing_timeout=None) for text in (wanted, said)
            )
            assert published.verify(one, other, timeout_seconds=None) == verdict, (said, wanted)


@given(st.fractions(max_denominator=999), st.booleans())
@pytest.mark.slow
def test_a_fraction_is_itself_in_every_notation(value: Any, short: bool) -> None:
    above, below = value.numerator, value.denominator
    sign = "-" if above < 0 else ""
    written = rf"{sign}\{'d' if short else ''}frac{{{abs(above)}}}{{{below}}}"
    assert latex.equal(written, f"{above}/{below}")
    assert latex.number(latex.normalize(written)) == value


@given(st.text(max_size=200), st.text(max_size=60))
@pytest.mark.slow
def test_no_text_breaks_the_comparison_and_nothing_is_equal_to_no_answer(said: str, wanted: str) -> None:
    for grading in Grading:
        assert right(said, Question("q", (wanted,), grading)) in (True, False)
    assert not latex.equal("", wanted) or not latex.normalize(wanted)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r"First \boxed{1}, then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("so 3+4=7\n#### 7", "7"),
        ("The final answer is $x=3$.", "x=3"),
        ("I get 12, no, 1,300", "1,300"),
        (r"\boxed{1", "1"),
        ("nothing", None),
    ],
)
def test_the_stated_answer_is_the_last_one_that_is_marked(text: str, said: str | None) -> None:
    assert latex.find_stated(text) == said


@pytest.mark.parametrize(
    ("text", "correct"),
    [
        ("Answer: B", True),
        ("Answer: (b)", True),
        (r"\boxed{B}", True),
        ("B", True),
        ("Answer: A", False),
        ("Both", False),
    ],
)
def test_a_choice_is_made_by_its_letter(text: str, correct: bool) -> None:
    assert right(text, Question("q", ("B",), Grading.CHOICE)) is correct


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    def row(n: int, level: int) -> dict[str, Any]:
        return {"problem": f"What is {n} plus one, said slowly?", "answer": str(n + 1), "level": level}

    rows = [row(n, n % 5) for n in range(60)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    other = [
        {"problem": f"What is {n} plus one, said slowly?", "answer": str(n + 1), "level": 1} for n in range(55, 70)
    ]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in other))
    return tmp_path


def env(path: Path, **settings: Any) -> Env:
    return make("questions", path=str(path), **settings)


@pytest.mark.slow
async def test_the_expert_is_right_in_every_format_and_silence_is_not(tmp_path: Path) -> None:
    for name, (row, _, _) in ROWS.items():
        (tmp_path / "test.jsonl").write_text(json.dumps(row) + "\n")
        own = env(tmp_path / "test.jsonl")
        (task,) = own.tasks("eval")
        assert isinstance(task, Task)
        session = await play(own, task)
        assert session.rewards["correct"] == 1.0, name
        assert "answers" not in own.brief(task).data


def test_training_questions_that_are_in_the_evaluation_are_left_out_where_that_is_asked_for(folder: Path) -> None:
    assert len(list(env(folder).tasks("train"))) == 60
    clean = [task["question"] for task in env(folder, decontaminate=6).tasks("train")]  # type: ignore[index]
    assert len(clean) == 55
    assert len(list(env(folder, where={"level": {"max": 1}}).tasks("train"))) == 24


@pytest.mark.slow
def test_the_environment_keeps_its_contract(folder: Path) -> None:
    assert check_env("questions", path=str(folder), decontaminate=6, scored=8) == []


def test_questions_that_their_set_says_have_no_answer_are_left_out(tmp_path: Path) -> None:
    unanswered = {"question_text": "q", "document_text": "a", "annotations": [{"yes_no_answer": "NONE"}]}
    rows = [unanswered, {"question": "q", "answer": "a", "answerable": False}, {"question": "kept", "answer": "a"}]
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [task["question"] for task in env(tmp_path).tasks("eval")] == ["kept"]  # type: ignore[index]


def test_math_is_read_from_its_own_folders_of_a_file_for_each_problem(tmp_path: Path) -> None:
    for split, number in (("train", 1), ("train", 2), ("test", 3)):
        file = tmp_path / split / "algebra" / f"{number}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        row = {"problem": f"q{number}", "level": "Level 2", "type": "Algebra", "solution": f"\\boxed{{{number}}}"}
        file.write_text(json.dumps(row, indent=4))
    read = {split: [task["question"] for task in env(tmp_path).tasks(split)] for split in ("train", "eval")}  # type: ignore[index]
    assert read == {"train": ["q1", "q2"], "eval": ["q3"]}


def test_mmlu_is_read_from_its_own_folders_whose_files_name_no_columns(tmp_path: Path) -> None:
    quoted = '"Which, of\nthese?",1,"2, or ""two""",3,4,B\n'
    for name, text in (("dev/virology_dev", "d,1,2,3,4,A\n"), ("test/virology_test", f"q,w,x,y,z,D\n{quoted}")):
        file = tmp_path / "data" / f"{name}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    tasks = list(env(tmp_path).tasks("eval"))
    assert [(task["question"], task["answers"], task.id) for task in tasks] == [  # type: ignore[index, union-attr]
        ("q\nA. w\nB. x\nC. y\nD. z", ["D"], "data/test/virology_test.csv, row 1"),
        ('Which, of\nthese?\nA. 1\nB. 2, or "two"\nC. 3\nD. 4', ["B"], "data/test/virology_test.csv, row 3"),
    ]


@pytest.mark.parametrize(
    ("text", "correct"),
    [
        ("They pass through you. Answer: the seeds pass through you unharmed", True),
        ("Answer: you will grow melons", False),
        ("Answer: something else", False),
        ("", False),
    ],
)
def test_a_free_answer_is_right_where_it_is_closer_to_a_right_one_than_to_any_wrong_one(
    text: str, correct: bool
) -> None:
    row = ROWS["truthful_qa"][0]
    asked = question(row)
    assert asked is not None
    assert asked.wrong == ("You die", "You grow melons")
    assert right(text, asked) is correct
    choices = question(row, Grading.CHOICE)
    assert choices is not None
    assert choices.text.splitlines()[1:] == ["A. The seeds pass through you", "B. You die", "C. You grow melons"]
    with pytest.raises(ValueError, match="'closer' needs wrong answers"):
        question({"question": "q", "answer": "a"}, Grading.CLOSER)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"grading": "maths"}, "allowed are math, exact, choice, closer"),
        ({"decontaminate": -1}, "must be 0 or more"),
        ({"eval_path": "nowhere.jsonl"}, "there is no such file or folder"),
    ],
)
def test_wrong_settings_are_refused(folder: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        env(folder, **settings)


def test_a_row_of_no_format_is_named_with_its_columns(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"text": "q"}\n')
    with pytest.raises(ConfigError, match=r"test.jsonl, row 1: it has neither .*\(columns: text\)"):
        env(tmp_path).tasks("eval")


def notes(path: Path, split: str = "train", **settings: Any) -> tuple[str, ...]:
    found = make("questions", path=str(path), **settings).tasks(split)
    assert isinstance(found, TaskList)
    return found.notes


def test_how_answers_are_graded_and_what_was_left_out_is_told(tmp_path: Path) -> None:
    """A number in a CSV file was compared as words, and one in a JSON file as mathematics, without a word."""
    file = tmp_path / "q.csv"
    file.write_text("question,answer\nTwo and two?,4\nWho?,Ann\n")
    assert "graded as exact (2), 1 of them numbers that are compared as words (env.grading=math" in notes(file)[0]
    assert "graded as math (2)" in notes(file, grading="math")[0]
    rows = [{"question": f"{n}?", "answer": n, "answerable": n != 3} for n in range(4)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "graded as math (3); rows without an answer, left out: 1" in notes(tmp_path / "q.jsonl")[0]


@pytest.mark.slow
def test_a_list_of_one_message_is_a_question_and_another_list_is_named(tmp_path: Path) -> None:
    """slime, AReaL, TRL and verl have `prompt` as messages; the error asked for the column that was given."""
    file, user = tmp_path / "q.jsonl", {"role": "user", "content": "Two and two?"}
    columns = {"question": "prompt", "answer": "reward_model.ground_truth"}

    def tasks(prompt: Any) -> list[Any]:
        others = [{"prompt": f"{n}?", "reward_model": {"ground_truth": "4"}} for n in range(3)]
        rows = [{"prompt": prompt, "reward_model": {"ground_truth": "4"}}, *others]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        env = make("questions", path=str(file), eval_path=str(file), columns=columns, grading="math")
        return list(env.tasks("train"))

    assert tasks([user])[0]["question"] == "Two and two?"
    with pytest.raises(ConfigError, match=r"row 1: the question must be .* it is a list of \['system', 'user'\]"):
        tasks([{"role": "system", "content": "Be short."}, user])
    with pytest.raises(ConfigError, match="it has neither `question` nor `problem`"):
        tasks(None)


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ({"question": "Who sang it?", "golden_answers": ["...", "!!!"]}, {}),
        ({"question": "Which letter?", "answer": "(?)"}, {"grading": "exact"}),
        ({"problem": "How many?", "answer": "$\\,$"}, {}),
        ({"problem": "How many?", "answer": r"\left\right"}, {}),
    ],
)
def test_a_right_answer_of_which_the_comparison_leaves_nothing_is_refused(
    tmp_path: Path, row: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Every answer of which nothing is left either was right for it."""
    rows = [row, {**row, "answer": "12", "golden_answers": ["Vienna"]}]
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    told = notes(tmp_path / "some.jsonl", eval_path=str(tmp_path / "some.jsonl"), **settings)
    assert any("rows without an answer, left out: 1" in note for note in told)
    (tmp_path / "none.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match="holds no questions"):
        list(env(tmp_path / "none.jsonl", eval_path=str(tmp_path / "none.jsonl"), **settings).tasks())


def test_an_alias_of_which_nothing_is_left_is_no_right_answer(tmp_path: Path) -> None:
    row = {"question": "Who sang it?", "golden_answers": ["!!!", "The The"]}
    assert question(row) == Question("Who sang it?", ("The The",), Grading.EXACT)
