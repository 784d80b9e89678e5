"""Sessions are found by conditions in words, which mean what Python says of them, and run nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import InvalidInput, UnknownName
from agentrl.sessions.store import query
from agentrl.sessions.store.store import Store
from agentrl.types import Session, Status, Task

ROWS: list[dict[str, Any]] = [
    {"sample": sample, "level": level, "kind": kind, "correct": correct, "tokens": tokens}
    for sample, (level, kind, correct, tokens) in enumerate(
        [
            (1, "sum", 0.0, 7),
            (2, "sum", 1.0, 7),
            (2, 'it\'s a "product"', 0.5, 90),
            (5, "SUM", 1.0, -3),
            (0, "", 0.0, 0),
        ]
    )
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(tmp_path_factory.mktemp("found") / "sessions.db") as store:
        for row in ROWS:
            session = Session(
                f"s-{row['sample']}", Task(id="t", data={"level": row["level"], "tags": ["a", row["kind"]]})
            )
            session.sample, session.status = row["sample"], Status.COMPLETED
            session.reward, session.rewards = row["correct"], {"correct": row["correct"], "two words": row["tokens"]}
            session.info, session.counters = {"kind": row["kind"]}, {"tokens": row["tokens"]}
            store.save(session)
        store.save(Session("bare", Task(id="t"), phase="demo"))
        yield store


def found(store: Store, *conditions: str) -> list[int]:
    """The samples of the sessions of `ROWS` that fit."""
    return [row.sample for row in store.find({"where": conditions, "id": [f"s-{n}" for n in range(9)]}).rows]


def by_python(text: str) -> list[int]:
    """What Python's own `eval` says of each row."""

    def holds(row: dict[str, Any]) -> bool:
        names = {
            "sample": row["sample"],
            "score": row["correct"],
            "reward": {"correct": row["correct"], "two words": row["tokens"]},
            "data": SimpleNamespace(level=row["level"], tags=["a", row["kind"]]),
            "info": SimpleNamespace(kind=row["kind"]),
            "counters": SimpleNamespace(tokens=row["tokens"]),
        }
        return bool(eval(text, {}, names))

    return [row["sample"] for row in ROWS if holds(row)]


NUMBERS = st.sampled_from(
    ["sample", "score", "data.level", "counters.tokens", 'reward["two words"]', "2", "-3", "0.5", "1e3"]
)
TEXTS = st.sampled_from(["info.kind", "data.tags[1]", "data.tags[0]", "'sum'", "'SUM'", "''", "'it\\'s a \"product\"'"])
SIGNS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])


def join(*parts: str) -> str:
    return " ".join(parts)


COMPARISONS = (
    st.builds(join, NUMBERS, SIGNS, NUMBERS)
    | st.builds(join, NUMBERS, SIGNS, NUMBERS, SIGNS, NUMBERS)
    | st.builds(join, TEXTS, SIGNS, TEXTS)
    | st.builds(
        lambda one, sign, others: f"{one} {sign} [{', '.join(others)}]",
        NUMBERS,
        st.sampled_from(["in", "not in"]),
        st.lists(NUMBERS, max_size=3),
    )
    | NUMBERS
)
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda inner: (
        st.builds(lambda one, word, other: f"({one} {word} {other})", inner, st.sampled_from(["and", "or"]), inner)
        | st.builds(lambda one: f"not ({one})", inner)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(text=CONDITIONS)
def test_a_condition_finds_what_python_says_of_each_session(text: str, store: Store) -> None:
    assert found(store, text) == by_python(text)


def test_a_condition_may_be_deep_and_long(store: Store) -> None:
    assert found(store, "not " * 16 + "data.level") == [0, 1, 2, 3]
    assert found(store, " or ".join(f"sample == {n}" for n in range(3, 60))) == [3, 4]


def test_several_conditions_hold_all_and_join_other_filters(store: Store) -> None:
    assert found(store, "data.level == 2", "score < 1") == [2]
    assert [row.id for row in store.find({"where": "sample >= 0", "phase": "demo"}).rows] == ["bare"]


def test_what_a_session_lacks_is_none(store: Store) -> None:
    where = {
        "data.level is None": ["bare"],
        "data.level < 100 or not data.level < 100": [*(f"s-{n}" for n in range(5)), "bare"],
        "reward.correct != 1 and phase == 'demo'": ["bare"],
        "data.no.such.field == 1": [],
        "not data.level": ["s-4", "bare"],
    }
    for text, ids in where.items():
        assert [row.id for row in store.find({"where": text}).rows] == ids, text


def test_a_text_is_looked_for_whatever_its_case_and_in_lists(store: Store) -> None:
    assert found(store, "'PRODUCT' in info.kind") == [2]
    assert found(store, "'product' in data.tags") == [2]
    assert found(store, "'sum' not in info.kind") == [2, 4]


@pytest.mark.parametrize(
    "text",
    [
        *("", "score <", "import os", "score = 1", "score + 1 > 2", "f(score)", "__import__('os').system('x')"),
        *("[x for x in y]", "lambda: 1", "data[level] == 1", "data['a\"b'] == 1", "data[1.5] == 1", "f'{score}' == 1"),
        *(
            "(" * 400,
            "not " * 200 + "1",
            "score < " + "9" * 30,
            "score == b'x'",
            "score is score < (yield)",
            "sample\0",
        ),
        "1 or " * 500 + "1",
    ],
)
def test_what_is_no_condition_is_refused_in_a_sentence(text: str, store: Store) -> None:
    with pytest.raises((InvalidInput, UnknownName)):
        store.find({"where": [text]})


def test_a_word_that_is_no_column_is_named(store: Store) -> None:
    with pytest.raises(UnknownName, match="did you mean 'score'"):
        store.find({"where": "scor < 1"})
    with pytest.raises(UnknownName, match=r"reward\.NAME"):
        store.find({"where": "weights.x < 1"})


def test_a_groups_sessions_are_looked_for_among_that_groups_alone(tmp_path: Path) -> None:
    """A session that begins looks for earlier attempts at it: all sessions of its phase were read for that."""
    where, values = query.condition({"group": "g", "sample": 0, "phase": "train", "status": Status.OPEN})
    with Store(tmp_path / "s.db") as store, closing(sqlite3.connect(store.path)) as db:
        (plan,) = db.execute(f"EXPLAIN QUERY PLAN SELECT id FROM summaries WHERE {where}", values).fetchall()
        assert "summaries_by_group" in plan[-1]
