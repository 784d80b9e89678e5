"""Which tasks are held out where nothing says it: one rule for every kind of data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentrl
from agentrl.config import RunConfig
from agentrl.envs.base import Env
from agentrl.envs.data import identity
from agentrl.envs.data.splits import divide, fold_text, is_held_out
from agentrl.errors import ConfigError
from agentrl.rollout.episodes.evaluation import held_out_tasks
from agentrl.types import Task

WORDS = st.lists(st.text("abc ", min_size=1, max_size=4), max_size=30)


def sides(texts: list[str]) -> tuple[list[str], list[str], tuple[str, ...]]:
    tasks = [Task(id=f"t{n}", data={"text": text}) for n, text in enumerate(texts)]
    train, out = (divide(tasks, split, lambda task: str(task["text"]), "it") for split in ("train", "eval"))
    assert sorted(task.id for task in [*train, *out]) == sorted(task.id for task in tasks)
    assert train.notes == out.notes
    return [task["text"] for task in train], [task["text"] for task in out], train.notes


@given(WORDS)
@pytest.mark.slow
def test_both_splits_have_tasks_equal_ones_are_on_one_side_and_growth_moves_none_but_one_that_was_noted(
    texts: list[str],
) -> None:
    before: dict[str, bool] = {}
    moved = False
    for count in range(1, len(texts) + 1):
        if len({fold_text(text) for text in texts[:count]}) < 2:
            continue
        train, out, notes = sides(texts[:count])
        assert train
        assert out
        assert not {fold_text(text) for text in train} & {fold_text(text) for text in out}
        now = {fold_text(text): text in out for text in texts[:count]}
        changed = [text for text, was in before.items() if now[text] != was]
        assert len(changed) <= moved
        before, moved = now, bool(notes)
        if not notes:
            assert all(is_out == is_held_out(text) for text, is_out in now.items())


def test_texts_that_differ_in_case_spaces_and_unicode_forms_are_one_task() -> None:
    assert is_held_out("What  is\n\uff21?") == is_held_out("what is a?")
    with pytest.raises(ConfigError, match=r"it: all it holds is the same task \('t0'\).*eval.split=train"):
        sides(["Who?", "who? "])
    with pytest.raises(ConfigError, match="it: there are no tasks"):
        sides([])


def rows(path: Path, row: Callable[[int], Any], count: int) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row(n)) + "\n" for n in range(count)))
    return str(path)


def questions(folder: Path, count: int) -> Env:
    return agentrl.make(
        "questions", path=rows(folder / "q.jsonl", lambda n: {"question": f"{n}?", "answer": "x"}, count)
    )


def gsm8k(folder: Path, count: int) -> Env:
    return agentrl.make(
        "gsm8k", path=rows(folder / "g.jsonl", lambda n: {"question": f"{n}?", "answer": f"#### {n}"}, count)
    )


def code(folder: Path, count: int) -> Env:
    def row(n: int) -> dict[str, Any]:
        return {"text": f"Give {n}.", "code": f"def f():\n    return {n}\n", "test_list": [f"assert f() == {n}"]}

    return agentrl.make("code", path=rows(folder / "c.jsonl", row, count), sandbox="subprocess")


def document_search(folder: Path, count: int) -> Env:
    (folder / "a.txt").write_text("A line.\n")
    rows(folder / "questions.jsonl", lambda n: {"document": "a.txt", "question": f"{n}?", "answer": "x"}, count)
    return agentrl.make("document_search", path=str(folder))


def search_r1(folder: Path, count: int) -> Env:
    rows(folder / "train.jsonl", lambda n: {"question": f"{n}?", "golden_answers": ["x"]}, count)
    return agentrl.make("search_r1", data=str(folder))


KINDS = [questions, gsm8k, code, document_search, search_r1]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("count", [2, 5, 20])
def test_a_small_set_of_any_kind_has_both_splits_and_what_was_moved_is_told(
    make: Callable[[Path, int], Env], count: int, tmp_path: Path
) -> None:
    """Half of the files of five rows ended with "no questions for the split 'eval'"."""
    env = make(tmp_path, count)
    train, out = (list(env.tasks(split)) for split in ("train", "eval"))
    assert train
    assert out
    assert len(train) + len(out) == count
    told = identity.describe_identity(identity.of_splits(env, env.splits))
    assert ("was moved to 'eval'" in told) == (not any(is_held_out(identity_text(task)) for task in [*train, *out]))


def identity_text(task: Any) -> str:
    return str(task.data.get("question") or task.data["statement"])


def test_which_tasks_are_evaluated_does_not_depend_on_the_seed(tmp_path: Path) -> None:
    """Two seeds shared 1 of 23 tasks, so their results were of other tasks."""
    env = questions(tmp_path, 2000)

    def chosen(seed: int) -> list[str]:
        config = RunConfig(env={"name": "questions"}, seed=seed, eval={"tasks": 23})  # type: ignore[arg-type]
        return [task.id for task in held_out_tasks(config.eval, env)]

    assert len(chosen(0)) == 23
    assert chosen(0) == chosen(1)


@pytest.mark.slow
def test_notes_are_stored_with_the_identity_and_are_no_change_of_the_data(tmp_path: Path) -> None:
    found = identity.of_splits(questions(tmp_path, 2), ("train", "eval"))
    again = identity.read(json.loads(json.dumps(identity.json(found))))
    assert again["eval"].notes == found["eval"].notes
    older = {split: {k: v for k, v in each.items() if k != "notes"} for split, each in identity.json(found).items()}
    assert identity.differences(identity.read(older), found) == []
