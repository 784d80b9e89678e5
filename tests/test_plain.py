"""What arithmetic and files bring is taken for the plain value that it means, or refused in words."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import agentrl
from agentrl.common.plain import LARGEST, missing, number, plain, within
from agentrl.common.untrusted import safe_json
from agentrl.envs import calls
from agentrl.envs.reward_marks import reward_value
from agentrl.envs.state import EnvState
from agentrl.errors import InvalidReward
from agentrl.rollout.episodes.agents import environment
from agentrl.rollout.episodes.functions import SessionUrls
from agentrl.rollout.stream.batch_metrics import TaskScores
from agentrl.sessions.tree.codec import head_json, make_storable, same_task, session_from, task_json
from agentrl.tools.registry import ToolRegistry
from agentrl.train.evaluation.suite.content import tasks_content
from agentrl.types import FunctionCall, Group, Session, Task, ToolCall

NAType = type("NAType", (), {})  # as pandas calls it
TAKEN: dict[str, tuple[Any, float]] = {
    "float32": (np.float32(0.5), 0.5),
    "float16": (np.float16(0.5), 0.5),
    "bool_": (np.bool_(True), 1.0),
    "int64": (np.int64(3), 3.0),
    "a 0-d array": (np.array(0.5), 0.5),
    "an array of one": (np.array([[0.5]]), 0.5),
    "a tensor": (torch.tensor(0.5), 0.5),
    "a tensor of one": (torch.tensor([0.5], dtype=torch.bfloat16), 0.5),
    "a tensor with a gradient": (torch.tensor(0.5, requires_grad=True), 0.5),
    "true": (True, 1.0),
    "a decimal": (Decimal("0.5"), 0.5),
    "a fraction": (Fraction(1, 2), 0.5),
    "text": ("0.5", 0.5),
    "text with spaces": (" 1e-1\n", 0.1),
}
REFUSED: dict[str, Any] = {
    "nan": math.nan,
    "numpy's nan": np.float32("nan"),
    "inf": -math.inf,
    "decimal nan": Decimal("NaN"),
    "a signalling nan": Decimal("sNaN"),
    "a number beyond floats": 10**400,
    "a fraction beyond floats": Fraction(10**400),
    "a number whose square is none": 1e200,
    "words": "yes",
    "no text": "",
    "the text nan": "nan",
    "text with an underscore": "1_000",
    "bytes": b"1",
    "a list": [0.5],
    "a pair": (0.5, "why"),
    "a mapping": {"score": 0.5},
    "two numbers": np.array([0.5, 0.5]),
    "no number": np.array([]),
    "a complex number": 1j,
    "numpy's complex number": np.complex64(1),
    "a date": datetime.date(2024, 1, 1),
    "an object": object(),
    "an object that fails": type("Odd", (), {"__float__": lambda self: 1 / 0})(),
    "a tensor without data": torch.empty(1, device="meta"),
    "none": None,
    "pandas' none": NAType(),
}


@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
@pytest.mark.parametrize("name", TAKEN)
def test_a_number_of_any_library_is_the_number_that_it_shows(name: str) -> None:
    value, meant = TAKEN[name]
    found = reward_value(value, "it")
    assert type(found) is float
    assert found == meant


@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_single_finite_number_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(InvalidReward, match=r"^the judge gave .*, which is "):
        reward_value(REFUSED[name], "the judge")


@given(st.floats(-LARGEST, LARGEST))
def test_a_number_is_itself_also_as_text(value: float) -> None:
    assert number(value) == number(repr(value)) == number(np.float64(value)) == value


@given(st.floats(0, 1), st.sampled_from([(0.0, 1.0), (-3.0, 1.0), (0.0, math.inf)]))
def test_what_misses_its_range_by_rounding_alone_is_the_ranges_end(value: float, ends: tuple[float, float]) -> None:
    assert within(value, *ends) == value
    assert within(1 + 1e-7, 0, 1) == 1.0
    assert within(float(np.float32(1.0000001)), 0, 1) == 1.0
    with pytest.raises(ValueError, match=r"^outside its range 0 to 1$"):
        within(1 + 1e-5 + value, 0, 1)


class Colour(Enum):
    RED = "red"


PLAIN: dict[str, tuple[Any, Any]] = {
    "numpy's whole number": (np.int64(4), 4),
    "numpy's truth": (np.bool_(False), False),
    "an array": (np.arange(3), [0, 1, 2]),
    "a tensor": (torch.tensor([[1.0, 2.0]], requires_grad=True), [[1.0, 2.0]]),
    "a whole decimal": (Decimal("4.00"), 4),
    "a decimal": (Decimal("0.25"), 0.25),
    "a fraction": (Fraction(1, 4), 0.25),
    "a date": (datetime.date(2024, 1, 2), "2024-01-02"),
    "a moment": (datetime.datetime(2024, 1, 2, 3), "2024-01-02T03:00:00"),
    "a duration": (datetime.timedelta(minutes=1), 60.0),
    "a set": ({"b", "a"}, ["a", "b"]),
    "a path": (Path("a/b"), "a/b"),
    "a member": (Colour.RED, "red"),
    "bytes": (b"text", "text"),
    "other bytes": (b"\xff", "/w=="),
    "pandas' none": (NAType(), None),
    "numpy's text": (np.str_("a"), "a"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_what_json_lacks_has_a_plain_value_that_stands_for_it(name: str) -> None:
    value, meant = PLAIN[name]
    assert plain(value) == meant
    assert type(plain(value)) is type(meant)
    assert orjson.loads(orjson.dumps(safe_json({"in": [value]}))) == {"in": [meant]}


@pytest.mark.parametrize("name", PLAIN)
def test_a_task_with_such_a_value_is_stored_saved_and_given_to_programs(name: str) -> None:
    """An answer that numpy had computed ended the run: as the episode was saved, or as a command was given its task."""
    value, meant = PLAIN[name]
    session = Session("s", Task(id="t", data={"answer": value, "deep": [{"in": value}]}))
    assert make_storable(session) is None
    read = session_from("s", "", "open", task_json(session), head_json(session), [])
    wanted = {"answer": meant, "deep": [{"in": meant}]}
    assert read.task.data == wanted
    assert same_task(read.task, session.task)
    assert not same_task(read.task, Task(id="t", data={**session.task.data, "answer": "other"}))
    address = SessionUrls("http://a", "http://a", "key")
    assert orjson.loads(environment(session.task, address)["AGENTRL_TASK"]) == {"id": "t", **wanted}
    state = EnvState("E", "1", session.task, 0, None)
    assert EnvState.from_bytes(state.to_bytes()).task.data == wanted


@given(st.integers(-(10**60), 10**60))
def test_whole_numbers_of_a_task_are_read_as_they_were_whatever_their_size(value: int) -> None:
    """An answer beyond 64 bits became text in hexadecimal, so in another process no answer was right."""
    session = Session("s", Task(id="t", data={"answer": value}))
    assert Task.model_validate_json(task_json(session)).data == {"answer": value}
    state = EnvState.from_bytes(EnvState("E", "1", Task(id="t", data={"answer": value}), 0, None).to_bytes())
    assert state.task["answer"] == value


def test_ids_may_be_numbers_and_missing_ones_are_made() -> None:
    class Rows(agentrl.Env):
        def tasks(self, split: str = "train") -> list[Any]:
            return [{"id": np.int64(3)}, {"id": None}, {"id": NAType()}, Task(id=5), Task(id=np.int64(6))]  # type: ignore[arg-type]

    assert [task.id for task in calls.tasks(Rows())] == ["3", "train-1", "train-2", "5", "6"]


async def test_a_tools_result_of_numpy_is_what_it_shows() -> None:
    """Numbers came to the model as text, and a mapping with numbers as keys as an error."""
    values: dict[str, tuple[Any, str]] = {
        "number": (np.float32(0.5), "0.5"),
        "array": ({"a": np.arange(2)}, '{"a": [0, 1]}'),
        "keys": ({np.int64(1): {"b", "a"}}, '{"1": ["a", "b"]}'),
        "tensor": ([torch.tensor(2)], "[2]"),
    }

    def give(name: str) -> Any:
        """Give it."""
        return values[name][0]

    registry = ToolRegistry([give])
    for name, (_, text) in values.items():
        call = ToolCall(id="c", function=FunctionCall(name="give", arguments=orjson.dumps({"name": name}).decode()))
        assert (await registry.run(call)).content == text


def test_an_object_whose_own_methods_fail_is_left_as_it_is() -> None:
    def fails(self: Any) -> Any:
        raise RuntimeError("not now")

    for name in ("tolist", "model_dump", "detach", "to_dict"):
        odd = type("Odd", (), {name: fails})()
        assert plain(odd) is odd
        assert "Odd" in safe_json([odd], whole=True)[0]


def test_an_open_file_stays_open(tmp_path: Path) -> None:
    with open(tmp_path / "notes", "w") as file:
        assert plain(file) is file
        file.write("still there")


def test_nan_is_a_value_and_what_pandas_has_for_none_is_not() -> None:
    assert [missing(value) for value in (None, NAType(), math.nan, 0, "", np.nan)] == [True, True, *[False] * 4]


class Numpys(agentrl.Env):
    """Its tasks hold what numpy and Python have besides JSON."""

    max_turns = 1

    def tasks(self, split: str = "train") -> list[Any]:
        most = range(8) if split == "train" else range(8, 12)
        return [{"n": np.int64(n), "row": np.arange(n), "big": 10**30 + n, "of": {"a", "b"}} for n in most]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self.n = task["n"]
        return f"Say {self.n}."

    def expert(self, messages: Any) -> str:
        return str(self.n)

    @agentrl.reward
    def right(self, session: Session) -> Any:
        return np.bool_(session.answer == str(self.n))


@pytest.mark.slow
def test_check_has_nothing_against_tasks_and_rewards_of_numpy() -> None:
    assert agentrl.check_env(Numpys, scored=8) == []


@pytest.mark.slow
def test_results_of_tasks_with_keys_of_any_type_can_be_told_apart() -> None:
    """An evaluation ended at its very end, as its results were written."""
    task = Task(id="t", data={"by": {1: "a", "b": np.int64(2), np.int64(3): None}})
    other = Task(id="t", data={"by": {1: "a", "b": np.int64(4), np.int64(3): None}})
    digests = {TaskScores.of(Group("g", each)).digest for each in (task, task, other)}
    assert len(digests) == len({tasks_content([each]) for each in (task, task, other)}) == 2
