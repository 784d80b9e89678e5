"""What a file holds, how it is read and what of it is ignored is said, and stored with the data's identity."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.envs.data import identity
from agentrl.envs.data.dataset import Dataset
from agentrl.envs.data.mixture import Mixture
from agentrl.envs.data.rows import Row
from agentrl.envs.registry import make
from agentrl.errors import ConfigError
from agentrl.types import Task

NUMBERS = [{"question": f"What is {n} plus {n}?", "answer": str(2 * n)} for n in range(20)]
VERL = [
    {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"What is {n} plus {n}?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(2 * n)},
        "extra_info": {"index": n},
    }
    for n in range(20)
]


def written(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def notes(name: str, splits: Sequence[str] = ("train", "eval"), **settings: Any) -> str:
    return identity.describe_identity(identity.of_splits(make(name, **settings), splits))


@pytest.mark.parametrize("rows", [NUMBERS, VERL], ids=["text", "verl"])
def test_numbers_in_text_are_graded_only_once_it_is_said_how(tmp_path: Path, rows: Any) -> None:
    """`"4"` was compared as words and `4` as mathematics, so "4.0" was wrong in every CSV file and in verl's."""
    path = written(tmp_path / "a.jsonl", rows)
    with pytest.raises(
        ConfigError, match=r"20 answers are numbers .* such as '0'.*env\.grading=math.*env\.grading=exact"
    ):
        make("questions", path=path).tasks("train")
    for grading in ("math", "exact"):
        tasks = list(make("questions", path=path, grading=grading).tasks("train"))
        assert tasks
        assert {task["grading"] for task in tasks} == {grading}  # type: ignore[index]


@pytest.mark.parametrize(
    "rows",
    [
        [{"question": f"q{n}", "answer": n} for n in range(20)],
        [{"question": f"q{n}", "answer": str(n) if n % 2 else "a word"} for n in range(20)],
        [{"question": f"q{n}", "golden_answers": [str(n)]} for n in range(20)],
        [{"problem": f"q{n}", "answer": str(n), "urls": "https://a"} for n in range(20)],
        [{"question": f"q{n}", "answer": f"so #### {n}"} for n in range(20)],
    ],
)
def test_where_one_reading_alone_fits_it_is_taken(tmp_path: Path, rows: Any) -> None:
    assert list(make("questions", path=written(tmp_path / "a.jsonl", rows)).tasks("train"))


def test_what_trainers_files_hold_is_read_and_their_scoring_is_named_as_ignored(tmp_path: Path) -> None:
    said = notes("questions", path=written(tmp_path / "a.jsonl", VERL), grading="math")
    assert "columns that are not read: ability, data_source, extra_info" in said
    assert "(so ability, data_source, extra_info have no part in the scoring)" in said
    assert "20 questions" in said
    assert "graded as math (20)" in said
    (task, *_) = make("questions", path=str(tmp_path / "a.jsonl"), grading="math").tasks("train")
    assert isinstance(task, Task)
    assert task["question"].startswith("What is ")
    assert [str(2 * int(task["question"].split()[2]))] == task["answers"]
    slime = [{"prompt": f"q{n}", "label": f"word {n}", "rubric": "be kind"} for n in range(20)]
    said = notes("questions", path=written(tmp_path / "b.jsonl", slime))
    assert "columns that are not read: rubric (so rubric has no part in the scoring)" in said


def test_rows_that_are_left_out_are_counted(tmp_path: Path) -> None:
    rows = [{"question": f"q{n}", "answer": "a", "level": n % 4, "answerable": n != 5} for n in range(20)]
    said = notes("questions", path=written(tmp_path / "a.jsonl", rows), where={"level": {"max": 2}})
    assert "rows without an answer, left out: 1; rows that env.where leaves out, left out: 5" in said


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["train.jsonl", "train.json"], "seem to be the same rows in two formats"),
        (["train.jsonl", "train.jsonl.gz"], "seem to be the same rows in two formats"),
        (["main/train-0.jsonl", "socratic/train-0.jsonl"], r"env\.config= \(there are main, socratic\)"),
        (
            ["train.jsonl", "train_dev.jsonl"],
            r"'train_dev\.jsonl' is for training and for evaluation: .*env\.eval_path",
        ),
    ],
)
def test_files_that_can_be_taken_in_two_ways_are_refused(tmp_path: Path, files: list[str], said: str) -> None:
    """Rows were read twice, from two formats or configurations, or trained on and evaluated."""
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b'{"question": "q", "answer": "a"}\n')
    with pytest.raises(ConfigError, match=said):
        make("questions", path=str(tmp_path)).tasks("train")


def test_files_of_a_folder_that_nothing_reads_are_named(tmp_path: Path) -> None:
    for name in ("train.jsonl", "test.jsonl", "validation.jsonl", "more.jsonl"):
        written(tmp_path / name, [{"question": name, "answer": "a"}])
    assert "files that are of neither split: more.jsonl, validation.jsonl" in notes("questions", path=str(tmp_path))


def test_a_folder_is_read_whole_but_for_copies_and_what_describes_it(tmp_path: Path) -> None:
    """Copies that notebooks keep were trained on too; files in capitals and behind links were left out in silence."""
    (there := tmp_path / "there").mkdir()
    (folder := tmp_path / "here").mkdir()
    (folder / "more").symlink_to(there)
    (there / "around").symlink_to(folder)
    (folder / ".ipynb_checkpoints").mkdir()
    written(folder / ".ipynb_checkpoints/train-checkpoint.jsonl", NUMBERS)
    written(there / "train-1.NDJSON", NUMBERS[:5])
    (folder / "TRAIN-2.CSV").write_text("question,answer\nq,a\n")
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text("{}")
    assert [place for place, _ in Dataset(str(folder)).rows("train")] == [
        "TRAIN-2.CSV, row 2",
        *(f"more/train-1.NDJSON, row {row}" for row in range(1, 6)),
    ]
    (folder / "train-3.jsonl.zip").write_bytes(b"PK\x03\x04")
    with pytest.raises(ConfigError, match=r"train-3\.jsonl\.zip: it is packed by zip"):
        list(Dataset(str(folder)).rows("train"))


def test_what_is_meant_by_a_path_that_is_none_is_said() -> None:
    for path, said in (("data/*.jsonl", "name the folder"), ("openai/gsm8k", "hf://openai/gsm8k")):
        for name in ("questions", "prompts"):
            with pytest.raises(ConfigError, match=f"there is no such file or folder; .*{said}"):
                list(make(name, path=path).tasks("train"))


def test_a_prompt_that_is_json_of_messages_is_those_messages(tmp_path: Path) -> None:
    """As a table has them: the model was shown the brackets."""
    asked = [{"role": "user", "content": "q"}]
    for place, prompt in enumerate((json.dumps(asked), json.dumps(asked[0]), asked, asked[0], "q")):
        written(tmp_path / f"{place}.jsonl", [{"prompt": prompt, "answer": "a b"}])
        for name, settings in (("prompts", {}), ("questions", {"columns": {"question": "prompt"}})):
            env = make(name, path=str(tmp_path / f"{place}.jsonl"), **settings)
            (task,) = env.tasks("train")
            assert list(env.reset(Task.model_validate(task)))[-1].text == "q"


def test_prompts_say_what_they_leave_out(tmp_path: Path) -> None:
    for name in ("train.jsonl", "test.jsonl", "more.jsonl"):
        written(tmp_path / name, [{"prompt": "p", "n": 1}, {"prompt": "q", "n": 2}])
    said = notes("prompts", path=str(tmp_path), where={"n": 1})
    assert "rows that env.where leaves out: 1" in said
    assert "files that are of neither split: more.jsonl" in said
    with pytest.raises(ConfigError, match=r"holds no prompts .* leaves out: 2"):
        make("prompts", path=str(tmp_path), where={"n": 3}).tasks("train")


def test_the_overlap_of_splits_is_said_whatever_the_environment(tmp_path: Path) -> None:
    path, other = (
        written(tmp_path / "a.jsonl", NUMBERS),
        written(tmp_path / "b.jsonl", [*NUMBERS[15:], {"question": "q", "answer": "1"}]),
    )
    said = notes("questions", path=path, eval_path=other, grading="math")
    assert "5 of 6 tasks of 'eval' have the same data as tasks that are trained" in said
    assert "same data" not in notes("questions", path=path, grading="math")
    found = identity.of_splits(Same(), ["train", "eval"])
    assert found["eval"].notes == ("3 of 3 tasks of 'eval' have the same data as tasks that are trained",)
    assert identity.read(identity.json(found))["eval"].notes == found["eval"].notes
    assert identity.of_splits(Same(), ["eval"])["eval"].notes == ()


class Same(agentrl.Env):
    """Has the same tasks in both splits, under other ids."""

    def tasks(self, split: str = "train") -> list[dict[str, Any]]:
        return [{"id": f"{split}-{n}", "n": n} for n in range(3)]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        return "?"


def test_parts_of_a_mixture_are_compared_each_with_itself() -> None:
    agentrl.register("same", Same)
    found = identity.of_splits(Mixture(same=1, calculator=1), ["train", "eval"])
    assert "3 of 3 tasks of 'same/eval'" in found["same/eval"].notes[0]
    assert found["calculator/eval"].notes == ()


HUMANEVAL = {
    "task_id": "h/1",
    "prompt": "def one():\n",
    "entry_point": "one",
    "canonical_solution": "    return 1\n",
    "test": "def check(candidate):\n    assert candidate() == 1\n",
}
MBPP = {"task_id": 7, "text": "Give two.", "code": "def two():\n    return 2\n", "test_list": ["assert two() == 2"]}


def test_code_says_which_layouts_its_rows_have_and_which_tests_it_does_not_run(tmp_path: Path) -> None:
    rows = [HUMANEVAL, MBPP | {"challenge_test_list": ["assert two() > 1"]}]
    said = notes("code", ("train",), path=written(tmp_path / "a.jsonl", rows), sandbox="subprocess")
    assert "2 problems, read as HumanEval's (1), MBPP's (1)" in said
    assert "columns that are not read: challenge_test_list (so challenge_test_list has no part in the scoring)" in said
    with pytest.raises(ConfigError, match=r"HumanEval .* and of MBPP .* leave one of the tests out"):
        make("code", path=written(tmp_path / "b.jsonl", [HUMANEVAL | MBPP]), sandbox="subprocess").tasks("train")


def test_every_environment_with_a_file_says_what_it_does_not_read(tmp_path: Path) -> None:
    grade = [{"question": f"q{n}", "answer": f"#### {n}", "rubric": "r"} for n in range(9)]
    assert "9 problems; columns that are not read: rubric" in notes("gsm8k", path=written(tmp_path / "a.jsonl", grade))
    asked = [{"question": f"q{n}", "golden_answers": ["a"], "reward_model": {}} for n in range(9)]
    said = notes("search_r1", ("train",), data=written(tmp_path / "train.jsonl", asked))
    assert "9 questions; columns that are not read: reward_model" in said
    call = {
        "id": "simple_1",
        "question": [[{"role": "user", "content": "Add."}]],
        "function": {"name": "add", "description": "", "parameters": {"type": "dict", "properties": {}}},
        "ground_truth": [{"add": {}}],
        "execution_result": 3,
    }
    said = notes("function_calls", ("eval",), path=written(tmp_path / "calls.json", [call]))
    assert "1 questions, read as calls that are expected (1); columns that are not read: execution_result" in said


def test_a_row_knows_what_was_asked_for_also_in_its_copies() -> None:
    row = Row({"a": 1, "b": 2, "c": 3})
    assert (row["a"], row.over({"b": 5}).get("b"), row.get("d")) == (1, 5, None)
    assert row.read == {"a", "b", "d"}


@pytest.mark.slow
def test_cells_of_a_table_are_plain(tmp_path: Path) -> None:
    """Decimals were compared as words, and NaN, pandas' empty cell, was an answer."""
    import datetime
    from decimal import Decimal

    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    rows = [{"question": f"q{n}", "answer": Decimal(f"{n}.00"), "day": datetime.date(2024, 1, 1)} for n in range(9)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    tasks = list(make("questions", path=str(tmp_path / "a.parquet")).tasks("train"))
    assert {task["grading"] for task in tasks} == {"math"}  # type: ignore[index]
    parquet.write_table(pyarrow.table({"question": ["q"], "answer": [float("nan")]}), tmp_path / "b.parquet")
    with pytest.raises(ConfigError, match="it has no answer"):
        make("questions", path=str(tmp_path / "b.parquet")).tasks("train")


def test_different_questions_of_one_id_are_different_tasks(tmp_path: Path) -> None:
    """They were one to whoever compares two evaluations by task, and a missing id of a table was `nan` for all."""
    rows = [{"id": "1", "question": "a?", "answer": "x"}, {"id": "1", "question": "b?", "answer": "y"}]
    rows += [{"id": "2", "question": "c?", "answer": "z"}] * 2
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    env = make("questions", path=str(tmp_path / "a.jsonl"))
    tasks = [*env.tasks("train"), *env.tasks("eval")]
    names = {(task.id, task["question"]) for task in tasks if isinstance(task, Task)}
    assert names == {("a.jsonl, row 1", "a?"), ("a.jsonl, row 2", "b?"), ("2", "c?")}
    assert "different questions have the id '1'" in str(
        identity.describe_identity(identity.of_splits(env, ["train", "eval"]))
    )


@pytest.mark.parametrize("cell", ["null", "NaN", '""', '{"x": 1}'])
def test_an_empty_answer_is_shown_and_no_other_column_asked_for(cell: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"question": "a?", "answer": {cell}}}')
    with pytest.raises(ConfigError, match=r"row 1: it has no answer: `answer` is .*; give it one, or leave it out"):
        make("questions", path=str(tmp_path / "a.jsonl")).tasks("train")
