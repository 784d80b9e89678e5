"""The identity of data is the same wherever the tasks are, and another where they changed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentrl
from agentrl.envs.data import identity
from agentrl.envs.data.identity import BEGINNING, SAMPLED, Identity
from agentrl.envs.data.mixture import Mixture
from agentrl.types import Task

ROWS = st.lists(
    st.dictionaries(
        st.sampled_from("abc"), st.one_of(st.integers(), st.text(), st.floats(allow_nan=False)), max_size=3
    ),
    min_size=1,
    max_size=8,
)


class Rows(agentrl.Env):
    """The given tasks."""

    source: Any = ()

    def tasks(self, split: str = "train") -> Any:
        return self.source

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        return "?"


def of(source: Any) -> Identity:
    env = Rows()
    env.source = source
    return identity.of_split(env, "train")


class Lazy(Sequence[dict[str, Any]]):
    """Rows that are read when they are asked for."""

    def __init__(self, count: int, changed: int = -1) -> None:
        self.count, self.changed, self.reads = count, changed, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return {"id": f"r{index}", "text": "other" if index == self.changed else "same"}


@pytest.mark.slow
@given(ROWS, st.randoms())
def test_equal_rows_have_one_identity_whatever_the_order_of_their_keys(rows: list[dict[str, Any]], random: Any) -> None:
    def mixed(row: dict[str, Any]) -> dict[str, Any]:
        names = list(row)
        random.shuffle(names)
        return {name: row[name] for name in names}

    assert of([mixed(row) for row in rows]) == of(tuple(rows))


@pytest.mark.slow
@given(ROWS, st.data())
def test_a_row_that_is_changed_added_moved_or_removed_is_another_identity(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(rows) - 1))
    others = [
        [*rows[:place], {**rows[place], "new": 1}, *rows[place + 1 :]],
        [*rows[:place], {"new": 1}, *rows[place:]],
        [*rows, {"new": 1}],
        [*rows[:place], *rows[place + 1 :], rows[place], {"new": 1}],
        [{"new": 1}, *rows[1:]],
    ]
    for other in others:
        assert of(rows).difference(of(other)), other
    assert not of(rows).difference(of([*rows]))


def test_what_differs_is_said_by_count_or_by_content() -> None:
    one = of([{"id": "a", "x": 1}, {"id": "b"}])
    assert "2 tasks" in one.difference(of([{"id": "a"}] * 3))
    assert "now 3" in one.difference(of([{"id": "a"}] * 3))
    assert "other content under the same ids" in one.difference(of([{"id": "a", "x": 2}, {"id": "b"}]))
    assert "(c, b;" in one.difference(of([{"id": "c", "x": 1}, {"id": "b"}]))


@pytest.mark.slow
def test_a_long_sequence_that_is_read_lazily_is_read_in_part_and_its_growth_is_noticed() -> None:
    source = Lazy(10_000_000)
    found = of(source)
    assert (found.tasks, found.examined, source.reads) == (10_000_000, SAMPLED, SAMPLED)
    assert found.difference(of(Lazy(10_000_001)))
    assert found.difference(of(Lazy(10_000_000, changed=9_999_999)))
    assert of(Lazy(SAMPLED)).difference(of(Lazy(SAMPLED, changed=SAMPLED // 2))), "a short one is read as a whole"


def test_an_endless_source_is_known_by_its_first_tasks_and_never_read_further() -> None:
    class Endless:
        def __init__(self, first: int = 0) -> None:
            self.first, self.most = first, 0

        def __iter__(self) -> Iterator[dict[str, Any]]:
            number = self.first
            while True:
                self.most = max(self.most, number)
                yield {"id": str(number)}
                number += 1

    source = Endless()
    found = of(source)
    assert found.tasks is None
    assert source.most < BEGINNING
    assert not found.difference(of(Endless()))
    assert found.difference(of(Endless(first=1)))
    assert "without a length" in str(found)


def test_a_source_that_begins_otherwise_each_time_is_identified_by_nothing_and_says_so() -> None:
    class Restless:
        times = 0

        def __iter__(self) -> Iterator[dict[str, Any]]:
            Restless.times += 1
            yield from ({"id": f"{Restless.times}-{n}"} for n in range(BEGINNING))

    found = of(Restless())
    assert not found.ids
    assert "nothing identifies" in str(found)
    assert not found.difference(Identity(None, "", "", 0, ("another",)))


ODD = [
    {"id": "a", "bytes": b"\x00\xff", "set": {3, 1, 2}, "array": np.arange(3), "number": np.float32(0.5)},
    {"id": "b", "huge": 1 << 90, "text": "\ud800", "nan": float("nan"), "object": object()},
    {"id": "c", "path": Path("x"), "nested": {"set": {"b", "a"}}, "function": json.dumps},
]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"x": 1.0, "y": None}, {"x": [0, {"z": float("nan")}]}], "task 'train-1' has x[1]['z'] = nan"),
        ([{"x": np.array([1.0, np.inf])}], "task 'train-0' has x[1] = inf"),
        ([{"x": None, "y": "null nan"}], ""),
    ],
)
def test_numbers_that_the_store_turns_into_null_are_named_at_the_start(rows: list[dict[str, Any]], said: str) -> None:
    env = Rows()
    env.source = rows
    whole = f"{said}, which is stored as null"
    assert identity.of_split(env, "train").notes == ((whole,) if said else ())
    assert (f"data: {whole}" in identity.describe_identity(identity.of_splits(env, ["train"])).splitlines()) == bool(
        said
    )


@pytest.mark.slow
def test_what_json_cannot_express_has_the_same_identity_in_another_process() -> None:
    code = "from tests.envs.test_identity import ODD, of\nprint(of(ODD).content)"
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == of(ODD).content
    for place, name in ((0, "bytes"), (0, "set"), (0, "array"), (1, "huge"), (1, "text"), (2, "path")):
        other = [dict(row) for row in ODD]
        del other[place][name]
        assert of(other).content != of(ODD).content


def test_a_mixture_has_an_identity_for_each_part_and_split() -> None:
    found = identity.of_splits(Mixture(calculator=1, castle=2), ["train", "eval", "train"])
    assert list(found) == ["calculator/train", "castle/train", "calculator/eval", "castle/eval"]
    assert identity.read(json.loads(json.dumps(identity.json(found)))) == found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["calculator", "castle", "text_adventure", "data_analysis"])
def test_built_in_environments_have_the_same_data_each_time(name: str) -> None:
    first, again = (identity.of_splits(agentrl.make(name), ["train", "eval"]) for _ in range(2))
    assert first == again
    assert all(each.ids for each in first.values())
