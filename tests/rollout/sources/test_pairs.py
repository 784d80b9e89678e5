"""Rows that compare replies are read as those who write them mean it, and their sessions differ after the prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.data import DataConfig
from agentrl.errors import ConfigError
from agentrl.rollout.sources.files import Conversations, read_conversations
from agentrl.rollout.sources.pairs import Compared
from agentrl.rollout.sources.trees import TreeWriter
from agentrl.sessions.renderers.base import Renderer
from agentrl.sessions.tree import tree
from agentrl.types import Session
from tests.rollout.sources.test_trees import renderer, trained_text

__all__ = ["renderer"]
USER, GOOD, BAD = (
    {"role": role, "content": text} for role, text in (("user", "q"), ("assistant", "a"), ("assistant", "b"))
)
AGAIN = {"role": "user", "content": "again"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
ONE = [("q a", 1.0), ("q b", 0.0)]
TWO = [("q a again a", 1.0), ("q a again b", 0.0)]
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any], list[tuple[str, float]]]] = {
    "TRL, messages": ({"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]}, {}, ONE),
    "TRL, implicit prompt": ({"chosen": [USER, GOOD], "rejected": [USER, BAD]}, {}, ONE),
    "TRL, text": ({"prompt": "q ", "chosen": "a", "rejected": "b"}, {"strings": "plain"}, ONE),
    "TRL, text beside other columns": (
        {"prompt": "q ", "chosen": "a", "rejected": "b", "system": "s", "input": "i"},
        {"strings": "plain"},
        ONE,
    ),
    "TRL, implicit prompt of text": ({"chosen": "q a", "rejected": "q b"}, {"strings": "plain"}, ONE),
    "text that is chat": ({"prompt": "q", "chosen": "a", "rejected": "b"}, {"strings": "chat"}, ONE),
    "a question and replies": ({"question": "q", "chosen": "a", "rejected": "b"}, {}, ONE),
    "binarized UltraFeedback": (
        {"prompt": "q", "prompt_id": "7", "chosen": [USER, GOOD], "rejected": [USER, BAD], "score_chosen": 8.0},
        {},
        ONE,
    ),
    "UltraFeedback": (
        {"instruction": "q", "completions": [{"response": t, "overall_score": s} for t, s in (("a", 8.5), ("b", 2))]},
        {},
        [("q a", 8.5), ("q b", 2.0)],
    ),
    "HH": ({"chosen": "\n\nHuman: q\n\nAssistant: a", "rejected": "\n\nHuman: q\n\nAssistant: b"}, {}, ONE),
    "HH, several turns": (
        {
            side: f"\n\nHuman: q\n\nAssistant: a\n\nHuman: again\n\nAssistant: {say}"
            for side, say in zip(("chosen", "rejected"), "ab", strict=True)
        },
        {},
        TWO,
    ),
    "HH with its prompt": ({"prompt": "\n\nHuman: q\n\nAssistant:", "chosen": " a", "rejected": " b"}, {}, ONE),
    "HH with a system column": (
        {"system": "s", "chosen": "\n\nHuman: q\n\nAssistant: a", "rejected": "\n\nHuman: q\n\nAssistant: b"},
        {},
        [("s q a", 1.0), ("s q b", 0.0)],
    ),
    "several turns": ({"prompt": [USER, GOOD, AGAIN], "chosen": [GOOD], "rejected": [BAD]}, {}, TWO),
    "OpenAI": (
        {"input": {"messages": [USER], "tools": [TOOL]}, "preferred_output": [GOOD], "non_preferred_output": [BAD]},
        {},
        ONE,
    ),
    "ShareGPT, a reply each": (
        {
            "conversations": [{"from": "human", "value": "q"}],
            "chosen": {"from": "gpt", "value": "a"},
            "rejected": {"from": "gpt", "value": "b"},
        },
        {},
        ONE,
    ),
    "messages as JSON": ({"chosen": json.dumps([USER, GOOD]), "rejected": json.dumps([USER, BAD])}, {}, ONE),
    "a system column": (
        {"system": "s", "question": "q", "chosen": "a", "rejected": "b"},
        {},
        [("s q a", 1.0), ("s q b", 0.0)],
    ),
    "other names": (
        {"ask": "q", "good": "a", "bad": "b"},
        {"columns": {"prompt": "ask", "chosen": "good", "rejected": "bad"}, "strings": "chat"},
        ONE,
    ),
}
LABELLED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "TRL, messages": ({"prompt": [USER], "completion": [GOOD], "label": True}, {}),
    "TRL, text": ({"prompt": "q ", "completion": "a", "label": True}, {"strings": "plain"}),
    "text that is chat": ({"prompt": "q", "completion": "a", "label": "true"}, {"strings": "chat"}),
    "a conversation": ({"messages": [USER, GOOD], "label": 1}, {}),
    "earlier turns": ({"instruction": "q", "output": "a", "history": [["p", "o"]], "kto_tag": True}, {}),
    "another name": ({"question": "q", "answer": "a", "liked": True}, {"columns": {"label": "liked"}}),
}


def read(folder: Path, *rows: dict[str, Any], compared: Compared = "pairs", **settings: Any) -> Conversations:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_conversations(DataConfig(name=str(file), held_out=str(file), **settings), compared)


def sessions(found: Conversations, renderer: Renderer) -> list[Session]:
    found.prepare(TreeWriter(renderer, found.config))
    made = [session for task in found.tasks["train"] for session in found.sessions("train", task)]
    for session in made:
        tree.check(session)
    return made


@pytest.mark.parametrize("name", LAYOUTS)
def test_replies_of_a_row_are_sessions_with_rewards_that_differ_after_their_prompt(
    tmp_path: Path, renderer: Renderer, name: str
) -> None:
    row, settings, expected = LAYOUTS[name]
    made = sessions(read(tmp_path, row, **settings), renderer)
    said = [" ".join(node.message.text.strip() for node in session.nodes) for session in made]
    assert [(text, session.score) for text, session in zip(said, made, strict=True)] == expected
    assert [[text.strip() for text in trained_text(session, renderer)] for session in made] == [
        [f"{text[-1]}<|im_end|>"] for text, _ in expected
    ]
    assert [node.token_ids for node in made[0].nodes[:-1]] == [node.token_ids for node in made[1].nodes[:-1]]


@pytest.mark.parametrize("name", LABELLED)
def test_a_verdict_on_a_reply_is_its_reward(tmp_path: Path, renderer: Renderer, name: str) -> None:
    row, settings = LABELLED[name]
    name = settings.get("columns", {}).get("label", "label")
    rows = row, row | {name: False}
    made = sessions(read(tmp_path, *rows, compared="labels", **settings), renderer)
    assert [session.score for session in made] == [1.0, 0.0]
    assert [text.strip() for session in made for text in trained_text(session, renderer)] == ["a<|im_end|>"] * 2


def test_pairs_are_labels_too_and_replies_without_a_difference_are_left_out_and_told(
    tmp_path: Path, renderer: Renderer
) -> None:
    rows = [{"prompt": [USER], "chosen": [GOOD], "rejected": [each]} for each in (BAD, GOOD)]
    found = read(tmp_path, *rows)
    assert [session.score for session in sessions(found, renderer)] == [1.0, 0.0]
    assert any("row 2" in line and "left out" in line for line in found.lines())
    assert "chosen = 'chosen'" in next(found.lines())
    labelled = read(tmp_path, *rows, compared="labels")
    assert [session.score for session in sessions(labelled, renderer)] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("row", "compared", "sentence"),
    [
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, "pairs", r"row 1: .*'chosen'.*data\.strings=chat"),
        ({"chosen": "q a", "rejected": "q b"}, "pairs", r"row 1: 'chosen' is text .*data\.columns\.prompt=COLUMN"),
        ({"prompt": [USER], "chosen": [GOOD]}, "pairs", r"row 1 has chosen and no rejected.*data\.columns\.rejected="),
        ({"prompt": [USER], "completion": [GOOD], "label": True}, "pairs", "verdict 'label'.*algo=kto"),
        ({"messages": [USER, GOOD]}, "pairs", "algo=sft learns from"),
        ({"messages": [USER, GOOD]}, "labels", r"no label and no pair.*data\.columns\.label=COLUMN"),
        ({"prompt": [USER], "completion": [GOOD], "label": "so so"}, "labels", "row 1: 'label' is 'so so'"),
        ({"prompt": [USER], "chosen": [], "rejected": [BAD]}, "pairs", "row 1: 'chosen' is empty"),
        ({"prompt": "z", "chosen": [USER, GOOD], "rejected": [USER, BAD]}, "pairs", "does not begin with the prompt"),
        ({"story": "s"}, "pairs", r"its columns: story.*data\.columns\.chosen=COLUMN"),
    ],
)
def test_what_can_not_be_compared_is_refused_by_row_and_column_with_what_would_work(
    tmp_path: Path, row: dict[str, Any], compared: Compared, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read(tmp_path, row, compared=compared)
