"""Files as people have them load as a user expects, or a sentence says what is missing, with the row and its columns.

Every file is written here by hand, with the layout, the encoding and the odd ends of its kind.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.data import DataConfig
from agentrl.errors import ConfigError
from agentrl.rollout.sources.files import Conversations, read_conversations
from agentrl.rollout.sources.pairs import Compared

Said = list[tuple[str, str]]
USER, REPLY = {"role": "user", "content": "Capital of Peru?"}, {"role": "assistant", "content": "Lima."}
CHAT: Said = [("user", "Capital of Peru?"), ("assistant", "Lima.")]
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {"name": "weather", "arguments": '{"city": "Lima"}'}
NESTED = {"name": "weather", "arguments": {"city": "Lima", "unit": None}}
SCHEMA = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOL_CHAT: Said = [("user", "Capital of Peru?"), ("assistant", ""), ("tool", "18"), ("assistant", "Lima.")]
CALLING = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": CALL}]}
ANSWERED = {"role": "tool", "tool_call_id": "c1", "content": "18"}


def lines(*rows: Any, ending: str = "\n", head: str = "", escaped: bool = False) -> Callable[[Path], None]:
    text = head + "".join(json.dumps(row, ensure_ascii=escaped) + ending for row in rows)
    return lambda path: path.write_bytes(text.encode())


def text(content: str) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content.encode())


def packed(*rows: Any) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def parquet(*rows: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        writer.write_table(arrow.Table.from_pylist(list(rows)), path)

    return write


def table(*rows: dict[str, str], delimiter: str = ",") -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            out = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
            out.writeheader()
            out.writerows(rows)

    return write


@dataclass
class Given:
    """Files by their path in a folder, how they are read, and what is expected of them: conversations or a sentence."""

    files: dict[str, Callable[[Path], None]]
    expected: list[Said] | str
    settings: dict[str, Any] = field(default_factory=dict)
    told: str = ""
    compared: Compared | None = None


def one(name: str, write: Callable[[Path], None], *expected: Said, told: str = "", **settings: Any) -> Given:
    return Given({name: write}, list(expected), settings, told)


def refused(name: str, write: Callable[[Path], None], sentence: str, **settings: Any) -> Given:
    return Given({name: write}, sentence, settings)


OPENAI = {"messages": [SYSTEM, USER, REPLY]}
WITH_SYSTEM: Said = [("system", "Be brief."), *CHAT]
SHARE = {"from": "human", "value": "Capital of Peru?"}, {"from": "gpt", "value": "Lima."}
README = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: "part-*.jsonl"
  - split: test
    path: [held/*.jsonl]
- config_name: other
  data_files: other.jsonl
---
# A data set
"""
GIVEN: dict[str, Given] = {
    "TRL, messages": one("a.jsonl", lines({"messages": [USER, REPLY]}), CHAT, told="messages = 'messages'"),
    "TRL, prompt and completion": one("a.jsonl", lines({"prompt": [USER], "completion": [REPLY]}), CHAT),
    "TRL, plain text": one("a.jsonl", lines({"text": "Lima is a city."}), [("assistant", "Lima is a city.")]),
    "TRL, prompt and completion of text": one(
        "a.jsonl", lines({"prompt": "Capital of Peru?", "completion": "Lima."}), CHAT, strings="plain"
    ),
    "TRL's chat_template_kwargs and ids": one(
        "a.jsonl", lines({"messages": [USER, REPLY], "id": 3, "source": "x"}), CHAT, told="not read: id, source"
    ),
    "OpenAI's fine-tuning": one("a.jsonl", lines(OPENAI), WITH_SYSTEM),
    "OpenAI's, with weights": one(
        "a.jsonl", lines({"messages": [USER, {**REPLY, "weight": 0}, USER, {**REPLY, "weight": 1}]}), CHAT + CHAT
    ),
    "OpenAI's, with tools": one(
        "a.jsonl",
        lines({"messages": [USER, CALLING, ANSWERED, REPLY], "tools": [{"type": "function", "function": SCHEMA}]}),
        TOOL_CHAT,
        told="weather",
    ),
    "OpenAI's older functions": one(
        "a.jsonl",
        lines(
            {
                "messages": [
                    USER,
                    {"role": "assistant", "function_call": CALL},
                    {"role": "function", "name": "weather", "content": "18"},
                    REPLY,
                ],
                "functions": [SCHEMA],
            }
        ),
        TOOL_CHAT,
    ),
    "tools and messages as JSON strings": one(
        "a.parquet",
        parquet({"messages": json.dumps([USER, CALLING, ANSWERED, REPLY]), "tools": json.dumps([SCHEMA])}),
        TOOL_CHAT,
    ),
    "calls whose arguments are mappings with empty columns": one(
        "a.parquet",
        parquet(
            {
                "messages": [
                    USER,
                    {"role": "assistant", "tool_calls": [{"function": NESTED}]},
                    {"role": "tool", "content": "18"},
                    REPLY,
                ]
            }
        ),
        TOOL_CHAT,
    ),
    "ShareGPT": one("a.json", text(json.dumps([{"id": "x", "conversations": SHARE}])), CHAT),
    "ShareGPT with a system column": one(
        "a.json", text(json.dumps([{"system": "Be brief.", "conversations": SHARE}], indent=1)), WITH_SYSTEM
    ),
    "ShareGPT with tools as a string": one(
        "a.json",
        text(
            json.dumps(
                [
                    {
                        "conversations": [
                            SHARE[0],
                            {"from": "function_call", "value": json.dumps(NESTED)},
                            {"from": "observation", "value": "18"},
                            SHARE[1],
                        ],
                        "tools": json.dumps([SCHEMA]),
                    }
                ]
            )
        ),
        TOOL_CHAT,
    ),
    "ShareGPT of a single conversation column": one("a.jsonl", lines({"conversation": list(SHARE)}), CHAT),
    "ShareGPT with roles in OpenAI's names": one("a.jsonl", lines({"conversations": [USER, REPLY]}), CHAT),
    "Alpaca": one(
        "a.json",
        text(json.dumps([{"instruction": "Capital of Peru?", "input": "", "output": "Lima."}])),
        CHAT,
        told="(as Alpaca has them)",
    ),
    "Alpaca with an input and a system": one(
        "a.json",
        text(json.dumps([{"instruction": "Add.", "input": "1 2", "output": "3", "system": "Be brief."}])),
        [("system", "Be brief."), ("user", "Add.\n\n1 2"), ("assistant", "3")],
    ),
    "Dolly": one(
        "a.jsonl",
        lines({"instruction": "Capital?", "context": "Of Peru.", "response": "Lima.", "category": "qa"}),
        [("user", "Capital?\n\nOf Peru."), ("assistant", "Lima.")],
        told="not read: category",
    ),
    "verl, supervised": one("a.parquet", parquet({"prompt": [USER], "response": "Lima."}), CHAT),
    "verl, for reinforcement learning": refused(
        "a.parquet",
        parquet({"data_source": "x", "prompt": [USER], "extra_info": {"question": "q", "answer": "a"}}),
        r"a\.parquet, row 1 has a prompt and no response.*data\.columns\.completion=extra_info\.answer",
    ),
    "verl, nested columns": one(
        "a.parquet",
        parquet({"prompt": [USER], "extra_info": {"question": "Capital of Peru?", "answer": "Lima."}}),
        CHAT,
        columns={"prompt": "extra_info.question", "completion": "extra_info.answer"},
        strings="chat",
    ),
    "UltraChat": one(
        "train_sft.jsonl",
        lines({"prompt": "Capital of Peru?", "prompt_id": "ab", "messages": [USER, REPLY]}),
        CHAT,
        told="not read: prompt, prompt_id",
    ),
    "UltraChat's list of turns": refused(
        "a.jsonl", lines({"id": "1", "data": ["Capital of Peru?", "Lima."]}), "row 1 has no column.*columns: id, data"
    ),
    "a byte order mark and Windows' line ends": one(
        "a.jsonl", lines({"messages": [USER, REPLY]}, ending="\r\n", head="\ufeff"), CHAT
    ),
    "text in many scripts": one(
        "a.jsonl",
        lines({"question": "¿Qué es 水? 👩‍🚀", "answer": "\u0412\u043e\u0434\u0430\u2028\u00a0\u0624"}),
        [("user", "¿Qué es 水? 👩‍🚀"), ("assistant", "\u0412\u043e\u0434\u0430\u2028\u00a0\u0624")],
    ),
    "escaped text with half a character": one(
        "a.jsonl", text('{"question": "a", "answer": "\\ud83d b"}\n'), [("user", "a"), ("assistant", "\ufffd b")]
    ),
    "lines that are empty, and columns that are null": one(
        "a.jsonl",
        text('\n{"messages": null, "question": "Capital of Peru?", "answer": "Lima.", "tools": null}\n\n  \n'),
        CHAT,
    ),
    "rows without a conversation": refused(
        "a.jsonl", lines({"messages": [USER, REPLY]}, {"messages": []}), r"a\.jsonl, row 2: there are no messages"
    ),
    "an empty answer": refused(
        "a.jsonl",
        lines({"question": "Capital?", "answer": None}),
        r"row 1 has no column.*its columns: question, answer",
    ),
    "a gzipped file": one("a.jsonl.gz", packed({"messages": [USER, REPLY]}), CHAT),
    "a list in one JSON file, under data": one(
        "a.json", text(json.dumps({"data": [{"messages": [USER, REPLY]}]})), CHAT
    ),
    "JSON lines in a file that is called .json": one("a.json", lines(OPENAI, OPENAI), WITH_SYSTEM, WITH_SYSTEM),
    "a table with new lines in its cells": one(
        "a.csv",
        table({"question": 'Two\nlines, "quoted"', "answer": "Yes,\r\nboth."}),
        [("user", 'Two\nlines, "quoted"'), ("assistant", "Yes,\r\nboth.")],
    ),
    "a table with semicolons": one(
        "a.csv", table({"instruction": "Capital of Peru?", "output": "Lima."}, delimiter=";"), CHAT
    ),
    "a table with tabs": one("a.tsv", table({"query": "Capital of Peru?", "response": "Lima."}, delimiter="\t"), CHAT),
    "a table of other names": refused(
        "a.csv",
        table({"Frage": "Capital?", "Antwort": "Lima."}),
        r"its columns: Frage, Antwort.*data\.columns\.prompt=",
    ),
    "a table whose names are given": one(
        "a.csv",
        table({"Frage": "Capital of Peru?", "Antwort": "Lima."}),
        CHAT,
        columns={"prompt": "Frage", "completion": "Antwort"},
        strings="chat",
    ),
    "parts, of which some are not trained": one(
        "a.jsonl",
        lines(
            {
                "messages": [
                    USER,
                    {
                        "role": "assistant",
                        "content": [{"type": "text", "text": "Li", "weight": 0}, {"type": "text", "text": "ma."}],
                    },
                ]
            }
        ),
        CHAT,
    ),
    "reasoning beside the content": one(
        "a.jsonl", lines({"messages": [USER, {**REPLY, "reasoning_content": "Peru, so Lima."}]}), CHAT
    ),
    "preference pairs": refused(
        "a.jsonl",
        lines({"chosen": [USER, REPLY], "rejected": [USER, REPLY]}),
        "row 1 has pairs.*data.columns.messages=chosen",
    ),
    "two conversations in a row": refused(
        "a.jsonl", lines({"messages": [USER, REPLY], "text": "Lima"}), "row 1 can be read in 2 ways"
    ),
    "a line that is cut off": refused("a.jsonl", text('{"messages": [{"role": "us'), "line 1: not a JSON object"),
    "Anthropic's prompts and completions": one(
        "a.jsonl",
        lines({"prompt": "\n\nHuman: Capital of Peru?\n\nAssistant:", "completion": " Lima."}),
        CHAT,
    ),
    "Anthropic's, with a system column": one(
        "a.jsonl",
        lines({"prompt": "\n\nHuman: Capital of Peru?\n\nAssistant:", "completion": " Lima.", "system": "Be brief."}),
        WITH_SYSTEM,
    ),
    "plain text beside earlier turns": one(
        "a.jsonl",
        lines({"prompt": "Capital of Peru?", "completion": "Lima.", "history": [["a", "b"]], "system": "c"}),
        CHAT,
        told="not read: history, system",
        strings="plain",
    ),
    "LLaMA-Factory's history": one(
        "a.json",
        text(
            json.dumps(
                [
                    {"instruction": "Capital of Peru?", "input": "", "output": "Lima.", "system": "Be brief."}
                    | {"history": [["Capital of Peru?", "Lima."]]}
                ]
            )
        ),
        [("system", "Be brief."), *CHAT, *CHAT],
        told="history = 'history'",
    ),
    "a list of messages that are JSON": one(
        "a.jsonl", lines({"conversations": [json.dumps(each) for each in SHARE]}), CHAT
    ),
    "a table with an index": one(
        "a.csv",
        text("\ufeff,question,answer\r\n0,Capital of Peru?,Lima.\r\n"),
        CHAT,
        told="not read: a column without a name",
    ),
    "a prompt that is called input": one(
        "a.jsonl",
        lines({"input": "Capital of Peru?", "output": "Lima."}),
        CHAT,
        columns={"prompt": "input", "completion": "output"},
        strings="chat",
    ),
    "prompts that are JSON of messages": one(
        "a.jsonl", lines({"prompt": json.dumps([USER]), "completion": json.dumps([REPLY])}), CHAT
    ),
    "columns of lists": refused(
        "a.json", text(json.dumps({"prompt": ["a", "c"], "completion": ["b", "d"]})), "prompt is .*a text or a list of"
    ),
    "messages as Python writes them": refused(
        "a.csv", text(f'messages\n"{[USER, REPLY]}"\n'), "are text, and no JSON list"
    ),
    "Anthropic's parts": refused(
        "a.jsonl",
        lines({"messages": [USER, {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]}]}),
        "message 2 has a part of the type 'tool_use'",
    ),
    "UTF-16": refused(
        "a.csv",
        lambda path: path.write_bytes("question,answer\r\na,b\r\n".encode("utf-16")) and None,
        "iconv -f UTF-16",
    ),
    "a file packed by bzip2": one(
        "a.jsonl.bz2",
        lambda path: path.write_bytes(bz2.compress(json.dumps({"text": "a"}).encode())) and None,
        [("assistant", "a")],
    ),
    "a packed file that is not called so": refused(
        "a.jsonl", lambda path: path.write_bytes(gzip.compress(b'{"text": "a"}')) and None, "name it a.jsonl.gz"
    ),
    "pandas' columns": refused(
        "a.json",
        text(json.dumps({"question": {"0": "a", "7": "c"}, "answer": {"0": "b", "7": "d"}})),
        "orient='records'",
    ),
    "KTO's verdicts in words": Given(
        {"a.csv": table({"prompt": "Capital of Peru?", "response": "Lima.", "label": "Desirable"})},
        [CHAT],
        compared="labels",
    ),
    "pairs with scores beside": Given(
        {
            "a.jsonl": lines(
                {
                    "prompt": "Capital of Peru?",
                    "chosen": [USER, REPLY],
                    "rejected": [USER, {**REPLY, "content": "Rome."}],
                }
                | {"score_chosen": 8.5, "score_rejected": 3.0, "messages": [USER, REPLY]}
            )
        },
        [CHAT, [CHAT[0], ("assistant", "Rome.")]],
        told="not read: messages, score_chosen, score_rejected",
        compared="pairs",
    ),
    "pairs of another name": Given(
        {"a.jsonl": lines({"question": "a", "response_j": "b", "response_k": "c"})},
        "no pair.*its columns: question, response_j, response_k.*data.columns.chosen=COLUMN",
        compared="pairs",
    ),
    "a folder with splits": Given(
        {"data/train-00000-of-00001.parquet": parquet(OPENAI), "data/test-00000-of-00001.parquet": parquet(OPENAI)},
        [WITH_SYSTEM],
    ),
    "a folder whose README names the files": Given(
        {
            "README.md": text(README),
            "part-1.jsonl": lines({"messages": [USER, REPLY]}),
            "held/x.jsonl": lines(OPENAI),
            "other.jsonl": lines({"story": "s"}),
        },
        [CHAT],
    ),
    "a folder with several configurations": Given(
        {f"{name}/train.jsonl": lines(OPENAI) for name in ("en", "fr")}, "several configurations.*data.config=.*en, fr"
    ),
}


def read(folder: Path, given: Given) -> Conversations:
    for name, write in given.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name)
    whole = len(given.files) > 1
    path = folder if whole else folder / next(iter(given.files))
    more = {} if whole else {"held_out": str(path)}
    return read_conversations(DataConfig(name=str(path), **more, **given.settings), given.compared)


@pytest.mark.parametrize("name", GIVEN)
def test_files_as_people_have_them_load_or_say_what_is_missing(tmp_path: Path, name: str) -> None:
    given = GIVEN[name]
    if isinstance(given.expected, str):
        with pytest.raises(ConfigError, match=given.expected):
            read(tmp_path, given)
        return
    found = read(tmp_path, given)
    examples = [example for each in found.examples["train"] for example in each]
    assert [[(message.role, message.text) for message in each.messages] for each in examples] == given.expected
    said = "\n".join(found.lines())
    assert given.told in said
    assert given.expected[0][-1][1][:5] in said.replace(" ", "") or given.expected[0][-1][0] in said


def test_results_of_parallel_calls_are_in_the_order_of_the_calls_and_take_their_marks_with_them(tmp_path: Path) -> None:
    calls = [{"id": name, "function": {"name": "look", "arguments": "{}"}} for name in "ab"]
    results = [{"role": "tool", "tool_call_id": name, "content": name} for name in "ba"]
    row = {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results, REPLY]}
    row["messages"][2]["weight"] = 0
    found = read(tmp_path, Given({"rows.jsonl": lines(row)}, []))
    (example,) = (example for each in found.examples["train"] for example in each)
    assert [message.text for message in example.messages[2:4]] == ["a", "b"]
    assert example.trained[2:4] == (None, False)
