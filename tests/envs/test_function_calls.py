"""Function calls in BFCL's format: names, arguments, order, what may be left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.builtin.function_calls import FunctionCalls, matched, named, schema
from agentrl.envs.check import check_env
from agentrl.envs.episode import play
from agentrl.errors import ConfigError
from agentrl.types import FunctionCall, Message, ToolCall

PLAY = {
    "name": "music.play",
    "description": "Play.",
    "parameters": {
        "type": "dict",
        "properties": {
            "artist": {"type": "string"},
            "minutes": {"type": "integer"},
            "volume": {"type": "float"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "who": {"type": "dict", "properties": {"adults": {"type": "integer"}}},
        },
        "required": ["artist", "minutes"],
    },
}
RIGHT = {
    "artist": ["Maroon 5"],
    "minutes": [15],
    "volume": [0.5, ""],
    "tags": [["a", "b"], ""],
    "who": [{"adults": [2]}, ""],
}
QUESTION = [[{"role": "user", "content": "Play Maroon 5."}]]


def folder(path: Path, *expected: dict[str, Any], name: str = "BFCL_v3_parallel", **row: Any) -> Path:
    (path / "possible_answer").mkdir(exist_ok=True)
    given = {"id": "parallel_0", "question": QUESTION, "function": [PLAY], **row}
    (path / f"{name}.json").write_text(json.dumps(given) + "\n" + json.dumps(given | {"id": f"{given['id']}b"}) + "\n")
    if expected:
        answers = [{"id": f"{given['id']}{end}", "ground_truth": list(expected)} for end in ("", "b")]
        (path / "possible_answer" / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in answers))
    return path / f"{name}.json"


async def score(file: Path, *calls: dict[str, Any], text: str = "") -> float:
    env = FunctionCalls(str(file))
    task = env.tasks()[0]
    made = [
        ToolCall(id=f"c{n}", function=FunctionCall(name="music_play", arguments=json.dumps(call)))
        for n, call in enumerate(calls)
    ]
    message = Message(role="assistant", content=text, tool_calls=made or None)
    session = await play(env.for_task(task), task, lambda env, messages: message)
    return session.rewards["correct"]


async def test_calls_are_right_by_their_values_in_any_order_and_optional_arguments_may_be_left_out(
    tmp_path: Path,
) -> None:
    other = {"music.play": {"artist": ["Adele", "ADELE (singer)"], "minutes": [20]}}
    file = folder(tmp_path, {"music.play": RIGHT}, other)
    adele, maroon = {"artist": "adele", "minutes": 20}, {"artist": "maroon-5", "minutes": 15}
    assert await score(file, adele, maroon) == 1.0
    assert await score(file, maroon | {"volume": 0.5, "tags": ["A", "b"], "who": {"adults": 2}}, adele) == 1.0
    for wrong in (
        [maroon],
        [maroon, maroon],
        [maroon, adele, adele],
        [maroon | {"minutes": "15"}, adele],
        [maroon | {"minutes": 15.0}, adele],
        [maroon | {"minutes": True}, adele],
        [maroon | {"volume": 0.6}, adele],
        [maroon | {"tags": ["b", "a"]}, adele],
        [maroon | {"who": {"adults": 3}}, adele],
        [maroon | {"who": {}}, adele],
        [maroon | {"loud": True}, adele],
        [{"artist": "maroon 5"}, adele],
    ):
        assert await score(file, *wrong) == 0.0, wrong


async def test_where_no_function_helps_no_call_is_right_and_silence_is_not(tmp_path: Path) -> None:
    file = folder(tmp_path, name="BFCL_v3_irrelevance", id="irrelevance_0")
    assert await score(file, text="I can't do that.") == 1.0
    assert await score(file, {"artist": "x", "minutes": 1}) == 0.0
    assert await score(file) == 0.0


@given(st.permutations(range(5)))
def test_calls_are_paired_even_where_the_first_fit_would_leave_none_for_another(order: list[int]) -> None:
    expected = [("f", {"a": list(range(n + 1))}) for n in range(5)]
    assert matched([("f", {"a": n}) for n in order], expected, {})
    assert not matched([("f", {"a": 4}), *[("f", {"a": n}) for n in order[1:]]], expected, {}) or order[0] == 4


def test_names_and_schemas_become_those_of_apis() -> None:
    assert named("math.factorial") == "math_factorial"
    found = schema(PLAY["parameters"])  # type: ignore[arg-type]
    assert (found["type"], found["properties"]["volume"]["type"]) == ("object", "number")
    assert schema({"type": "any"}) == {}
    assert schema({"type": "array", "items": {"type": "tuple"}}) == {"type": "array", "items": {"type": "array"}}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": QUESTION * 2}, "several turns"),
        ({"function": []}, "several turns"),
        ({"question": None}, "no question of BFCL"),
    ],
)
def test_what_is_no_question_of_one_turn_is_refused(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        FunctionCalls(str(folder(tmp_path, {"music.play": RIGHT}, **row))).tasks()
    with pytest.raises(ConfigError, match="has no answer"):
        FunctionCalls(str(folder(tmp_path, name="other"))).tasks()
    with pytest.raises(ConfigError, match="there is no such file"):
        FunctionCalls(str(tmp_path / "none.json"))


@pytest.mark.slow
def test_the_environment_keeps_its_contract(tmp_path: Path) -> None:
    assert check_env("function_calls", path=str(folder(tmp_path, {"music.play": RIGHT})), scored=8) == []
