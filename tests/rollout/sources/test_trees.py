"""Conversations as trees: their paths are the renderer's tokens, and what they share is there once."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config.data import DataConfig
from agentrl.errors import ConfigError
from agentrl.models import tiny
from agentrl.rollout.sources.messages import Example, MessageReader
from agentrl.rollout.sources.trees import TreeCounts, TreeWriter, gather, prefix_key, span_mask
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.renderers.base import Renderer
from agentrl.sessions.tree import tree
from agentrl.types import Session, Task

FIRST = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
SECOND = [*FIRST, {"role": "user", "content": "three"}, {"role": "assistant", "content": "four"}]
OTHER = [FIRST[0], {"role": "assistant", "content": "zwei"}]


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    out = tmp_path_factory.mktemp("tiny") / "model"
    out.mkdir()
    tiny.build_tokenizer([tiny.render(SECOND)] * 4).save_pretrained(out)
    return get_renderer(out)


def examples(*rows: Any, **more: Any) -> list[Example]:
    reader = MessageReader()
    return [reader.example(f"row {number}", row, **more) for number, row in enumerate(rows)]


def written(
    renderer: Renderer, chosen: list[Example], limit: int | None = None, **settings: Any
) -> tuple[Session, TreeCounts]:
    session, counts = Session("s", Task(id="t")), TreeCounts()
    TreeWriter(renderer, DataConfig(name="f", **settings), limit).write(session, chosen, counts)
    tree.check(session)
    return session, counts


def trained_text(session: Session, renderer: Renderer) -> list[str]:
    decode = renderer.tokenizer.decode
    return [
        decode([token for token, trained in zip(node.token_ids, node.trainable, strict=True) if trained])
        for node in session.nodes
        if any(node.trainable)
    ]


def test_rows_that_share_a_prefix_are_one_tree_in_which_each_turn_is_trained_once(renderer: Renderer) -> None:
    rows = examples(FIRST, OTHER, SECOND, [{"role": "user", "content": "else"}, FIRST[1]])
    assert [len(each) for each in gather(rows, prefix_key)] == [3, 1]
    session, counts = written(renderer, rows[:3])
    assert trained_text(session, renderer) == ["two<|im_end|>", "zwei<|im_end|>", "four<|im_end|>"]
    assert counts.tokens < counts.paths
    paths = [[token for node in path for token in node.token_ids] for path in session.stored_paths()]
    for row in (OTHER, SECOND):
        rendered = renderer.render(examples(row)[0].messages)
        assert [token for ids in rendered for token in ids] in paths


@pytest.mark.parametrize(
    ("train_on", "expected"),
    [
        (("assistant",), ["two<|im_end|>", "four<|im_end|>"]),
        (("last",), ["four<|im_end|>"]),
        (("user",), ["<|im_start|>user\none<|im_end|>\n", "<|im_start|>user\nthree<|im_end|>\n"]),
    ],
)
def test_the_loss_is_on_the_chosen_roles(renderer: Renderer, train_on: tuple[str, ...], expected: list[str]) -> None:
    session, _ = written(renderer, examples(SECOND), train_on=train_on)
    assert [text.lstrip("\n") for text in trained_text(session, renderer)] == expected


def test_a_message_without_weight_is_context(renderer: Renderer) -> None:
    session, _ = written(renderer, examples([SECOND[0], {**SECOND[1], "weight": 0}, *SECOND[2:]]))
    assert trained_text(session, renderer) == ["four<|im_end|>"]


def test_parts_of_a_message_say_themselves_whether_they_are_trained(renderer: Renderer) -> None:
    def parts(*weights: int | None) -> list[Any]:
        texts = ("two, ", "four ", "zwei")
        said = [
            {"type": "text", "text": t} | ({} if w is None else {"weight": w})
            for t, w in zip(texts, weights, strict=True)
        ]
        return [FIRST[0], {"role": "assistant", "content": said}]

    session, _ = written(renderer, examples(parts(0, 1, None)))
    assert trained_text(session, renderer) == ["four zwei<|im_end|>"]
    session, _ = written(renderer, examples(parts(1, 1, 0)))
    assert trained_text(session, renderer) == ["two, four "]
    session, _ = written(renderer, examples(parts(1, 0, 1)))
    assert trained_text(session, renderer) == ["two, ", "zwei<|im_end|>"]
    assert [node.message.text for node in session.nodes] == ["one", "two, ", "four zwei"]
    whole, _ = written(renderer, examples([FIRST[0], {"role": "assistant", "content": "two, four zwei"}]))
    assert [n for node in session.nodes for n in node.token_ids] == [n for node in whole.nodes for n in node.token_ids]
    session, _ = written(renderer, examples(parts(None, None, None)))
    assert trained_text(session, renderer) == ["two, four zwei<|im_end|>"]
    _, counts = written(renderer, examples(parts(0, 0, 0)))
    assert counts.rows["without trained tokens"] == 1


@pytest.mark.parametrize(
    ("pieces", "spans", "expected"),
    [
        ("a b c d", [("ab", True), ("cd", False)], [True, True, False, False]),
        ("a bc d", [("ab", False), ("cd", True)], [False, False, True]),
        ("a bc d", [("a", True), ("b", False), ("cd", True)], [True, False, True]),
        ("a b c d", [(" ab ", True), ("cd", False)], [True, True, False, False]),
        ("< a > b .", [("a", True), ("b", False)], [True, True, True, False, False]),
        ("a b", [("xy", True)], None),
    ],
)
def test_a_token_of_two_parts_is_trained_only_where_both_are(
    pieces: str, spans: list[tuple[str, bool]], expected: list[bool] | None
) -> None:
    assert span_mask([piece.encode() for piece in pieces.split()], spans) == expected


def test_plain_text_is_trained_as_it_is_with_an_end(renderer: Renderer) -> None:
    session, _ = written(renderer, examples(OTHER, plain=True))
    assert trained_text(session, renderer) == ["zwei<|im_end|>"]
    assert [renderer.tokenizer.decode(node.token_ids) for node in session.nodes] == ["one", "zwei<|im_end|>"]


def test_what_is_too_long_is_cut_left_out_or_refused_and_counted(renderer: Renderer) -> None:
    whole = tree.size(written(renderer, examples(SECOND))[0])
    session, counts = written(renderer, examples(SECOND), whole - 2)
    assert (tree.size(session), counts.rows["cut"]) == (whole - 2, 1)
    session, counts = written(renderer, examples(SECOND), whole - 2, overlong="skip")
    assert (session.nodes, counts.rows["too long"]) == ([], 1)
    with pytest.raises(ConfigError, match=r"row 0 has .* tokens"):
        written(renderer, examples(SECOND), whole - 2, overlong="refuse")
    session, counts = written(renderer, examples(FIRST), 4)
    assert (session.nodes, counts.rows["without trained tokens"]) == ([], 1)
