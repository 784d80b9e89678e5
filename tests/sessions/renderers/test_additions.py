"""What a client adds to a turn stands there as the format itself would have written it, in every family."""

from __future__ import annotations

import pytest

from agentrl.sessions.gateway.echoes import Addition, addition
from agentrl.sessions.renderers.base import Renderer, parse
from agentrl.sessions.renderers.families.table import FAMILIES
from agentrl.sessions.tree import tree
from agentrl.types import FinishReason, Message, Node, Sampling, Session, Task, Turn, VersionSpan
from tests.sessions.renderers.test_conformance import renderer_of

USER = Message(role="user", content="hi")
ADDITIONS = [("the price is", "\nObservation: 7"), ("a</", "code>"), ("x", "yz <|im_end|></s> 🙂"), ("b\n", "\nc")]


def said(renderer: Renderer, text: str, reasoning: str | None = None) -> tuple[Session, Node]:
    """A session of one question, and the turn that answers it."""
    session = Session("s", Task(id="t"))
    root = tree.add(session, None, USER, renderer.render([USER])[0])
    ids = tuple(renderer.turn(Message(role="assistant", content=text, reasoning_content=reasoning)))
    turn = Turn(ids, (-1.0,) * len(ids), (VersionSpan(0, 0, len(ids)),), FinishReason.STOP, ids[-1])
    opening, message = renderer.generation_prompt(root), parse(renderer, ids).message
    return session, tree.add_turn(session, root.id, opening, turn, Sampling(), message)


def extended(renderer: Renderer, session: Session, turn: Node, text: str) -> tuple[Node, Addition]:
    message = turn.message.model_copy(update={"content": text})
    added = addition(renderer, turn, message)
    assert added is not None, text
    ids = [*turn.token_ids[: added.copied_tokens], *added.token_ids]
    return tree.add(session, turn.parent, message, ids, copy_of=turn.id, copied_tokens=added.copied_tokens), added


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow
def test_an_extended_turn_reads_as_the_format_would_have_written_it(family: str) -> None:
    renderer = renderer_of(family)
    decode = renderer.tokenizer.decode
    for reasoning in (None, "hm") if FAMILIES[family].expresses.reasoning else (None,):
        for text, added in ADDITIONS:
            session, turn = said(renderer, text, reasoning)
            whole = Message(role="assistant", content=turn.message.text + added, reasoning_content=reasoning)
            node, what = extended(renderer, session, turn, whole.text)
            assert len(turn.token_ids) - what.copied_tokens == 1, "nothing but the end-of-turn token is left behind"
            ours = [*tree.path_ids(session, node.id), *renderer.render([USER], after=node)[0]]
            theirs = decode([token for delta in renderer.render([USER, whole, USER]) for token in delta])
            if family == "gpt-oss":  # its template turns <|return|> into <|end|> once something follows
                theirs = theirs.replace("<|return|>", "<|end|>")
            assert decode(ours) == theirs


@pytest.mark.slow
def test_an_addition_that_makes_a_call_of_the_text_is_refused() -> None:
    """Llama 3 writes calls as plain JSON: one that can't be read is handed over as text, and would be completed."""
    renderer = renderer_of("llama-3")
    _, turn = said(renderer, '{"name": "f"')
    turn.message = Message(role="assistant", content='{"name": "f"')
    echo = Message(role="assistant", content=turn.message.text + ', "parameters": {}}')
    assert addition(renderer, turn, echo) is None
