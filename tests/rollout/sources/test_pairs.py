"""Pairs are two branches of one tree: the prompt is there once, and only the replies are trained."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config.data import DataConfig
from agentrl.errors import ConfigError
from agentrl.rollout.sources.messages import MessageReader
from agentrl.rollout.sources.pairs import read_pair, write_pair
from agentrl.rollout.sources.trees import TreeWriter
from agentrl.sessions.renderers.base import Renderer
from agentrl.sessions.tree import tree
from agentrl.types import Session, Task
from tests.rollout.sources.test_trees import renderer, trained_text

__all__ = ["renderer"]
USER, GOOD, BAD = (
    {"role": role, "content": text} for role, text in (("user", "q"), ("assistant", "a"), ("assistant", "b"))
)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": "q", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": "q", "chosen": "a", "rejected": "b"},
    ],
    ids=["explicit", "implicit", "prompt repeated", "text"],
)
def test_a_pair_is_one_tree_with_a_shared_prompt(renderer: Renderer, row: dict[str, Any]) -> None:
    config = DataConfig(name="f", strings="chat")
    session = Session("s", Task(id="t"))
    leaves = write_pair(session, read_pair(row, config, "row 1", MessageReader()), TreeWriter(renderer, config))
    tree.check(session)
    assert leaves is not None
    assert [node.message.text for node in session.nodes] == ["q", "a", "b"]
    assert (session.nodes[leaves.chosen].message.text, session.nodes[leaves.rejected].message.text) == ("a", "b")
    assert trained_text(session, renderer) == ["a<|im_end|>", "b<|im_end|>"]


def test_equal_replies_are_no_pair_and_text_of_two_readings_is_refused(renderer: Renderer) -> None:
    config = DataConfig(name="f")
    same = read_pair({"prompt": [USER], "chosen": [GOOD], "rejected": [GOOD]}, config, "row 1", MessageReader())
    assert write_pair(Session("s", Task(id="t")), same, TreeWriter(renderer, config)) is None
    with pytest.raises(ConfigError, match=r"data\.strings=chat"):
        read_pair({"prompt": "q", "chosen": "a", "rejected": "b"}, config, "row 1", MessageReader())
