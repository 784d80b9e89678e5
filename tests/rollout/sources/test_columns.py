"""Rows as data sets have them are read as their users expect, or a sentence says which setting decides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.data import DataConfig
from agentrl.errors import ConfigError
from agentrl.rollout.sources.files import Conversations, read_conversations
from agentrl.rollout.sources.messages import Example

USER, REPLY = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
CHAT = [("user", "Hi"), ("assistant", "Hello")]
CALL = {"name": "add", "arguments": {"a": 1, "b": None}}
TOOL = {"name": "add", "parameters": {"type": "object", "properties": {}}}
ROWS: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "TRL, chat": ({"messages": [USER, REPLY]}, CHAT),
    "TRL, prompt and completion": ({"prompt": [USER], "completion": [REPLY]}, CHAT),
    "TRL, plain": ({"text": "Once upon"}, [("assistant", "Once upon")]),
    "TRL with the prompt beside": ({"prompt": "Hi", "prompt_id": "7", "messages": [USER, REPLY]}, CHAT),
    "verl, an array": ({"prompt": [USER], "response": "Hello", "extra_info": {"index": 1}}, CHAT),
    "verl, text": ({"prompt": "Hi", "response": "Hello"}, CHAT),
    "OpenAI": ({"messages": [USER, {**REPLY, "weight": 1}]}, CHAT),
    "ShareGPT": ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}, CHAT),
    "ShareGPT's name, OpenAI's fields": ({"conversations": [USER, REPLY]}, CHAT),
    "messages as JSON": ({"messages": json.dumps([USER, REPLY])}, CHAT),
    "Alpaca": ({"instruction": "Hi", "input": "", "output": "Hello"}, CHAT),
    "Alpaca with an input": (
        {"instruction": "Add", "input": "1 2", "output": "3"},
        [("user", "Add\n\n1 2"), ("assistant", "3")],
    ),
    "Dolly": ({"instruction": "Hi", "context": "", "response": "Hello", "category": "x"}, CHAT),
    "questions": ({"question": "Hi", "answer": "Hello"}, CHAT),
    "problems": ({"problem": "Hi", "solution": "Hello"}, CHAT),
    "a system column": (
        {"system": "Be kind", "instruction": "Hi", "output": "Hello"},
        [("system", "Be kind"), *CHAT],
    ),
    "parts of text": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, REPLY]}, CHAT),
}


def read(tmp_path: Path, *rows: Mapping[str, Any], **settings: Any) -> Conversations:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_conversations(DataConfig(name=str(file), held_out=str(file), **settings))


def one(tmp_path: Path, row: Mapping[str, Any], **settings: Any) -> Example:
    return next(read(tmp_path, row, **settings).messages())


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_read_as_those_who_write_it_mean_it(tmp_path: Path, name: str) -> None:
    row, expected = ROWS[name]
    example = one(tmp_path, row)
    assert [(message.role, message.text) for message in example.messages] == expected
    assert example.plain == ("text" in row)


def test_what_a_message_says_of_its_own_training_is_kept(tmp_path: Path) -> None:
    example = one(tmp_path, {"messages": [USER, {**REPLY, "weight": 0}, USER, REPLY]})
    assert example.trained == (None, False, None, None)


@pytest.mark.parametrize(
    "row",
    [
        {
            "messages": [
                USER,
                {"role": "assistant", "tool_calls": [{"function": CALL}]},
                {"role": "tool", "content": "1"},
            ],
            "tools": [{"type": "function", "function": TOOL}],
        },
        {
            "conversations": [
                {"from": "human", "value": "Hi"},
                {"from": "function_call", "value": json.dumps(CALL)},
                {"from": "observation", "value": "1"},
            ],
            "tools": json.dumps([TOOL]),
        },
    ],
    ids=["OpenAI", "ShareGPT"],
)
def test_calls_of_tools_and_their_results_belong_together(tmp_path: Path, row: Mapping[str, Any]) -> None:
    example = one(tmp_path, row)
    _, calling, result = example.messages
    (call,) = calling.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1})
    assert (result.role, result.tool_call_id, result.text) == ("tool", call.id, "1")
    assert example.tools[0]["function"]["name"] == "add"


def test_columns_of_other_names_are_mapped_also_inside_of_one(tmp_path: Path) -> None:
    row = {"prompt": [USER], "extra_info": {"question": "Hi", "answer": "Hello"}}
    columns = {"prompt": "extra_info.question", "completion": "extra_info.answer"}
    example = one(tmp_path, row, columns=columns, strings="chat")
    assert [(message.role, message.text) for message in example.messages] == CHAT


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"prompt": "a", "completion": "b"}, "data.strings=chat .* data.strings=plain"),
        ({"messages": [USER, REPLY], "text": "Hi"}, "data.columns.messages=messages or data.columns.text=text"),
        ({"prompt": [USER], "extra_info": {"answer": "b"}}, "data.columns.completion=extra_info.answer"),
        ({"story": "a"}, r"its columns: story.*data.columns.messages=COLUMN"),
        ({"chosen": [USER, REPLY], "rejected": [USER, REPLY]}, "has pairs"),
        ({"messages": [{"content": "Hi"}]}, "row 1: message 1 has no role"),
        ({"messages": [{"role": "wizard", "content": "Hi"}]}, "message 1, role"),
    ],
)
def test_where_a_row_can_not_be_read_or_in_two_ways_the_setting_is_named(
    tmp_path: Path, row: Mapping[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read(tmp_path, row)


def test_what_is_not_read_is_told_and_which_column_was_taken(tmp_path: Path) -> None:
    found = read(tmp_path, {"id": 3, "messages": [{**USER, "mood": "x"}, REPLY]})
    said = "\n".join(found.lines())
    assert "messages = 'messages'" in said
    assert "not read: id, mood (of messages)" in said
    assert "user: Hi" in said
