"""What `agentrl convert data` carries is what a run reads, and what it leaves out is named with its reason."""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.data import DataConfig
from agentrl.envs.builtin.questions.formats import Grading
from agentrl.envs.builtin.swe.formats.datasets import read_tasks
from agentrl.envs.registry import make
from agentrl.overrides import parse_words
from agentrl.rollout.sources.files import read_conversations
from agentrl.train.migration.convert import convert_file, runs_as_it_is
from agentrl.train.migration.rows import Kind, RowReader
from tests.command_line import run_agentrl

Rows = list[dict[str, Any]]


def user(text: str, *before: dict[str, str]) -> list[dict[str, str]]:
    return [*before, {"role": "user", "content": text}]


def verl(text: str, truth: Any, source: str = "openai/gsm8k", **more: Any) -> dict[str, Any]:
    """A row as verl's preparation scripts write it."""
    extra = {"split": "train", "index": 0, "answer": "x", "question": "y", **more.pop("extra", {})}
    truth = {"ground_truth": truth, "style": "rule"}
    return {
        "data_source": source,
        "prompt": user(text),
        "ability": "",
        "reward_model": truth,
        "extra_info": extra,
        **more,
    }


SYSTEM = {"role": "system", "content": "Be brief."}
REPLY = {"role": "assistant", "content": "4"}
SWE = {
    **{
        "repo": "psf/requests",
        "instance_id": "psf__requests-1",
        "base_commit": "abc",
        "problem_statement": "It fails.",
    },
    **{"patch": "", "test_patch": "", "version": "2", "FAIL_TO_PASS": '["a"]', "PASS_TO_PASS": "[]"},
}
CASES: dict[str, tuple[Rows, Kind, int]] = {
    "verl": (
        [
            verl("2 and 2?", "4"),
            verl("A half of one?", "\\frac{1}{2}", "lighteval/MATH"),
            verl("Capital of France?", {"target": ["Paris"]}, "searchR1_nq"),
            verl("6?", "6", "mine", ability="math", extra={"tools_kwargs": {"calc": {"create_kwargs": {}}}}),
            verl("7?", "7", "mine"),  # a number in text that may be meant as words
            verl("Sort.", '{"inputs": []}', "codecontests"),
            verl("Look.", "3", images=["x.png"]),
            verl("8?", "8") | {"prompt": [*user("7?"), REPLY, *user("8?")]},
            verl("9?", "9") | {"prompt": user("9?", SYSTEM)},
        ],
        Kind.QUESTIONS,
        4,
    ),
    "slime": (
        [
            {"prompt": user("2 and 2?", SYSTEM), "label": "4", "metadata": {"rm_type": "math"}},
            {"prompt": user("3?", SYSTEM), "label": "3", "metadata": {"rm_type": "deepscaler", "tools": ["x"]}},
            {"messages": user("5?", SYSTEM), "label": "5", "metadata": {"rm_type": "math"}},
            {"prompt": user("Who?", SYSTEM), "label": "", "metadata": {"rm_type": "f1"}},
        ],
        Kind.QUESTIONS,
        3,
    ),
    "openai": ([{"messages": [*user("2?"), REPLY]}, {"messages": user("2?")}], Kind.CONVERSATIONS, 1),
    "sharegpt": (
        [{"conversations": [{"from": "human", "value": "2?"}, {"from": "gpt", "value": "4"}]}, {"conversations": []}],
        Kind.CONVERSATIONS,
        1,
    ),
    "trl": (
        [{"prompt": user("2?"), "completion": [REPLY]}, {"prompt": "2?", "completion": "4"}],
        Kind.CONVERSATIONS,
        1,
    ),
    "preferences": (
        [
            {"prompt": user("2?"), "chosen": [REPLY], "rejected": [{**REPLY, "content": "5"}]},
            {"chosen": "", "rejected": "x"},
        ],
        Kind.PAIRS,
        1,
    ),
    "verdicts": ([{"prompt": user("2?"), "completion": [REPLY], "label": True}], Kind.VERDICTS, 1),
    "swe": ([SWE, {**SWE, "repo": None, "instance_id": "x", "FAIL_TO_PASS": "[a"}], Kind.REPOSITORIES, 1),
}


def written(folder: Path, rows: Rows) -> str:
    (file := folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.mark.parametrize("name", CASES)
def test_what_is_carried_is_read_whole_by_a_run_and_every_other_row_has_a_reason(name: str, tmp_path: Path) -> None:
    rows, kind, carried = CASES[name]
    found = convert_file(written(tmp_path, rows), out := tmp_path / "out.jsonl", RowReader())
    assert (found.reader.kind, found.carried, len(found.left_out)) == (kind, carried, len(rows) - carried)
    assert all(place.startswith("rows.jsonl, row ") and why and why[0] != ":" for place, why in found.left_out)
    if found.left_out:
        named = [json.loads(line) for line in found.reasons.read_text().splitlines()]
        assert [(each["row"], each["why"]) for each in named] == found.left_out
    if kind is Kind.REPOSITORIES:
        assert len(read_tasks(out)[0]) == carried
    elif kind is Kind.QUESTIONS:
        env = make("questions", path=str(out), eval_path=str(out))
        tasks = env.tasks()
        assert len(tasks) == carried
        for task in tasks:  # the right answer, as its grading wants it, is right
            env.reset(task)
            answer = env.expert([])
            assert Grading(task["grading"]) is (Grading.EXACT if "Paris" in answer else Grading.MATH)
    else:
        compared = {Kind.PAIRS: "pairs", Kind.VERDICTS: "labels"}.get(kind)
        read = read_conversations(DataConfig(name=str(out), held_out=str(out)), compared)  # type: ignore[arg-type, call-arg]
        assert len(read.examples["train"]) == carried


def test_the_reasons_are_those_of_the_rows(tmp_path: Path) -> None:
    rows, _, _ = CASES["verl"]
    found = convert_file(written(tmp_path, rows), tmp_path / "out.jsonl", RowReader())
    reasons = " | ".join(why for _, why in found.left_out)
    for words in (
        "--grading math or exact",
        "tests of a program",
        "it has images",
        "conversation (user, assistant, user)",
    ):
        assert words in reasons
    assert "another than that of the rows before" in reasons
    assert found.reader.unread == {"extra_info.tools_kwargs": 1}
    assert any("not carried: extra_info.tools_kwargs, in 1 rows" in line for line in found.lines())


def test_the_command_that_is_printed_asks_what_the_rows_asked(tmp_path: Path) -> None:
    """The system message of the rows is the run's, an empty one included: ours would be said beside it."""
    rows, kind, _ = CASES["slime"]
    found = convert_file(written(tmp_path, rows), tmp_path / "out.jsonl", RowReader())
    settings = parse_words(shlex.split(found.command(kind))[2:])
    assert settings["env"]["instructions"] == "Be brief."
    env = make("questions", path=settings["env"]["path"], instructions=settings["env"]["instructions"])
    opening = env.reset(env.tasks("train")[0])
    assert [message.role for message in opening] == ["system", "user"]
    again = convert_file(written(tmp_path, CASES["verl"][0]), tmp_path / "other.jsonl", RowReader())
    settings = parse_words(shlex.split(again.command(Kind.QUESTIONS))[2:])
    assert settings["env"]["instructions"] == ""
    (sums := tmp_path / "sums.csv").write_text("question,answer\n2 + 2?,4\n")
    graded = convert_file(str(sums), tmp_path / "sums.jsonl", RowReader(grading=Grading.MATH))
    settings = parse_words(shlex.split(graded.command(Kind.QUESTIONS))[2:])["env"]
    assert len(make(settings.pop("name"), **{"eval_path": settings["path"], **settings}).tasks()) == 1


def test_the_command_says_what_it_left_out_and_ends_with_1_where_nothing_is_carried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = partial(run_agentrl, "convert", "data")
    file, out = written(tmp_path, [verl("7?", "7", "mine")]), str(tmp_path / "out.jsonl")
    assert ended(file, out) == 1
    assert "left out: rows.jsonl, row 1: its answer '7' is a number in text" in capsys.readouterr().out
    assert not Path(out).exists()
    assert ended(file, str(tmp_path / "b.jsonl"), "--grading", "maths") == 2
    assert ended(file, str(tmp_path / "b.jsonl"), "--grading", "math") == 0
    assert "1 rows, 1 carried as questions" in capsys.readouterr().out
    assert ended(file, str(tmp_path / "b.jsonl"), "--grading", "math") == 2  # it is there already


def test_a_folder_that_runs_as_it_is_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "task.toml").touch()
    assert "env=swe env.path=" in str(runs_as_it_is(str(tmp_path)))
    assert runs_as_it_is(str(tmp_path / "one" / "task.toml")) is None


def test_verls_parquet_is_read_with_its_arrays(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [verl(f"{n} and {n}?", str(2 * n)) for n in range(3)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "train.parquet")
    found = convert_file(str(tmp_path / "train.parquet"), out := tmp_path / "out.jsonl", RowReader())
    assert (found.carried, found.left_out) == (3, [])
    assert [json.loads(line) for line in out.read_text().splitlines()][2] == {"problem": "2 and 2?", "answer": "4"}
